"""The plan's clock against the wall: predicted and measured seconds of a step, for runs that differ in model, precision, ranks,
stage, recomputation and tiers. Rates come from `onefold info --save`, measured first. A run has as many steps as take `--seconds`
by the prediction, within bounds; its mean is without the first. On an idle machine:

  python3 bench/clock.py --onefold build/release/onefold
  python3 bench/clock.py --onefold build/release/onefold --device cuda

and where a command may not take long, in parts: --part 1/3, --part 2/3, --part 3/3.
"""
import argparse

from runs import Bench


def case(model, batch, sequence, *, bf16=False, accumulate=1, recompute=False, stage=0, optimizer=None, parameters=None):
    zero = {"stage": stage}
    if optimizer:
        zero["offload_optimizer"] = {"device": optimizer}
    if parameters:
        zero["stage"], zero["offload_param"] = 3, {"device": parameters}
    return {"model": {"preset": model}, "train_micro_batch_size_per_gpu": batch, "gradient_accumulation_steps": accumulate,
            "bf16": {"enabled": bf16}, "data": {"sequence_length": sequence}, "gradient_clipping": 1.0,
            "zero_optimization": zero, "run": {"recompute": recompute}}


CASES = [  # name, ranks, configuration
    ("GPT-2, 4 x 256, fp32", 1, case("gpt2", 4, 256)),
    ("GPT-2, 1 x 1024, fp32", 1, case("gpt2", 1, 1024)),
    ("GPT-2, 4 x 256, bf16", 1, case("gpt2", 4, 256, bf16=True)),
    ("GPT-2, 8 x 1024, bf16", 1, case("gpt2", 8, 1024, bf16=True)),
    ("GPT-2, 4 x (2 x 256), fp32", 1, case("gpt2", 2, 256, accumulate=4)),
    ("GPT-2, 4 x 256, fp32, recomputed", 1, case("gpt2", 4, 256, recompute=True)),
    ("GPT-2, 8 x 256, bf16, recomputed", 1, case("gpt2", 8, 256, bf16=True, recompute=True)),
    ("GPT-2, 4 x 256, fp32, sqrt", 1, case("gpt2", 4, 256, recompute="sqrt")),
    ("GPT-2 medium, 2 x 512, fp32", 1, case("gpt2-medium", 2, 512)),
    ("Qwen2 0.5B, 2 x 256, bf16", 1, case("qwen2-0.5b", 2, 256, bf16=True)),
    ("Llama 3.2 1B, 2 x 256, bf16", 1, case("llama-3.2-1b", 2, 256, bf16=True)),
    ("GPT-2, 8 x 512, optimizer in the host's memory", 1, case("gpt2", 8, 512, optimizer="cpu")),
    ("GPT-2, 8 x 512, optimizer on the disk", 1, case("gpt2", 8, 512, optimizer="nvme")),
    ("GPT-2, 8 x 512, everything on the disk", 1, case("gpt2", 8, 512, optimizer="nvme", parameters="nvme")),
    ("GPT-2, 2 ranks, stage 0", 2, case("gpt2", 4, 256)),
    ("GPT-2, 2 ranks, stage 2", 2, case("gpt2", 4, 256, stage=2)),
    ("GPT-2, 2 ranks, stage 3", 2, case("gpt2", 4, 256, stage=3)),
    ("GPT-2, 4 ranks, stage 1", 4, case("gpt2", 2, 256, stage=1)),
    ("GPT-2, 4 ranks, stage 3", 4, case("gpt2", 2, 256, stage=3)),
    ("GPT-2, 4 ranks, stage 3, bf16, recomputed", 4, case("gpt2", 4, 256, stage=3, bf16=True, recompute=True)),
]


LEAN = {"grad_accum_dtype": "bf16"}
STATES = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}


def on_card(model, batch, sequence, *, states=False, lean=False, recompute=False, ratio=None, host_step=None):
    config = case(model, batch, sequence, bf16=True, recompute=recompute)
    config["bf16"].update(STATES if states else {})
    if lean:
        config["data_types"] = LEAN
    if ratio is not None:
        config["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "ratio": ratio}
        config["run"]["host_step"] = 1 if host_step is None else host_step
    return config


CARD_CASES = [
    ("GPT-2, 64 x 1024", 1, on_card("gpt2", 64, 1024)),
    ("GPT-2, 8 x 1024", 1, on_card("gpt2", 8, 1024)),
    ("GPT-2 1.5B, 16 x 1024", 1, on_card("gpt2-xl", 16, 1024)),
    ("GPT-2 1.5B, 16 x 1024, recomputed", 1, on_card("gpt2-xl", 16, 1024, recompute=True)),
    ("Qwen2 0.5B, 32 x 1024, bf16 states", 1, on_card("qwen2-0.5b", 32, 1024, states=True)),
    ("Llama 3.2 1B, 8 x 2048", 1, on_card("llama-3.2-1b", 8, 2048)),
    ("Llama 3.2 1B, 8 x 2048, bf16 states", 1, on_card("llama-3.2-1b", 8, 2048, states=True)),
    ("Llama 3.2 1B, 8 x 2048, offloaded, host_step 0", 1, on_card("llama-3.2-1b", 8, 2048, lean=True, ratio=1, host_step=0)),
    ("Llama 3.2 1B, 8 x 2048, offloaded, host_step 0.6", 1, on_card("llama-3.2-1b", 8, 2048, lean=True, ratio=1, host_step=0.6)),
    ("Llama 3.2 1B, 8 x 2048, offloaded, host_step 1", 1, on_card("llama-3.2-1b", 8, 2048, lean=True, ratio=1)),
    ("Llama 3.2 1B, 8 x 2048, offloaded, fp32 gradients", 1, on_card("llama-3.2-1b", 8, 2048, ratio=1)),
    ("Llama 3.2 1B, 8 x 2048, half offloaded", 1, on_card("llama-3.2-1b", 8, 2048, lean=True, ratio=0.5)),
    ("Llama 3.2 3B, 4 x 2048, offloaded, recomputed", 1, on_card("llama-3.2-3b", 4, 2048, lean=True, recompute=True, ratio=1)),
    ("Llama 3.2 3B, 4 x 2048, 75 % offloaded, host_step 0.8, recomputed", 1,
     on_card("llama-3.2-3b", 4, 2048, lean=True, recompute=True, ratio=0.75, host_step=0.8)),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onefold", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=3, help="of a run's counted steps, if 3 to 12 of them take as long")
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--part", default="1/1", help="which of how many parts: every so-manieth case")
    args = parser.parse_args()
    which, parts = (int(number) for number in args.part.split("/"))
    bench, near, count = Bench(args.onefold, args.device), 0, 0
    print("| run | predicted, s | measured, s | ratio |\n| --- | ---: | ---: | ---: |", flush=True)
    for index, (name, ranks, config) in enumerate(CASES if args.device == "cpu" else CARD_CASES):
        if args.only not in name or index % parts != which - 1:
            continue
        try:
            predicted = bench.predicted(config, ranks)
            steps = 1 + min(12, max(3, round(args.seconds / predicted)))
            predicted, measured = bench.run(config, ranks, steps)
        except RuntimeError as error:
            print(f"| {name} | {error} | | |", flush=True)
            continue
        ratio = predicted / measured
        near += abs(ratio - 1) <= 0.15
        count += 1
        print(f"| {name} | {predicted:.3f} | {measured:.3f} | {ratio:.2f} |", flush=True)
    print(f"\n{near} of {count} within 15 %")


if __name__ == "__main__":
    main()
