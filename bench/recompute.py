#!/usr/bin/env python3
"""What recomputation costs in time and saves in memory.

Time: steps without and with full recomputation take turns, and medians are compared; each run says what it held at its peak, and
the plan of the same configuration, for a description of this machine, what it was to hold. Memory: the planned activations, at the peak of a step, of models that
differ in their number of blocks alone and have so many tokens that activations decide on the peak: without recomputation, with
all blocks' inputs kept, and in segments of the square root.

  python3 bench/recompute.py --onefold build/release/onefold --threads 2
"""
import argparse
import json
import math
import os
import statistics
import subprocess
import tempfile


def output(command):
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def step(args, recompute):
    return output([args.onefold, "bench", "step", "--model", args.model, "--batch", str(args.batch), "--sequence",
                   str(args.sequence), "--precision", args.precision, "--threads", str(args.threads), "--steps", str(args.steps),
                   "--json", *(["--recompute"] if recompute else [])])


def planned(args, model, batch, sequence, recompute, hardware=()):
    precision = {"bf16": {"bf16": {"enabled": True}}, "fp16": {"fp16": {"enabled": True}}}.get(args.precision, {})
    config = {"model": model, "train_micro_batch_size_per_gpu": batch, "data": {"sequence_length": sequence},
              "run": {"recompute": recompute, "threads": args.threads}, "gradient_clipping": 1.0, **precision}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        return output([args.onefold, "plan", path, "--json", *hardware])


def described(args, folder):
    """Scratch depends on threads and on instructions for bf16: a plan that names no hardware is for one core without them."""
    path = os.path.join(folder, "machine.json")
    subprocess.run([args.onefold, "info", "--save", path, "--threads", str(args.threads)], stdout=subprocess.DEVNULL, check=True)
    return "--hardware", path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onefold", default="build/release/onefold")
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16", "fp16"])
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3, help="0 measures no time")
    parser.add_argument("--blocks", default="16,64,256")
    args = parser.parse_args()
    seconds = {False: [], True: []}
    peaks = {}
    for _ in range(args.rounds):
        for recompute in seconds:
            result = step(args, recompute)
            seconds[recompute] += result["step_seconds"]
            peaks[recompute] = result["ledger_peak_bytes"]
    if args.rounds > 0:
        plain, full = (statistics.median(seconds[recompute]) for recompute in (False, True))
        print(f"{args.model}, {args.batch} x {args.sequence}, {args.precision}: {plain:.3f} s a step, {full:.3f} s with full "
              f"recomputation: {100 * (full / plain - 1):.1f} % more (bar: 33 %)")
        with tempfile.TemporaryDirectory() as folder:
            machine = described(args, folder)
            for recompute, held in peaks.items():
                plan = planned(args, {"preset": args.model}, args.batch, args.sequence, recompute, machine)["planned_peak_bytes"]
                print(f"  peak {'with' if recompute else 'without'} it: {held / 2**20:.1f} MiB, planned {plan / 2**20:.1f} MiB"
                      f"{'' if held == plan else ' (NOT EQUAL)'}")
    print("\n| blocks | nothing recomputed | all blocks | square root | of the last, for the root of the blocks |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for blocks in (int(count) for count in args.blocks.split(",")):
        model = {"preset": "llama-tiny", "vocab_size": 101, "num_layers": blocks}
        none, full, root = (planned(args, model, 512, 64, recompute)["planned_bytes"]["activations"] / 2**20
                            for recompute in (False, True, "sqrt"))
        print(f"| {blocks} | {none:.2f} MiB | {full:.2f} MiB | {root:.2f} MiB | {root / math.sqrt(blocks):.3f} MiB |")


if __name__ == "__main__":
    main()
