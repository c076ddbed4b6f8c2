#!/usr/bin/env python3
"""The disk tier's lanes beside fio: the same folder, requests and depth (1 MiB, 16 under way, past the page cache), in turn.

Each round runs fio's write and read, ours with its buffers registered, and ours without (as where `ulimit -l` allows none), and
begins with another of them. Printed are medians over rounds, each round's ratio to fio's, and processor seconds for a GB. Bar: 90 %.

  python3 bench/disk.py --onefold build/release/onefold --folder . --rounds 5
"""
import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess


def processor_seconds(command, **more):
    """The command's output, and what it took of processors."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=True, **more)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def fio(args, path, engine):
    rates = {}
    for way in ("write", "read"):
        out, seconds = processor_seconds([
            "fio", "--name=disk", f"--filename={path}", f"--size={args.mib}m", "--bs=1m", "--iodepth=16", "--direct=1",
            f"--ioengine={engine}", f"--rw={way}", f"--loops={args.repeats}", "--scramble_buffers=0", f"--mem={args.fio_memory}",
            "--output-format=json",
            *(["--fixedbufs=1"] if engine == "io_uring" else [])])
        job = json.loads(out)["jobs"][0][way]
        rates[way] = job["bw_bytes"] / 1e9
        rates[way + " cpu"] = seconds / (job["io_bytes"] / 1e9)
    return rates


def ours(args, registered):
    def forbid():
        # Enough for the ring itself. The administrator's processes are not held to it: they give up that right first.
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (512 << 10, 512 << 10))

    command = [args.onefold, "bench", "disk", args.folder, "--bytes", f"{args.mib}MiB", "--piece", args.piece, "--repeats",
               str(args.repeats), "--json"]
    if not registered and os.geteuid() == 0 and shutil.which("setpriv"):
        command = ["setpriv", "--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock", *command]
    out, seconds = processor_seconds(command, preexec_fn=None if registered else forbid)
    result = json.loads(out)
    moved = result["bytes"] * (2 * args.repeats + 1) / 1e9
    return {"write": result["write_gb_per_s"], "read": result["read_gb_per_s"], "both cpu": seconds / moved, "how": result["how"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onefold", default="build/release/onefold")
    parser.add_argument("--folder", default=".")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--piece", default="64MiB", help="bytes of each of our calls")
    parser.add_argument("--repeats", type=int, default=2, help="passes over the file in a round")
    parser.add_argument("--engine", default="io_uring", help="fio's: io_uring or libaio")
    parser.add_argument("--fio-memory", default="mmap",
                        help="shmhuge: huge pages as ours, of which the system must have set aside 16 MiB (/proc/sys/vm/nr_hugepages)")
    args = parser.parse_args()
    path = os.path.join(args.folder, "onefold-fio.dat")
    contenders = {"fio": lambda: fio(args, path, args.engine), "onefold": lambda: ours(args, True),
                  "onefold, not registered": lambda: ours(args, False)}
    samples = {name: [] for name in contenders}
    try:
        for turn in range(args.rounds):
            names = list(contenders)
            for name in names[turn % len(names):] + names[:turn % len(names)]:
                samples[name].append(contenders[name]())
    finally:
        if os.path.exists(path):
            os.remove(path)
    for name, rounds in samples.items():
        text = f"{name:<24}"
        for way in ("write", "read"):
            values = [one[way] for one in rounds]
            text += f"  {way} {statistics.median(values):5.2f} GB/s"
            if name != "fio":
                ratios = [one[way] / peer[way] for one, peer in zip(rounds, samples["fio"])]
                text += f" ({statistics.median(values) / statistics.median([p[way] for p in samples['fio']]):4.0%} of fio; rounds " + \
                    " ".join(f"{ratio:.0%}" for ratio in ratios) + ")"
        cpu = [one.get("both cpu", (one.get("write cpu", 0) + one.get("read cpu", 0)) / 2) for one in rounds]
        print(f"{text}  processor {statistics.median(cpu):.3f} s/GB", f"({rounds[0]['how']})" if name != "fio" else "")


if __name__ == "__main__":
    main()
