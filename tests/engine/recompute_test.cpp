// What is recomputed, by policy: the same bits, as planned, and less held.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/ranks.h"
#include "plan/recompute.h"

namespace onefold {
namespace {

using test::expect_same_bits;
using test::RankRun;
using test::train_on_ranks;

constexpr int kAll = Recompute::kAll;

ModelSpec deep(const std::string& preset, int64_t layers) {
  ModelSpec spec = spec_from_preset(preset, "test");
  if (spec.vocab_size == 0) spec.vocab_size = 101;
  spec.num_layers = layers;
  spec.dropout = 0.1f;
  return spec;
}

EngineOptions options_by(const Recompute& policy, int stage = 0) {
  EngineOptions options{.threads = 1, .micro_batch = 1, .sequence = 11, .micros = 2};
  options.recompute = policy;
  options.zero.stage = stage;
  options.zero.persistence_elems = 0;
  return options;
}

const Recompute kPolicies[] = {true,
                               Recompute::blocks(2),
                               {kAll, 0},
                               {0, kAll},
                               {1, 3},
                               Recompute::in_segments(1),
                               {3, 3},
                               Recompute::in_segments(3),
                               Recompute::in_segments(100)};

TEST(Recomputation, EveryPolicyHasTheBitsOfNoneAndThePlannedPeak) {
  constexpr int kRanks = 2;
  for (const char* preset : {"gpt2-tiny", "llama-tiny", "gemma-tiny", "gptj-tiny", "bloom-tiny"}) {
    const ModelSpec spec = deep(preset, 4);
    const RankRun reference = train_on_ranks(spec, options_by({}), kRanks, 2);
    for (const Recompute& policy : kPolicies)
      for (const int stage : {0, 3})
        for (const Order order : {Order::micro_first, Order::unit_first}) {
          SCOPED_TRACE(fmt::format("{} stage {} {}: {} {} {} {}", preset, stage, order_name(order),
                                   policy.attention, policy.mlp, policy.joined, policy.every));
          EngineOptions options = options_by(policy, stage);
          options.order = order;
          const RankRun run = train_on_ranks(spec, options, kRanks, 2);
          EXPECT_EQ(run.losses, reference.losses);
          expect_same_bits(run.weights, reference.weights);
          const auto plan = Engine::plan(spec, options, kRanks, 0, test::this_processor());
          for (const int64_t peak : run.peaks) EXPECT_EQ(plan->ledger().peak_bytes(), peak);
        }
  }
}

// Where layers below are frozen, backward ends inside a segment.
TEST(Recomputation, OfFrozenUnitsHasTheSameBits) {
  const ModelSpec spec = deep("gpt2-tiny", 4);
  for (const char* frozen : {"block.1", "block.2.attention"}) {
    EngineOptions plain = options_by({});
    plain.frozen = {"embedding", "block.0", frozen};
    const RankRun reference = train_on_ranks(spec, plain, 1, 2);
    for (const Recompute& policy : kPolicies) {
      EngineOptions options = plain;
      options.recompute = policy;
      expect_same_bits(train_on_ranks(spec, options, 1, 2).weights, reference.weights);
    }
  }
}

int64_t activations(const ModelSpec& spec, const Recompute& policy) {
  EngineOptions options = options_by(policy);
  options.sequence = 64;
  return Engine::plan(spec, options)->ledger().peak_bytes(Kind::activations);
}

TEST(Recomputation, HoldsLessTheMoreIsRecomputed) {
  const ModelSpec spec = deep("gpt2-tiny", 8);
  int64_t before = activations(spec, {});
  for (int count = 1; count <= 8; ++count) {
    const int64_t now = activations(spec, Recompute::blocks(count));
    EXPECT_LT(now, before) << count;
    before = now;
  }
  EXPECT_LT(activations(spec, {kAll, 0}), activations(spec, {}));
  EXPECT_LT(activations(spec, {0, kAll}), activations(spec, {}));
  EXPECT_LT(activations(spec, {kAll, kAll}), activations(spec, {0, kAll}));
}

// Four times the depth: twice the activations.
TEST(Recomputation, SegmentsOfTheSquareRootGrowWithTheSquareRoot) {
  const auto held = [](int64_t layers, int units) {
    return static_cast<double>(
        activations(deep("gpt2-tiny", layers), Recompute::in_segments(units)));
  };
  const double at16 = held(16, 6), at64 = held(64, 12), at256 = held(256, 23);
  EXPECT_LT(at64 / at16, 2.3);
  EXPECT_LT(at256 / at64, 2.3);
  EXPECT_GT(held(256, 1) / held(64, 1), 3.5) << "each unit by itself grows with the depth";
}

// Every policy that there is for a model of so few blocks.
std::vector<Recompute> all_policies(int blocks) {
  std::vector<Recompute> all;
  for (int attentions = 0; attentions <= blocks; ++attentions)
    for (int mlps = 0; mlps <= blocks; ++mlps) all.push_back({attentions, mlps});
  for (int count = 1; count <= blocks; ++count) all.push_back(Recompute::blocks(count));
  for (int units = 1; units <= 2 * blocks; ++units) all.push_back(Recompute::in_segments(units));
  return all;
}

TEST(LeastRecomputation, FitsAndTakesNoMoreTimeThanABruteForceSearch) {
  constexpr int kBlocks = 5, kLimits = 10;
  for (const char* preset : {"gpt2-tiny", "llama-tiny"}) {
    const ModelSpec spec = deep(preset, kBlocks);
    EngineOptions options = options_by({});
    options.sequence = 96;
    const FitContext context;
    std::vector<Planned> plans;
    for (const Recompute& policy : all_policies(kBlocks)) {
      options.recompute = policy;
      plans.push_back(planned(spec, options, context));
    }
    const auto [least, most] = std::minmax_element(
        plans.begin(), plans.end(),
        [](const Planned& a, const Planned& b) { return a.peak_bytes < b.peak_bytes; });
    for (int i = 0; i < kLimits; ++i) {
      const int64_t limit =
          least->peak_bytes + (most->peak_bytes - least->peak_bytes) * i / (kLimits - 1);
      SCOPED_TRACE(fmt::format("{}, {} bytes", preset, limit));
      double fastest = 1e30;
      for (const Planned& plan : plans)
        if (plan.peak_bytes <= limit) fastest = std::min(fastest, plan.seconds);
      options.recompute = least_recompute(spec, options, context, limit);
      const Planned found = planned(spec, options, context);
      EXPECT_LE(found.peak_bytes, limit);
      EXPECT_LE(found.seconds, fastest * (1 + 1e-9));
    }
  }
}

TEST(LeastRecomputation, IsNoneWhereAllFitsAndTheLowestPeakWhereNothingDoes) {
  const ModelSpec spec = deep("gpt2-tiny", 4);
  EXPECT_FALSE(least_recompute(spec, options_by({}), {}, int64_t{1} << 40).any());
  EngineOptions options = options_by({});
  options.recompute = least_recompute(spec, options, {}, 1);
  EXPECT_TRUE(options.recompute.any());
  EXPECT_LE(planned(spec, options, {}).peak_bytes, planned(spec, options_by(true), {}).peak_bytes);
}

// Long sequences make attention dear; wide MLPs keep much.
TEST(SelectiveRecomputation, TakesWhatGivesMoreMemoryForItsTime) {
  ModelSpec spec = deep("gpt2-tiny", 4);
  EngineOptions options = options_by({});
  options.sequence = 64;
  spec.intermediate_size = 64 * spec.hidden_size;
  const Recompute wide = selective_recompute(spec, options);
  EXPECT_TRUE(wide == Recompute(0, kAll) || wide == Recompute(kAll, 0));
  const auto gain = [&](const Recompute& policy) {
    options.recompute = {};
    const Planned none = planned(spec, options, {});
    options.recompute = policy;
    const Planned one = planned(spec, options, {});
    return static_cast<double>(none.peak_bytes - one.peak_bytes) / (one.seconds - none.seconds);
  };
  options.micros = 1;
  EXPECT_GE(gain(wide), gain(wide.mlp > 0 ? Recompute(kAll, 0) : Recompute(0, kAll)));
}

}  // namespace
}  // namespace onefold
