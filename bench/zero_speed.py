#!/usr/bin/env python3
"""What sharing training state costs in speed: N ranks with ZeRO, against N processes that share nothing.

Each round runs N independent single-rank processes at once, each bound to its share of the cores, and then one process
with N ranks at each stage. Rounds are interleaved, so that the machine's noise hits all alike; medians over rounds are
printed as tokens/s and as a ratio to the independent processes.

  python3 bench/zero_speed.py --onefold build/release/onefold --ranks 2 --rounds 3
"""
import argparse
import json
import os
import statistics
import subprocess


def command(args, extra):
    return [args.onefold, "bench", "step", "--model", args.model, "--batch", str(args.batch), "--sequence",
            str(args.sequence), "--steps", str(args.steps), "--warmup", "1", "--json", *extra]


def rate(text):
    return json.loads(text)["tokens_per_second"]


def independent(args, cores):
    share = max(1, len(cores) // args.ranks)
    processes = []
    for rank in range(args.ranks):
        mine = set(cores[rank * share:(rank + 1) * share] or cores)
        processes.append(subprocess.Popen(command(args, ["--threads", str(share)]), stdout=subprocess.PIPE, text=True,
                                          preexec_fn=lambda mine=mine: os.sched_setaffinity(0, mine)))
    return sum(rate(process.communicate()[0]) for process in processes)


def sharded(args, stage):
    run = subprocess.run(command(args, ["--ranks", str(args.ranks), "--stage", str(stage)]), stdout=subprocess.PIPE,
                         text=True, check=True)
    return rate(run.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onefold", default="build/release/onefold")
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stages", default="0,1,2,3")
    parser.add_argument("--out", help="write all samples here, as JSON")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    stages = [int(stage) for stage in args.stages.split(",")]
    samples = {"independent": [], **{f"stage {stage}": [] for stage in stages}}
    for _ in range(args.rounds):
        samples["independent"].append(independent(args, cores))
        for stage in stages:
            samples[f"stage {stage}"].append(sharded(args, stage))
    base = statistics.median(samples["independent"])
    for name, values in samples.items():
        value = statistics.median(values)
        print(f"{name:<12} {value:8.1f} tokens/s  {100 * value / base:6.1f} %  {[round(v, 1) for v in values]}")
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump(samples, file, indent=1)


if __name__ == "__main__":
    main()
