// What the machine is and measures.
#include "cli/support.h"

namespace onefold {
namespace {

TEST_F(Cli, InfoDescribesTheMachine) {
  const Outcome outcome = onefold({"info", "--json", "--threads", "1"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json info = Json::parse(outcome.out);
  expect_keys(info, {"version", "cpu", "cores", "threads", "simd", "memory_bytes",
                     "available_bytes", "gpus", "cuda", "mpi", "gemm_gflops", "memory_gb_per_s"});
  EXPECT_EQ(info["version"], ONEFOLD_VERSION);
  EXPECT_EQ(info["threads"], 1);
  EXPECT_GE(info["memory_bytes"], info["available_bytes"]);
  for (const char* rate : {"gemm_gflops", "memory_gb_per_s"}) EXPECT_GT(info[rate], 0.0);
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
                          "gemm_fraction",
                          "peak_rss_bytes",
                          "baseline_rss_bytes",
                          "ledger_peak_bytes",
                          "ledger_activation_bytes",
                          "ledger_workspace_bytes"})
    EXPECT_TRUE(bench.contains(key)) << key;
  EXPECT_EQ(bench["step_seconds"].size(), 1u);
  expect_error(onefold({"bench", "step", "--model", "gtp2"}), 1, {"--model", "\"gtp2\"", "gpt2"});
}

}  // namespace
}  // namespace onefold
