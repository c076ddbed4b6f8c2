#!/usr/bin/env python3
"""The host's AdamW beside DeepSpeedCPUAdam: the same number of parameters in fp32 on the same threads, in turn.

`--python` must be an interpreter that has PyTorch and DeepSpeed, with a C++ compiler: DeepSpeed builds its optimizer at the first call.

  python3 bench/host_adamw.py --onefold build/release/onefold --python python3 --elems 100000000 --threads 2
"""
import argparse
import json
import os
import statistics
import subprocess

PEER = """
import glob, importlib.util, json, os, sys, time, torch
elems, threads, repeats = map(int, sys.argv[1:])
torch.set_num_threads(threads)
built = glob.glob(os.path.expanduser('~/.cache/torch_extensions/*/cpu_adam/cpu_adam.so'))
if built:
    spec = importlib.util.spec_from_file_location('cpu_adam', built[0])
    op = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(op)
else:
    from deepspeed.ops.op_builder import CPUAdamBuilder
    op = CPUAdamBuilder().load()
parameter, gradient, mean, square = (torch.full((elems,), value) for value in (0.5, 1e-3, 0.0, 0.0))
op.create_adam(0, 1e-4, 0.9, 0.999, 1e-8, 0.01, True, False)
seconds = []
for repeat in range(repeats + 2):
    begin = time.perf_counter()
    op.adam_update(0, repeat + 1, 1e-4, 0.9, 0.999, 1e-8, 0.01, True, parameter, gradient, mean, square)
    if repeat >= 2:
        seconds.append(time.perf_counter() - begin)
print(json.dumps(seconds))
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onefold", default="build/release/onefold")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--elems", type=int, default=100_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    ours, loop, peer = [], [], []
    for _ in range(args.rounds):
        out = subprocess.run([args.onefold, "bench", "adamw", "--elems", str(args.elems), "--threads", str(args.threads), "--repeats",
                              str(args.repeats), "--json"], check=True, capture_output=True, text=True)
        result = json.loads(out.stdout)
        ours.append(statistics.median(result["seconds"]))
        loop.append(statistics.median(result["stream_seconds"]))
        out = subprocess.run([args.python, "-c", PEER, str(args.elems), str(args.threads), str(args.repeats)], check=True,
                             capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS=str(args.threads)))
        peer.append(statistics.median(json.loads(out.stdout.strip().splitlines()[-1])))
    for name, seconds in (("onefold", ours), ("streaming loop", loop), ("DeepSpeedCPUAdam", peer)):
        middle = statistics.median(seconds)
        print(f"{name:<18} {middle:.4f} s, {28 * args.elems / middle / 1e9:6.1f} GB/s, onefold is {middle / statistics.median(ours):.2f}x as fast",
              [round(s, 4) for s in seconds])


if __name__ == "__main__":
    main()
