#!/usr/bin/env python3
"""Onefold against PyTorch: training steps of GPT-2 124M on the CPU, side by side.

    python vs_pytorch.py --onefold build/onefold --python python3 --rounds 5 --out samples.json

Every round runs each contender once, one after the other, so that a machine which slows down slows
all of them; the order rotates from round to round. A contender's figure is the median over rounds
of its median step. Prints a Markdown table for each shape and the verdict against the bars below;
all samples go to the file named by --out. Needs the standard library only.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile

BAR_SPEED = 1.4  # times the fastest PyTorch, at least
BAR_GEMM = 0.85  # of the rate of a plain matrix product, at least
BAR_MEMORY = 0.7  # of the resident set of the fastest PyTorch, at most
# bf16: one of the first two, and faster than fp32.
BAR_HALF_SPEED = 1.3  # times the fastest PyTorch in autocast, as installed
BAR_HALF_PRODUCTS = 0.75  # of what its own products alone would allow

HERE = os.path.dirname(os.path.abspath(__file__))

# What each variant adds to `pytorch_step.py`. "tuned" keeps freed memory and, on an AMD processor,
# lets MKL use the kernels it has for Intel's: pytorch_step.py says what that is worth.
VARIANTS = {
    "eager": ["--malloc", "system"],
    "eager-tuned": ["--malloc", "keep"],
    "eager-chunked": ["--malloc", "keep", "--loss", "chunked"],
    "compiled": ["--malloc", "system", "--compile"],
    "compiled-tuned": ["--malloc", "keep", "--compile"],
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onefold", required=True, metavar="PATH", help="the onefold binary")
    parser.add_argument("--python", action="append", required=True, metavar="PY",
                        help="an interpreter with PyTorch; may be given several times")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shapes", default="4x256,1x1024",
                        help="batch x sequence, comma-separated; default: %(default)s")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="timed steps per run")
    parser.add_argument("--warmup", type=int, default=2, help="PyTorch's steps before those")
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32",
                        help="bf16: Onefold's, and PyTorch's autocast")
    parser.add_argument("--variants", default=",".join(VARIANTS),
                        help="of PyTorch, comma-separated; default: %(default)s")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True,
                        help="whether to run the variants that use torch.compile")
    parser.add_argument("--mkl-shim", action=argparse.BooleanOptionalAction, default=None,
                        help="whether tuned variants preload the MKL shim; default: on AMD only")
    parser.add_argument("--timeout", type=int, default=1800, help="seconds for one run")
    parser.add_argument("--out", metavar="FILE", help="write all samples here, as JSON")
    arguments = parser.parse_args()
    arguments.shapes = [tuple(int(n) for n in s.split("x")) for s in arguments.shapes.split(",")]
    arguments.variants = arguments.variants.split(",")
    for name in arguments.variants:
        if name not in VARIANTS:
            parser.error(f"--variants: no variant {name!r}; there are {', '.join(VARIANTS)}")
    if not arguments.compile:
        arguments.variants = [v for v in arguments.variants if not v.startswith("compiled")]
    return arguments


def cpu_info():
    """(vendor, model) of the processor, as Linux tells it."""
    found = {}
    try:
        with open("/proc/cpuinfo") as f:
            for line in f:
                key, _, value = line.partition(":")
                found.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    return found.get("vendor_id", ""), found.get("model name", platform.processor() or "unknown")


def commit():
    run = subprocess.run(["git", "-C", HERE, "describe", "--always", "--dirty"],
                         capture_output=True, text=True)
    return run.stdout.strip() or "unknown"


def build_mkl_shim(folder):
    """MKL asks this function whether it runs on an Intel processor, and keeps its AVX-512 kernels
    for those that do. Answering yes is a widely used remedy on AMD."""
    compiler = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    if compiler is None:
        print("no C compiler: tuned variants run without the MKL shim", file=sys.stderr)
        return None
    source, library = os.path.join(folder, "shim.c"), os.path.join(folder, "mkl_shim.so")
    with open(source, "w") as f:
        f.write("int mkl_serv_intel_cpu_true(void) { return 1; }\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def run_json(command, environment, timeout):
    """The JSON object on the last line of the command's output, or (None, why not)."""
    try:
        run = subprocess.run(command, env=environment, capture_output=True, text=True,
                             timeout=timeout)
    except subprocess.TimeoutExpired:
        return None, f"no result after {timeout} s"
    except OSError as error:
        return None, str(error)
    lines = run.stdout.strip().splitlines()
    if run.returncode != 0:
        complaint = (run.stderr.strip() or run.stdout.strip() or "no message").splitlines()[-1]
        return None, f"exit status {run.returncode}: {complaint}"
    for text in ([lines[-1]] if lines else []) + [run.stdout]:
        try:
            return json.loads(text), None
        except ValueError:
            pass
    return None, "it printed no JSON"


def contenders(arguments, shape, shim):
    """Yields (name, command, environment) in the order of the table."""
    batch, sequence = shape
    common = ["--model", arguments.model, "--batch", str(batch), "--sequence", str(sequence),
              "--threads", str(arguments.threads), "--steps", str(arguments.steps), "--json"]
    threads = dict(os.environ, OMP_NUM_THREADS=str(arguments.threads))
    for precision in [arguments.precision] + (["fp32"] if arguments.precision == "bf16" else []):
        yield "Onefold" if precision == arguments.precision else "Onefold in fp32", [
            arguments.onefold, "bench", "step", *common, "--precision", precision], dict(os.environ)
    for python in arguments.python:
        for variant in arguments.variants:
            environment = dict(threads)
            if shim and VARIANTS[variant][1] == "keep":
                environment["LD_PRELOAD"] = shim
            script = os.path.join(HERE, "pytorch_step.py")
            command = [python, script, *common, "--warmup", str(arguments.warmup),
                       *VARIANTS[variant],
                       *(["--autocast"] if arguments.precision == "bf16" else [])]
            yield f"{python} {variant}", command, environment


def gib(size):
    return f"{size / 2**30:.2f} GiB"


def report(shape, samples):
    """Prints the table and the verdict of one shape. samples: name -> results of the rounds."""
    rows = {}
    for name, results in samples.items():
        if results:
            rows[name] = {
                key: statistics.median(r[key] for r in results)
                for key in ("tokens_per_second", "peak_rss_bytes", "baseline_rss_bytes")
            }
            version = results[0].get("torch")
            rows[name]["label"] = f"PyTorch {version} {name.split()[-1]}" if version else name
    print(f"\n### {shape[0]} x {shape[1]}\n")
    ours = rows.get("Onefold")
    gemm = statistics.median(r["gemm_fraction"] for r in samples["Onefold"]) if ours else None
    print("| variant | tokens/s | Onefold / variant | of GEMM rate | peak RSS | Onefold / variant "
          "| RSS after start |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for row in rows.values():
        speed = memory = fraction = "-"
        if ours:
            speed = f"{ours['tokens_per_second'] / row['tokens_per_second']:.2f}x"
            memory = f"{ours['peak_rss_bytes'] / row['peak_rss_bytes']:.2f}x"
            # The model's arithmetic is the same for all, so fractions scale as speeds do.
            fraction = f"{gemm * row['tokens_per_second'] / ours['tokens_per_second']:.1%}"
        print(f"| {row['label']} | {row['tokens_per_second']:.1f} | {speed} | {fraction} | "
              f"{gib(row['peak_rss_bytes'])} | {memory} | {gib(row['baseline_rss_bytes'])} |")
    # Tuned variants need a shim of ours, settings of the allocator or a loss that is not PyTorch's
    # own: what PyTorch can be made to do, beside what it does.
    groups = {"as installed": [], "tuned": []}
    for name, row in rows.items():
        if not name.startswith("Onefold"):
            groups["tuned" if name.endswith(("-tuned", "-chunked")) else "as installed"].append(row)
    print()
    if not ours or not any(groups.values()):
        print("No verdict: " + ("no PyTorch variant ran." if ours else "Onefold did not run."))
        return False
    if "Onefold in fp32" in rows and groups["as installed"]:
        return report_half(ours, rows["Onefold in fp32"], groups["as installed"],
                           [r["product_fraction"] for r in samples["Onefold"]])
    verdicts = [(gemm >= BAR_GEMM, f"arithmetic: {gemm:.1%} of the rate of matrix products; the "
                                   f"bar is {BAR_GEMM:.0%}")]  # yapf: disable
    for group, peers in groups.items():
        if not peers:
            continue
        fastest = max(peers, key=lambda row: row["tokens_per_second"])
        speed = ours["tokens_per_second"] / fastest["tokens_per_second"]
        memory = ours["peak_rss_bytes"] / fastest["peak_rss_bytes"]
        verdicts.append((speed >= BAR_SPEED,
                         f"speed: {speed:.2f}x the fastest PyTorch {group} ({fastest['label']}); "
                         f"the bar is {BAR_SPEED}x"))
        verdicts.append((memory <= BAR_MEMORY,
                         f"memory: {memory:.2f}x the peak resident set of {fastest['label']}; "
                         f"the bar is {BAR_MEMORY}x"))
    return print_verdicts(verdicts)


def report_half(ours, full, peers, fractions):
    """The verdict of bf16, against PyTorch as installed and fp32 of our own."""
    speed = ours["tokens_per_second"] / max(row["tokens_per_second"] for row in peers)
    products = statistics.median(fractions)
    gain = ours["tokens_per_second"] / full["tokens_per_second"]
    return print_verdicts([
        (speed >= BAR_HALF_SPEED or products >= BAR_HALF_PRODUCTS,
         f"speed: {speed:.2f}x the fastest PyTorch as installed, {products:.1%} of what its own products allow; "
         f"the bar is {BAR_HALF_SPEED}x or {BAR_HALF_PRODUCTS:.0%}"),
        (gain > 1, f"{gain:.2f}x its own fp32")])


def print_verdicts(verdicts):
    for passed, text in verdicts:
        print(f"- {'PASS' if passed else 'FAIL'} {text}")
    return all(passed for passed, _ in verdicts)


def main():
    arguments = parse_arguments()
    vendor, cpu = cpu_info()
    samples, failures = {}, {}
    header = {"command": sys.argv, "commit": commit(), "cpu": cpu, "threads": arguments.threads,
              "precision": arguments.precision}

    def save():
        if arguments.out:
            raw = dict(header, failures=failures,
                       samples={f"{b}x{s}": runs for (b, s), runs in samples.items()})
            with open(arguments.out, "w") as f:
                json.dump(raw, f, indent=1)

    with tempfile.TemporaryDirectory() as folder:
        wanted = vendor == "AuthenticAMD" if arguments.mkl_shim is None else arguments.mkl_shim
        shim = build_mkl_shim(folder) if wanted else None
        for turn in range(arguments.rounds):
            for shape in arguments.shapes:
                entries = list(contenders(arguments, shape, shim))
                runs = samples.setdefault(shape, {name: [] for name, _, _ in entries})
                first = turn % len(entries)
                for name, command, environment in entries[first:] + entries[:first]:
                    if name in failures and not any(r[name] for r in samples.values()):
                        continue  # most likely a variant that this PyTorch lacks
                    result, why = run_json(command, environment, arguments.timeout)
                    if result is None:
                        failures[name] = why
                        print(f"{name}: left out ({why})", file=sys.stderr)
                        continue
                    result["load_average"] = os.getloadavg()[0]  # a busy machine shows here
                    runs[name].append(result)
                    print(f"round {turn + 1}, {shape[0]}x{shape[1]}, {name}: "
                          f"{result['tokens_per_second']:.1f} tokens/s", file=sys.stderr)
                    save()
    save()
    print(f"{arguments.model}, {arguments.precision}, {arguments.threads} threads, {cpu}; "
          f"commit {header['commit']}; {arguments.rounds} rounds of {arguments.steps} steps")
    passed = [report(shape, runs) for shape, runs in samples.items()]
    if failures:
        print("\nLeft out:\n")
    for name, why in failures.items():
        print(f"- {name}: {why}")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
