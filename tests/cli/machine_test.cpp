// What the machine is and measures.
#include "cli/support.h"

namespace onefold {
namespace {

TEST_F(Cli, InfoDescribesTheMachine) {
  const Outcome outcome = onefold({"info", "--json", "--threads", "1"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json info = Json::parse(outcome.out);
  expect_keys(info,
              {"version", "cpu", "cores", "threads", "simd", "memory_bytes", "available_bytes",
               "gpus", "cuda", "cards", "mpi", "gemm_gflops", "memory_gb_per_s"});
  EXPECT_EQ(info["version"], ONEFOLD_VERSION);
  EXPECT_EQ(info["threads"], 1);
  EXPECT_GE(info["memory_bytes"], info["available_bytes"]);
  for (const char* rate : {"gemm_gflops", "memory_gb_per_s"}) EXPECT_GT(info[rate], 0.0);
}

TEST_F(Cli, InfoMeasuresADescriptionThatRunsArePredictedBy) {
  const Outcome outcome = onefold(
      {"info", "--save", "machine.json", "--threads", "1", "--ranks", "2", "--disk", "disk"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_in(outcome.out, {"machine.json", "each of 2 ranks", "--hardware machine.json"});
  const Json machine = Json::parse(read("machine.json"));
  for (const char* rate :
       {"product_gflops", "half_product_gflops", "product_share", "attention_share",
        "half_product_share", "half_attention_share", "memory_gb_per_s", "cache_gb_per_s",
        "function_gelems_per_s", "kernel_latency_us", "link_gb_per_s", "link_latency_us",
        "host_gb_per_s", "disk_gb_per_s", "disk_write_gb_per_s", "disk", "device_memory"})
    EXPECT_GT(machine[rate], 0.0) << rate;
  EXPECT_EQ(machine["cores"], 1);
  const Outcome run = train({}, {"--hardware", "machine.json", "--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  const Json summary = Json::parse(run.out);
  EXPECT_GT(summary["predicted_step_seconds"], 0.0);
  EXPECT_GT(summary["step_seconds"], 0.0);
  const Outcome told = train({"run.output=other"}, {"--hardware", "machine.json"});
  expect_in(told.err, {"a step was predicted to take"});
  expect_error(onefold({"info", "--ranks", "2"}), 2, {"--ranks", "--save"});
  expect_error(train({"run.output=third"}, {"--hardware", "h200"}), 1,
               {"h200 describes the device cuda", "cpu"});
  // A plan for it is what a bench holds here, whose scratch depends on threads and on whether there
  // are instructions for bf16.
  const Outcome bench =
      onefold({"bench", "step", "--model", "gpt2-tiny", "--batch", "1", "--sequence", "64",
               "--precision", "bf16", "--steps", "1", "--warmup", "0", "--threads", "3", "--json"});
  ASSERT_EQ(bench.code, 0) << bench.err;
  folder_.write("plan.json", R"({"model": {"preset": "gpt2-tiny"}, "bf16": {"enabled": true},
                                 "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0,
                                 "data": {"sequence_length": 64}, "run": {"threads": 3}})");
  const Outcome plan = onefold({"plan", "plan.json", "--hardware", "machine.json", "--json"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(Json::parse(plan.out)["planned_peak_bytes"],
            Json::parse(bench.out)["ledger_peak_bytes"]);
}

TEST_F(Cli, BenchMeasuresAStepAgainstTheCeilings) {
  const Outcome outcome =
      onefold({"bench", "step", "--model", "gpt2-tiny", "--batch", "1", "--sequence", "16",
               "--steps", "1", "--warmup", "0", "--threads", "1", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json bench = Json::parse(outcome.out);
  for (const char* key : {"model",
                          "batch",
                          "sequence",
                          "micros",
                          "threads",
                          "tokens_per_second",
                          "step_seconds",
                          "forward_seconds",
                          "backward_seconds",
                          "norm_seconds",
                          "optimizer_seconds",
                          "optimizer_gb_per_s",
                          "memory_gb_per_s",
                          "gemm_gflops",
                          "model_gflops",
                          "dropped_choices",
                          "gemm_fraction",
                          "product_seconds",
                          "product_fraction",
                          "peak_rss_bytes",
                          "baseline_rss_bytes",
                          "ledger_peak_bytes",
                          "mapped_bytes",
                          "driver_bytes",
                          "ledger_activation_bytes",
                          "ledger_workspace_bytes",
                          "kernels"})
    EXPECT_TRUE(bench.contains(key)) << key;
  EXPECT_EQ(bench["step_seconds"].size(), 1u);
  EXPECT_GT(bench["product_seconds"], 0.0);
  expect_error(onefold({"bench", "step", "--model", "gtp2"}), 1, {"--model", "\"gtp2\"", "gpt2"});
  for (const auto& [flag, value, needs] : {std::tuple{"--stage", "2", "--ranks"},
                                           {"--capacity", "1.5", "--experts"},
                                           {"--ratio", "0.5", "--offload-optimizer"},
                                           {"--host-step", "0.5", "--offload-optimizer"},
                                           {"--nvme-path", "there", "nvme"}})
    expect_error(onefold({"bench", "step", "--model", "gpt2-tiny", flag, value}), 1,
                 {flag, "has no effect without", needs});
}

TEST_F(Cli, BenchCanShareTheEmbeddingsTableWithTheHead) {
  const auto peak = [&](std::vector<std::string> flags) {
    std::vector<std::string> args = {"bench",    "step",       "--model",   "llama-tiny", "--batch",
                                     "1",        "--sequence", "16",        "--steps",    "1",
                                     "--warmup", "0",          "--threads", "1",          "--json"};
    args.insert(args.end(), flags.begin(), flags.end());
    const Outcome outcome = onefold(args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out)["ledger_peak_bytes"].get<int64_t>();
  };
  // At least a table of 263 x 42 and its two moments, in fp32.
  EXPECT_LE(peak({"--tied"}) + int64_t{3} * 4 * 263 * 42, peak({}));
}

TEST_F(Cli, BenchMeasuresKernelsAgainstTheCeilings) {
  const Outcome outcome = onefold({"bench", "kernels", "--families", "rope,gemm", "--repeats", "2",
                                   "--threads", "1", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json bench = Json::parse(outcome.out);
  expect_keys(bench, {"device", "threads", "repeats", "gemm_gflops", "memory_gb_per_s", "results"});
  EXPECT_EQ(bench["threads"], 1);
  ASSERT_GE(bench["results"].size(), 2u);
  EXPECT_EQ(bench["results"].front()["family"], "rope");
  EXPECT_EQ(bench["results"].front()["bound"], "memory");
  EXPECT_EQ(bench["results"].back()["family"], "gemm");
  for (const Json& row : bench["results"]) {
    expect_keys(row, {"family", "name", "flops", "bytes", "seconds", "gflops", "gb_per_s", "bound",
                      "ceiling_fraction"});
    EXPECT_EQ(row["seconds"].size(), 2u);
    for (const char* rate : {"gb_per_s", "ceiling_fraction"}) EXPECT_GT(row[rate], 0.0);
  }
  expect_error(onefold({"bench", "kernels", "--families", "gem"}), 1,
               {"--families", "\"gem\"", "did you mean \"gemm\"?", "cross_entropy"});
}

TEST_F(Cli, BenchMeasuresCollectivesAgainstACopy) {
  const Outcome outcome = onefold(
      {"bench", "comm", "--ranks", "3", "--sizes", "10000,64KiB", "--repeats", "2", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json bench = Json::parse(outcome.out);
  expect_keys(bench, {"transport", "ranks", "cores", "repeats", "results"});
  EXPECT_EQ(bench["transport"], "threads");
  EXPECT_EQ(bench["ranks"], 3);
  ASSERT_EQ(bench["results"].size(), 10u);
  for (const Json& row : bench["results"]) {
    expect_keys(row, {"collective", "bytes", "seconds", "algorithm_gb_per_s", "bus_gb_per_s",
                      "copy_seconds", "moved_bytes", "copy_fraction"});
    EXPECT_EQ(row["seconds"].size(), 2u);
    EXPECT_EQ(row["copy_seconds"].size(), 2u);
    for (const char* rate : {"algorithm_gb_per_s", "bus_gb_per_s", "copy_fraction"})
      EXPECT_GT(row[rate], 0.0);
  }
  EXPECT_EQ(bench["results"][0]["bytes"], 9984);  // whole cache lines for each rank
  expect_error(onefold({"bench", "comm", "--sizes", "many"}), 1, {"--sizes", "many"});
  expect_error(onefold({"bench", "comm", "--sizes", "0"}), 1, {"--sizes"});
}

TEST_F(Cli, BenchMeasuresTheHostsAdamWAgainstALoop) {
  for (const char* precision : {"fp32", "bf16"}) {
    const Outcome outcome = onefold({"bench", "adamw", "--elems", "300001", "--threads", "2",
                                     "--repeats", "2", "--precision", precision, "--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const Json bench = Json::parse(outcome.out);
    expect_keys(bench, {"elems", "precision", "threads", "seconds", "stream_seconds", "gb_per_s",
                        "stream_gb_per_s", "stream_fraction", "memory_gb_per_s"});
    EXPECT_EQ(bench["elems"], 300001);
    EXPECT_EQ(bench["precision"], precision);
    EXPECT_EQ(bench["seconds"].size(), 2u);
    EXPECT_GT(bench["stream_fraction"], 0.0);
  }
  expect_error(onefold({"bench", "adamw", "--precision", "fp8"}), 1, {"--precision fp8", "bf16"});
}

TEST_F(Cli, BenchMeasuresTheDiskTier) {
  const Outcome outcome = onefold(
      {"bench", "disk", ".", "--bytes", "5MiB", "--piece", "2MiB", "--repeats", "2", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json bench = Json::parse(outcome.out);
  expect_keys(bench, {"bytes", "piece_bytes", "how", "write_gb_per_s", "read_gb_per_s",
                      "writes_gb_per_s", "reads_gb_per_s"});
  EXPECT_EQ(bench["bytes"], 4 << 20);  // whole pieces
  EXPECT_EQ(bench["reads_gb_per_s"].size(), 2u);
  EXPECT_GT(bench["write_gb_per_s"], 0.0);
  expect_error(onefold({"bench", "disk", ".", "--piece", "1000"}), 1, {"--piece", "4096"});
  expect_error(onefold({"bench", "disk", ".", "--bytes", "1MiB"}), 1, {"--bytes", "64MiB"});
}

TEST_F(Cli, BenchMeasuresWireFormatsAgainstPlainReadsAndWrites) {
  const Outcome outcome = onefold({"bench", "wire", "--size", "100KB", "--threads", "2",
                                   "--repeats", "2", "--stochastic", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json bench = Json::parse(outcome.out);
  expect_keys(bench, {"bytes", "threads", "results"});
  EXPECT_EQ(bench["bytes"], 100000);
  ASSERT_EQ(bench["results"].size(), 11u);
  for (const Json& row : bench["results"]) {
    expect_keys(row, {"format", "packet_bytes", "pack", "pack_and_keep", "unpack"});
    for (const char* what : {"pack", "pack_and_keep", "unpack"}) {
      expect_keys(row[what], {"seconds", "plain_seconds", "gb_per_s", "plain_fraction"});
      EXPECT_EQ(row[what]["seconds"].size(), 2u);
      EXPECT_GT(row[what]["plain_fraction"], 0.0);
    }
  }
  EXPECT_EQ(bench["results"][0]["packet_bytes"], 50000);  // bf16
  expect_error(onefold({"bench", "wire", "--device", "cuda", "--threads", "2"}), 1,
               {"--threads has no effect with --device cuda"});
  expect_error(onefold({"bench", "wire", "--size", "0"}), 1, {"--size"});
  expect_error(onefold({"bench", "wire", "--density", "2"}), 1, {"--density", "share"});
}

}  // namespace
}  // namespace onefold
