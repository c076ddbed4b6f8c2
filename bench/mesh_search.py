"""How long `plan --fit` takes to find a mesh, in seconds of one core, beside what it may take. It plans, so any machine will do:

  python3 bench/mesh_search.py --onefold build/release/onefold
"""
import argparse, json, os, resource

from runs import Bench

HOSTS = {"name": "h100-hosts", "device": "cuda", "cores": 16, "product_gflops": 50_000, "half_product_gflops": 700_000,
         "half_attention_share": 0.5, "memory_gb_per_s": 2800, "link_gb_per_s": 300, "link_latency_us": 15, "host_ranks": 8,
         "between_hosts_gb_per_s": 45, "host_gb_per_s": 50, "host_memory_gb_per_s": 130, "device_memory": "79GiB"}
GPT3 = {"vocab_size": 50304, "hidden_size": 12288, "num_layers": 96, "num_heads": 96, "max_sequence_length": 2048,
        "tie_embeddings": False}
# Model, sequence, global batch, ranks, hardware, seconds that the search may take.
CASES = [("Llama 3 8B", "llama-3-8b", 8192, 64, 8, "h100", 20), ("GPT-3 175B", GPT3, 2048, 1536, 1024, HOSTS, 60)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--onefold", required=True)
    bench = Bench(os.path.abspath(parser.parse_args().onefold))
    for name, model, sequence, batch, ranks, hardware, most in CASES:
        config, machine = bench.path("open.json"), bench.path("hosts.json")
        with open(config, "w") as file:
            json.dump({"model": model, "train_batch_size": batch, "data": {"sequence_length": sequence}, "bf16": {"enabled": True}},
                      file)
        with open(machine, "w") as file:
            json.dump(HOSTS, file)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        found = json.loads(bench.call("plan", config, "--fit", "--ranks", ranks, "--hardware",
                                      hardware if isinstance(hardware, str) else machine, "--json"))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"{name} on {ranks} ranks: {seconds:.1f} s of {most}, {found['plans']} plans")
        for layout in found["layouts"]:
            mesh = " x ".join(f"{axis} {size}" for axis, size in layout["mesh"].items() if size not in (1, False))
            print(f"  {layout['predicted_step_seconds']:.3f} s, {layout['planned_peak_bytes'] / 2**30:.1f} GiB: {mesh}, "
                  f"stage {layout['stage']}, micro {layout['micro_batch']} x {layout['accumulation']}, "
                  f"recompute {json.dumps(layout['recompute'])}")
        print(f"  {found['why']}", flush=True)


if __name__ == "__main__":
    main()
