// What travels beside computation hides, in virtual time.
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

// ---- Rows to the holders of their experts, and back

constexpr int64_t kInner = 512, kShared = 1024;
constexpr int kMixtures = 3;

// Two holders of two experts each. With a capacity of even shares a block has as many rows as there
// are tokens, and so a holder twice as many.
Prediction predicted_dispatch(bool overlap, bool shared, double gb_per_s) {
  ModelSpec spec = spec_from_preset("mixtral-tiny", "test");
  spec.vocab_size = 1024;
  spec.num_layers = kMixtures;
  spec.hidden_size = kHidden;
  spec.num_heads = spec.num_kv_heads = 16;
  spec.head_dim = 64;
  spec.max_sequence_length = kTokens;
  spec.experts.count = 4;
  spec.experts.per_token = 2;
  spec.experts.intermediate_size = kInner;
  spec.experts.capacity_factor = 1;
  spec.experts.shared_intermediate_size = shared ? kShared : 0;
  EngineOptions options{.device = "cuda", .expert = 2};
  options.sequence = kTokens;
  options.zero.overlap = overlap;
  const auto dry = Engine::plan(spec, options, 2, 0, links_of(gb_per_s));
  return predict(*dry, "test");
}

// Of products with so many terms for each token; there are twice as many rows as tokens.
double product_seconds(int64_t tokens, int64_t terms) {
  return 2.0 * static_cast<double>(tokens * terms) / 1e14;
}

struct Hidden {
  Prediction in_order, beside;
  // Seconds: of one exchange of rows; and of all of gradients of what every holder has, which are
  // in the order of computation.
  double exchange, of_gradients;
  double waited() const { return exchanges_of(beside).exposed - of_gradients; }
  // Apart from what gathers and reductions hide by the same key.
  void expect_shorter_by_what_is_hidden() const {
    EXPECT_NEAR(exchanges_of(in_order).exposed, 4 * kMixtures * exchange + of_gradients,
                0.01 * exchange);
    EXPECT_NEAR(exchanges_of(beside).busy, exchanges_of(in_order).busy, 0.01 * exchange);
    EXPECT_NEAR(in_order.seconds - in_order.exposed(), beside.seconds - beside.exposed(),
                0.01 * exchange);
  }
};

Hidden hidden_over(double gb_per_s, bool shared) {
  const int64_t dense = kHidden * (1 + 4 + (shared ? 3 * kShared : 0));  // norm, router
  const double rate = gb_per_s * 1e9;
  return {predicted_dispatch(false, shared, gb_per_s), predicted_dispatch(true, shared, gb_per_s),
          static_cast<double>(kTokens * (4 * kHidden + 8)) / rate,
          static_cast<double>(kMixtures * dense * 4) / rate};
}

// Over a link on which an exchange takes less than half of the shared expert's forward.
TEST(OverlapTime, DispatchHidesWhereTheSharedExpertTakesAsLong) {
  const Hidden hidden = hidden_over(400, true);
  hidden.expect_shorter_by_what_is_hidden();
  EXPECT_GT(product_seconds(kTokens, kHidden * kShared), hidden.exchange);
  EXPECT_NEAR(hidden.waited(), 0, 0.01 * hidden.exchange);
}

// Where exchanges take longer, what is computed beside each is what is hidden: the products of the
// shared expert in forward, their gradients, and the gradients of the experts' weights.
TEST(OverlapTime, DispatchOverSlowLinksHidesWhatIsBesideIt) {
  const double up = product_seconds(kTokens, 2 * kHidden * kShared),
               down = product_seconds(kTokens, kHidden * kShared), of_shared = 2 * down + up,
               weights = product_seconds(2 * kTokens, 3 * kHidden * kInner);
  for (const bool shared : {true, false}) {
    const Hidden hidden = hidden_over(10, shared);
    EXPECT_GT(hidden.exchange, of_shared);
    hidden.expect_shorter_by_what_is_hidden();
    const double each = weights + (shared ? up + down + of_shared : 0);
    EXPECT_NEAR(4 * kMixtures * hidden.exchange - hidden.waited(), kMixtures * each,
                0.01 * kMixtures * each)
        << shared;
  }
}

// ---- Keys and values around a ring

constexpr int kParts = 4;

// `attention_share`: of the rate of products; a large one makes attention take no time.
Prediction predicted_parts(ContextMethod method, bool overlap, double gb_per_s,
                           double attention_share) {
  ModelSpec spec = spec_from_preset("llama-tiny", "test");
  spec.vocab_size = 1024;
  spec.num_layers = kLayers;
  spec.hidden_size = kHidden;
  spec.num_heads = spec.num_kv_heads = 16;
  spec.head_dim = 64;
  spec.max_sequence_length = kParts * kTokens;
  EngineOptions options{.device = "cuda", .context = kParts};
  options.context_method = method;
  options.sequence = kParts * kTokens;
  options.zero.overlap = overlap;
  Hardware hardware = links_of(gb_per_s);
  hardware.attention_share = attention_share;
  const auto dry = Engine::plan(spec, options, kParts, 0, hardware);
  return predict(*dry, "test");
}

Prediction predicted_ring(bool overlap, double gb_per_s, double attention_share) {
  return predicted_parts(ContextMethod::ring, overlap, gb_per_s, attention_share);
}

double turn_seconds(double gb_per_s) {
  return static_cast<double>(kTokens * 2 * kHidden * 4) / (gb_per_s * 1e9);
}

// Of 3C - 2 there is one that nothing is computed beside: the last, with gradients on their way
// home.
TEST(OverlapTime, RingsHideAllTurnsButTheLastWhereAttentionTakesAsLong) {
  constexpr double kLink = 400;
  const double turn = turn_seconds(kLink);
  const Prediction in_order = predicted_ring(false, kLink, 1),
                   beside = predicted_ring(true, kLink, 1);
  EXPECT_NEAR(exchanges_of(in_order).exposed, kLayers * (3 * kParts - 2) * turn, 0.01 * turn);
  EXPECT_NEAR(exchanges_of(beside).busy, exchanges_of(in_order).busy, 0.01 * turn);
  EXPECT_NEAR(exchanges_of(beside).exposed, kLayers * turn, 0.01 * turn);
  EXPECT_NEAR(in_order.seconds - in_order.exposed(), beside.seconds - beside.exposed(),
              0.01 * turn);
}

// Where turns take longer, attention is hidden: all steps but the last of forward.
TEST(OverlapTime, RingsOverSlowLinksHideAttention) {
  constexpr double kLink = 2;
  const Prediction in_order = predicted_ring(false, kLink, 1);
  const double attention = in_order.seconds - predicted_ring(false, kLink, 1e6).seconds,
               hidden = exchanges_of(in_order).exposed -
                        exchanges_of(predicted_ring(true, kLink, 1)).exposed;
  EXPECT_LT(attention, kLayers * kParts * turn_seconds(kLink));
  EXPECT_GT(hidden, 0.99 * attention * (kParts - 1) / kParts);
  EXPECT_LT(hidden, attention);
}

// Of the four exchanges of tokens for heads the last, of the gradients of queries, keys and values,
// travels beside the gradient of out's weights.
TEST(OverlapTime, HeadsHideWhatTheGradientOfOutsWeightsTakes) {
  for (const double gb_per_s : {400.0, 10.0}) {
    const Prediction in_order = predicted_parts(ContextMethod::ulysses, false, gb_per_s, 1),
                     beside = predicted_parts(ContextMethod::ulysses, true, gb_per_s, 1);
    const double weights = product_seconds(kTokens, kHidden * kHidden),
                 last = 3.0 * kTokens * kHidden * 4 * (kParts - 1) / kParts / (gb_per_s * 1e9);
    EXPECT_NEAR(exchanges_of(in_order).exposed, kLayers * 8 * last / 3, 0.01 * last);
    EXPECT_NEAR(exchanges_of(in_order).exposed - exchanges_of(beside).exposed,
                kLayers * std::min(weights, last), 0.01 * kLayers * weights);
    EXPECT_NEAR(in_order.seconds - in_order.exposed(), beside.seconds - beside.exposed(),
                0.01 * weights);
  }
}

}  // namespace
}  // namespace onefold
