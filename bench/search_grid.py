"""What `plan --fit` lays out against a grid of layouts made by hand, all measured. The search's first choice should be within 5 % of
the best of the grid. On an idle machine:

  python3 bench/search_grid.py --onefold build/release/onefold
"""
import argparse, itertools, json

from runs import Bench

# Model, precision, sequence, global batch, ranks, memory of a rank: tight enough that not everything fits.
CPU = [
    ("gpt2", False, 256, 8, 1, "2.2GiB"),
    ("gpt2", True, 512, 8, 2, "2.2GiB"),
    ("pythia-160m", True, 256, 16, 4, "2.8GiB"),
]
CARD = [("llama-3.2-1b", True, 2048, 8, 1, "20GiB")]


def base(model, bf16, sequence, batch):
    return {"model": {"preset": model}, "train_batch_size": batch, "bf16": {"enabled": bf16}, "gradient_clipping": 1.0,
            "data": {"sequence_length": sequence}}


def grid(batch, ranks, card):
    """Twelve layouts for the CPU, eight for a card: what someone who tunes by hand would try."""
    if card:
        for ratio, recompute in itertools.product([1.0, 0.6, 0.3, 0.15], [False, True]):
            yield {"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu", "ratio": ratio}},
                   "run": {"recompute": recompute}}, batch
        return
    stages = [0, 3] if ranks > 1 else [0]
    micros = [1, 2, 4] if ranks > 1 else [1, 2, 4, 8]
    policies = [False, True] if ranks > 1 else [False, "sqrt", True]
    for stage, micro, recompute in itertools.product(stages, micros, policies):
        yield {"zero_optimization": {"stage": stage}, "run": {"recompute": recompute}}, micro


def measured(bench, config, ranks, steps):
    try:
        return bench.run(config, ranks, steps)[1]
    except RuntimeError as error:
        text = str(error)
        return None if "memory" in text or "fit" in text else print(text[-300:])


def compare(bench, setup, steps, card):
    model, bf16, sequence, batch, ranks, memory = setup
    given = base(model, bf16, sequence, batch)
    print(f"\n{model}, {'bf16' if bf16 else 'fp32'}, {batch} sequences of {sequence}, {ranks} rank(s) of {memory}", flush=True)
    out = bench.path(f"fast-{model}-{ranks}.json")
    words = ["plan", bench.write(given, steps), "--fit", "--ranks", ranks, "--memory", memory, "--hardware",
             bench.machine(ranks), "--output", out]
    bench.call(*words, *(["--host-memory", "100GiB"] if card else []))
    with open(out) as file:
        chosen = json.load(file)
    chosen["run"] = {**chosen.get("run", {}), "memory": memory}
    ours = measured(bench, chosen, ranks, steps)
    best = None
    for layout, micro in grid(batch, ranks, card):
        config = {**given, **layout, "train_micro_batch_size_per_gpu": micro}
        config["run"] = {**config["run"], "memory": memory}
        seconds = measured(bench, config, ranks, steps)
        zero, run = layout["zero_optimization"], layout["run"]
        text = f"stage {zero['stage']}, micro {micro}, recompute {run['recompute']}"
        if "offload_optimizer" in zero:
            text += f", ratio {zero['offload_optimizer']['ratio']}"
        print(f"  {text}: {'does not fit' if seconds is None else f'{seconds:.3f} s'}", flush=True)
        if seconds is not None and (best is None or seconds < best):
            best = seconds
    again = measured(bench, chosen, ranks, steps)
    keys = {k: chosen.get(k) for k in ("mesh", "zero_optimization", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")}
    print(f"  chosen {json.dumps(keys)}, recompute {chosen['run'].get('recompute')}: {ours:.3f} and {again:.3f} s")
    print(f"  the best by hand {best:.3f} s: the choice takes {min(ours, again) / best:.3f} of it", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onefold", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="models whose name has this text")
    parser.add_argument("--steps", type=int, default=4, help="of each run; the first is not counted")
    args = parser.parse_args()
    bench, card = Bench(args.onefold, args.device), args.device != "cpu"
    for setup in CARD if card else CPU:
        if args.only in setup[0]:
            compare(bench, setup, args.steps, card)


if __name__ == "__main__":
    main()
