// What sums that travel beside computation hide, in virtual time.
#include <gtest/gtest.h>

#include "run/prediction.h"

namespace onefold {
namespace {

Prediction::LaneTime exchanges_of(const Prediction& prediction) {
  for (const Prediction::LaneTime& one : prediction.lanes)
    if (one.lane == Lane::exchange) return one;
  return {};
}

// Nothing takes time but products and messages.
Hardware links_of(double gb_per_s) {
  Hardware hardware = hardware_named("a100");
  hardware.half_product_gflops = 0;
  hardware.product_gflops = 1e5;
  hardware.product_share = 1;
  hardware.attention_share = 1e3;
  hardware.memory_gb_per_s = 1e6;
  hardware.function_gelems_per_s = 1e9;
  hardware.kernel_latency_us = 0;
  hardware.link_latency_us = 0;
  hardware.link_gb_per_s = gb_per_s;
  return hardware;
}

constexpr int64_t kTokens = 2048, kHidden = 1024, kLayers = 6;

Prediction predicted(int chunks, double gb_per_s) {
  ModelSpec spec = spec_from_preset("gpt2", "test");
  spec.vocab_size = 1024;
  spec.num_layers = kLayers;
  spec.hidden_size = kHidden;
  spec.num_heads = spec.num_kv_heads = 16;
  spec.head_dim = 64;
  spec.intermediate_size = 4 * kHidden;
  spec.dropout = 0;
  spec.max_sequence_length = kTokens;
  EngineOptions options{.device = "cuda", .tensor = 2, .overlap_chunks = chunks};
  options.sequence = kTokens;
  const auto dry = Engine::plan(spec, options, 2, 0, links_of(gb_per_s));
  return predict(*dry, "test");
}

// A sum of s seconds in K runs is hidden but for its last, if products are as long: in forward s/K
// are waited for; in backward nothing, because gradients of weights come behind. Beside these
// there are the sums of the embedding and the head, once each, and small ones.
TEST(OverlapTime, HidesAllButTheLastRunWhereProductsAreAsLong) {
  constexpr double kLink = 400;
  const double sum = 2 * kTokens * kHidden * 4 / 2 / (kLink * 1e9);
  const Prediction in_order = predicted(1, kLink);
  const double others = exchanges_of(in_order).exposed - 4 * kLayers * sum;
  EXPECT_NEAR(exchanges_of(in_order).busy, exchanges_of(in_order).exposed, 1e-9);
  EXPECT_GT(others, 2 * sum);
  EXPECT_LT(others, 3 * sum);
  for (const int chunks : {2, 4, 8}) {
    const Prediction beside = predicted(chunks, kLink);
    const double waited = 2 * kLayers * sum / chunks;
    EXPECT_NEAR(exchanges_of(beside).busy, exchanges_of(in_order).busy, 0.01 * sum) << chunks;
    EXPECT_NEAR(exchanges_of(beside).exposed, others + waited, 0.02 * kLayers * sum) << chunks;
    EXPECT_NEAR(beside.seconds, in_order.seconds - 4 * kLayers * sum + waited, 0.05 * kLayers * sum)
        << chunks;
  }
}

// Where messages take longer than what they travel beside, that is what is hidden.
TEST(OverlapTime, OverSlowLinksHidesTheProducts) {
  constexpr double kLink = 5;
  const double sum = 2 * kTokens * kHidden * 4 / 2 / (kLink * 1e9);
  const Prediction in_order = predicted(1, kLink), beside = predicted(4, kLink);
  const double hidden = in_order.seconds - beside.seconds;
  EXPECT_GT(hidden, 0);
  EXPECT_LT(hidden, kLayers * sum);
  // The last projections' and inputs' products but for the first run, and gradients of weights.
  const double flops = 2.0 * kTokens * kHidden * kHidden / 2,  // of a square half
      layer = 0.75 * (1 + 4) * flops + 0.75 * (3 + 4) * flops + (3 + 4) * flops;
  EXPECT_NEAR(hidden, kLayers * layer / 1e14, 0.03 * hidden);
}

}  // namespace
}  // namespace onefold
