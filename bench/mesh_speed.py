#!/usr/bin/env python3
"""What dividing a model costs in speed: two ranks of one thread along the tensor or the pipeline axis, against two processes
that share nothing.

Each round, of less than a minute on two cores, runs two independent single-rank processes at once, each bound to a core, and then one process with two ranks for
each mesh. All train the same model with the same micro-batches, so that optimizers weigh alike. Rounds take turns, so that
the machine's noise hits all alike; printed are medians over rounds as tokens/s of both cores, and as a share of the
independent processes. A 1F1B pipeline stands still for 1/(M + 1) of its time with M micro-batches: its share is also
given of what that leaves.

  python3 bench/mesh_speed.py --onefold build/release/onefold --rounds 5
"""
import argparse
import json
import os
import statistics
import subprocess

from runs import Bench

# GPT-2's widths, of which a step is short enough to be measured several times.
MODEL = '{"preset": "gpt2", "num_layers": 4, "vocab_size": 8192}'
MESHES = {
    "tensor 2": {"mesh": {"tensor": 2}},
    "tensor 2, beside": {"mesh": {"tensor": 2, "overlap_chunks": 4}},
    "tensor 2, sequences": {"mesh": {"tensor": 2, "sequence_parallel": True}},
    "pipeline 2": {"mesh": {"pipeline": 2}},
    "pipeline 2, zb-h1": {"mesh": {"pipeline": 2}, "pipeline": {"schedule": "zb-h1"}},
}


def config_of(args, more):
    return {"model": json.loads(args.model) if args.model.startswith("{") else args.model, "train_micro_batch_size_per_gpu": args.batch,
            "gradient_accumulation_steps": args.micros,
            "data": {"sequence_length": args.sequence, "tokenizer": "bytes"}, **more}


def start(args, path, cores, more):
    return subprocess.Popen([args.onefold, "train", path, "--json", "--quiet", *more], stdout=subprocess.PIPE, text=True,
                            preexec_fn=lambda: os.sched_setaffinity(0, cores))


def rate(args, process):
    out, _ = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"a run ended with {process.returncode}")
    return args.batch * args.sequence * args.micros / json.loads(out)["step_seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onefold", default="build/release/onefold")
    parser.add_argument("--model", default=MODEL, help="a preset, or a specification as JSON")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--micros", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--meshes", default="tensor 2;pipeline 2",
                        help=f"names, between semicolons: {'; '.join(MESHES)}")
    parser.add_argument("--out", help="write all samples here, as JSON")
    args = parser.parse_args()
    bench = Bench(args.onefold)
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("two cores are needed")
    meshes = args.meshes.split(";")
    samples = {name: [] for name in ["independent", *meshes]}
    for _ in range(args.rounds):
        path = bench.write(config_of(args, {}), args.steps, 1)
        both = [start(args, path, {core}, []) for core in cores]
        samples["independent"].append(sum(rate(args, process) for process in both))
        for name in meshes:
            path = bench.write(config_of(args, MESHES[name]), args.steps, 1)
            samples[name].append(rate(args, start(args, path, set(cores), ["--ranks", "2"])))
    base = statistics.median(samples["independent"])
    for name, values in samples.items():
        value = statistics.median(values)
        text = f"{name:<20} {value:8.1f} tokens/s  {100 * value / base:6.1f} %"
        if name == "pipeline 2":
            text += f"  ({100 * value / base * (args.micros + 1) / args.micros:.1f} % of what the bubble leaves)"
        print(text, [round(v, 1) for v in values])
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump(samples, file, indent=1)


if __name__ == "__main__":
    main()
