#!/usr/bin/env python3
"""Where each wire format begins to pay: predicted seconds of a step, by the link between hosts.

    bench/compression.py --onefold build/release/onefold

Plans GPT-2 on 8 hosts, each a rank of 16 cores with 2 TFLOP/s and 200 GB/s, with a micro-batch of 4 x 1024 tokens, for links of
1, 10 and 100 Gbit/s, and prints a table in Markdown. A bold number is less than that of `none`.
"""
import argparse
import json
import subprocess
import tempfile
from pathlib import Path

FORMATS = ["none", "bf16", "int8", "int4", "1bit", "topk", "topk_sampled", "randomk", "blocks", "rows", "importance"]
GBITS = [1, 10, 100]


def seconds(args, folder, gbits, name):
    hardware = {"name": "host", "cores": 16, "product_gflops": 2000, "memory_gb_per_s": 200,
                "link_gb_per_s": gbits / 8, "link_latency_us": 20}
    (folder / "host.json").write_text(json.dumps(hardware))
    config = {"model": args.model, "train_micro_batch_size_per_gpu": 4, "data": {"sequence_length": 1024},
              "zero_optimization": {"stage": args.stage}, "compression": {"gradients": name}}
    (folder / "config.json").write_text(json.dumps(config))
    plan = subprocess.run([args.onefold, "plan", folder / "config.json", "--ranks", str(args.ranks), "--hardware",
                           folder / "host.json", "--json"], check=True, capture_output=True, text=True)
    return json.loads(plan.stdout)["predicted_step_seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onefold", default="build/release/onefold")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--stage", type=int, default=0)
    parser.add_argument("--model", default="gpt2")
    args = parser.parse_args()
    print("| gradients | " + " | ".join(f"{gbits} Gbit/s" for gbits in GBITS) + " |")
    print("| --- |" + " ---: |" * len(GBITS))
    whole = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in FORMATS:
            cells = []
            for gbits in GBITS:
                step = seconds(args, Path(folder), gbits, name)
                whole.setdefault(gbits, step)
                cells.append(f"**{step:.2f}**" if step < 0.995 * whole[gbits] else f"{step:.2f}")
            print(f"| `{name}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
