#!/usr/bin/env python3
"""What delay costs in learning where a model has been trained for a while: validation losses, for three seeds.

    bench/delay.py --onefold build/release/onefold --config examples/demo/config.json

Trains the demo's model for 325 steps, and goes on from its weights with a new schedule: 325 steps of 8 sequences with and
without delay.one_step, and 300 steps of 4 ranks with 8 sequences each with and without 50 local steps. Prints a table in
Markdown. Run it where demo/text.txt and demo/tokenizer.json are (`make demo`); it takes some minutes.
"""
import argparse
import json
import subprocess
import tempfile
from pathlib import Path


def loss(args, folder, name, steps, rate, ranks=1, **settings):
    settings = {"run.output": folder / name, "run.steps": steps, "run.eval_every": steps, "run.tensorboard": "false",
                "optimizer.params.lr": rate, "zero_optimization.stage": 0, **settings}
    command = [args.onefold, "train", args.config, "--ranks", str(ranks), "--json"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(run.stdout)["validation_loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onefold", default="build/release/onefold")
    parser.add_argument("--config", default="examples/demo/config.json")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    local = {"train_batch_size": 32}
    cases = [("`one_step` after 40", 325, 0.002, 1, {}, {"delay.one_step": "true", "delay.warmup_steps": 40}),
             ("`local_steps` 50", 300, 0.001, 4, local, {"delay.local_steps": 50})]
    print("| delay | seed | without | with | excess |")
    print("| --- | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        loss(args, folder, "begun", 325, 0.005)
        for name, steps, rate, ranks, common, delay in cases:
            for seed in range(1, args.seeds + 1):
                both = {"model": folder / "begun", "run.seed": seed, **common}
                plain = loss(args, folder, f"plain-{ranks}-{seed}", steps, rate, ranks, **both)
                late = loss(args, folder, f"late-{ranks}-{seed}", steps, rate, ranks, **both, **delay)
                print(f"| {name} | {seed} | {plain:.4f} | {late:.4f} | {100 * (late / plain - 1):+.2f} % |", flush=True)


if __name__ == "__main__":
    main()
