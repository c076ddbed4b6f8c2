// The clock of plans against published figures: Table 1 of "Efficient Large-Scale Language Model
// Training on GPU Clusters Using Megatron-LM" (Narayanan et al., SC21), GPTs of 1.7 to 1008 billion
// parameters on up to 3072 A100. docs/parallel.md has the table with the errors.
#include <gtest/gtest.h>

#include <cstdlib>

#include "run/plan.h"

namespace onefold {
namespace {

struct Row {
  double billions;  // of parameters
  int64_t heads, hidden, layers;
  int tensor, pipeline, ranks;
  int64_t batch;  // sequences
  double tflops;  // of each card, as published
  // Not published: sequences of a micro-batch and stages of a rank.
  int64_t micro_batch;
  int interleave;
  double predicted;  // TFLOP/s, as docs/parallel.md says
};

constexpr Row kRows[] = {
    {1.7, 24, 2304, 24, 1, 1, 32, 512, 137, 16, 1, 149.4},
    {3.6, 32, 3072, 30, 2, 1, 64, 512, 138, 16, 1, 149.6},
    {7.5, 32, 4096, 36, 4, 1, 128, 512, 142, 16, 1, 150.1},
    {18.4, 48, 6144, 40, 8, 1, 256, 1024, 135, 8, 1, 145.2},
    {39.1, 64, 8192, 48, 8, 2, 512, 1536, 138, 4, 2, 147.6},
    {76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140, 2, 3, 147.8},
    {145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148, 2, 2, 146.4},
    {310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155, 1, 2, 149.1},
    {529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163, 1, 3, 148.6},
    {1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163, 1, 2, 151.3},
};
constexpr int64_t kSequence = 2048, kVocabulary = 51200;

// Selene: nodes of eight A100 of 80 GB with NVLink between them, and a link of 200 Gbit/s for each
// to the other nodes.
//
// Attention was made of separate kernels, which wrote the probabilities: for each of them forward
// moves 13 bytes (product, softmax, dropout with its mask, product) and backward 19, beside four
// and eight products' operations for each element of a head. The clock counts two and five over the
// causal half; forward comes twice.
Hardware selene(const Row& row) {
  Hardware hardware = hardware_named("a100");
  hardware.host_ranks = 8;
  hardware.between_hosts_gb_per_s = 25;
  const double dim = static_cast<double>(row.hidden / row.heads),
               rate = 1e9 * hardware.half_product_gflops,
               seconds = 16 * dim / (rate * hardware.product_share) +
                         (2 * 13 + 19) / (1e9 * hardware.memory_gb_per_s);
  hardware.half_attention_share = 9 * dim / seconds / rate;
  return hardware;
}

ModelSpec model_of(const Row& row) {
  ModelSpec spec = spec_from_preset("gpt2", "test");
  spec.vocab_size = kVocabulary;
  spec.num_layers = row.layers;
  spec.hidden_size = row.hidden;
  spec.num_heads = spec.num_kv_heads = row.heads;
  spec.head_dim = row.hidden / row.heads;
  spec.intermediate_size = 4 * row.hidden;
  spec.max_sequence_length = kSequence;
  spec.dropout = 0.1f;
  return spec;
}

// Parameters and optimizer whole along the data axis, every layer computed again, and sums of
// gradients behind the step's computation, as Megatron-LM did.
EngineOptions options_of(const Row& row) {
  const int64_t data = row.ranks / row.tensor / row.pipeline;
  EngineOptions options{
      .tensor = row.tensor, .micro_batch = row.micro_batch, .sequence = kSequence};
  options.micros = static_cast<int>(row.batch / data / row.micro_batch);
  options.recompute = true;
  options.precision.compute = options.precision.gradients = DType::f16;
  options.zero.overlap = false;
  options.pipeline.ranks = row.pipeline;
  options.pipeline.interleave = row.interleave;
  if (row.pipeline == 1) return options;
  const int stages = row.pipeline * row.interleave;
  options.pipeline.units.assign(static_cast<size_t>(stages),
                                static_cast<int>(2 * row.layers / stages));
  ++options.pipeline.units.front();
  ++options.pipeline.units.back();
  return options;
}

// The paper's count, which has the recomputed forward.
double flops_of(const Row& row) {
  const auto l = static_cast<double>(row.layers), h = static_cast<double>(row.hidden),
             s = static_cast<double>(kSequence);
  return 96 * static_cast<double>(row.batch) * s * l * h * h *
         (1 + s / (6 * h) + static_cast<double>(kVocabulary) / (16 * l * h));
}

// Those of one or two stages; with ONEFOLD_SLOW_TESTS, all.
TEST(PublishedSpeeds, AreThoseOfThePlansWithinWhatTheDocumentationSays) {
  const bool all = std::getenv("ONEFOLD_SLOW_TESTS") != nullptr;
  for (const Row& row : kRows) {
    if (row.pipeline > 2 && !all) continue;
    const RankPlan plan =
        plan_rank(model_of(row), options_of(row), row.ranks, 0, selene(row), true);
    const double tflops = flops_of(row) / plan.predicted->seconds / row.ranks * 1e-12;
    EXPECT_NEAR(tflops, row.predicted, 0.5) << row.billions;
    EXPECT_NEAR(tflops, row.tflops, 0.15 * row.tflops) << row.billions;
  }
}

}  // namespace
}  // namespace onefold
