// 1-bit LAMB: momentum in one bit, and ratios of norms that stay, with all that a run may do beside
// it. ONEFOLD_TEST_DEVICE=cuda:0 runs it on a card.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/ranks.h"

namespace onefold {
namespace {

using test::expect_same_bits;
using test::RankRun;
using test::train_on_ranks;

ModelSpec lamb_model() {
  ModelSpec spec = spec_from_preset("gpt2-tiny", "test");
  spec.vocab_size = 101;
  return spec;
}

// Two steps of warm-up.
EngineOptions lamb_options(int stage, const FrozenTrust& trust = {}) {
  EngineOptions options{.device = test::test_device_name(),
                        .threads = 1,
                        .micro_batch = 1,
                        .sequence = 11,
                        .clipping = 1.0};
  options.zero.stage = stage;
  options.zero.persistence_elems = 0;
  options.optimizer = {.type = OptimizerSpec::Type::lamb,
                       .beta2 = 0.95,
                       .eps = 1e-6,
                       .weight_decay = 0.1,
                       .bias_correction = false,
                       .freeze_step = 2,
                       .frozen_trust = trust};
  options.compression.gradients = {.type = WireFormat::Type::sign, .block = 4096};
  options.compression.whole_steps = 2;
  options.compression.corrects_momentum = true;
  options.compression.correction = {.momentum = 0.9f, .share = 0.1f, .masks = false};
  return options;
}

TEST(OneBitLamb, HasTheSameBitsAtEveryStageAndInEveryBucketAsPlanned) {
  constexpr int kSteps = 5;
  for (const auto& [ranks, inside] : {std::pair{3, 1}, {4, 2}}) {
    EngineOptions options = lamb_options(0);
    options.compression.host_ranks = inside;
    const RankRun reference = train_on_ranks(lamb_model(), options, ranks, kSteps);
    for (const int stage : {0, 1, 2, 3})
      for (const int64_t bucket : {0, 1 << 30}) {
        SCOPED_TRACE(fmt::format("{} ranks, stage {}, buckets of {}", ranks, stage, bucket));
        options.zero.stage = stage;
        options.zero.reduce_bucket_elems = bucket;
        options.zero.overlap = bucket > 0;
        const RankRun run = train_on_ranks(lamb_model(), options, ranks, kSteps);
        EXPECT_EQ(run.losses, reference.losses);
        EXPECT_EQ(run.norms, reference.norms);
        expect_same_bits(run.weights, reference.weights);
        test::expect_planned(lamb_model(), options, ranks, run, test::test_hardware());
      }
  }
}

// Whoever copies the state behind the run has all of it before the end of the warm-up changes it.
TEST(OneBitLamb, IsAnnouncedBeforeMomentumBecomesTheRanksOwn) {
  if (test::test_device_name() != "cpu") GTEST_SKIP() << "what it looks at is the host's memory";
  constexpr int kWarmup = 2;
  test::on_ranks(2, [&](int, std::shared_ptr<Communicator> communicator) {
    EngineOptions options = lamb_options(1);
    Engine* engine = nullptr;
    bool announced = false, unchanged = true;
    options.before_action = [&](const Action& action) {
      if (announced || action.verb != Verb::step || engine->steps_done() < kWarmup) return;
      announced = true;
      const RankState& state = std::as_const(*engine).state();
      EXPECT_EQ(action.unit, state.units() - 1);
      for (int u = 0; u < state.units(); ++u) {
        const UnitState& own = state.unit(u);
        for (size_t p = 0; p < own.layout().params().size(); ++p)
          unchanged = unchanged && own.momentum_scale(engine->device(), static_cast<int>(p)) == 1;
        for (const float value : floats_of(own.own_state(1))) unchanged = unchanged && value == 0;
      }
    };
    Engine trained(lamb_model(), options, std::move(communicator));
    engine = &trained;
    for (int step = 0; step <= kWarmup; ++step) test::train_step(trained);
    EXPECT_TRUE(announced);
    EXPECT_TRUE(unchanged);
    EXPECT_NE(std::as_const(trained).state().unit(0).momentum_scale(trained.device(), 0), 1);
  });
}

// With bf16 weights and gradients, and states in the host's memory.
TEST(OneBitLamb, HasTheSameBitsInMixedPrecisionAndWithStatesElsewhere) {
  EngineOptions options = lamb_options(0);
  options.precision = {.compute = DType::bf16, .gradients = DType::bf16};
  const RankRun reference = train_on_ranks(lamb_model(), options, 2, 5);
  for (const int stage : {0, 2})
    for (const Tier tier : {Tier::device, Tier::host}) {
      options.zero.stage = stage;
      options.offload.optimizer = tier;
      expect_same_bits(train_on_ranks(lamb_model(), options, 2, 5).weights, reference.weights);
    }
}

// The first step after the warm-up has the factor 1 within the threshold; every constant has its
// effect within a few more.
TEST(OneBitLamb, EveryConstantCounts) {
  constexpr int kSteps = 6;
  const auto weights = [](const std::optional<FrozenTrust>& trust) {
    EngineOptions options = lamb_options(1);
    options.optimizer.frozen_trust = trust;
    return train_on_ranks(lamb_model(), options, 2, kSteps).weights;
  };
  const auto usual = weights(FrozenTrust{});
  EXPECT_NE(weights(std::nullopt), usual);
  EXPECT_NE(weights(FrozenTrust{.beta = 0.5}), usual);
  EXPECT_NE(weights(FrozenTrust{.least = 1.3}), usual);
  EXPECT_NE(weights(FrozenTrust{.most = 1.05}), usual);
  EXPECT_NE(weights(FrozenTrust{.threshold = 0.01}), usual);
  EXPECT_EQ(weights(FrozenTrust{.most = 5}), usual);  // which no factor reaches in four steps
}

}  // namespace
}  // namespace onefold
