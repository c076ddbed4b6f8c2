// Training in 16 bits: the same bits at every stage, order and recomputation, as planned; close to
// fp32; overflowing steps change nothing.
#include <gtest/gtest.h>

#include <cmath>

#include "base/block8.h"
#include "engine/ranks.h"

namespace onefold {
namespace {

using test::expect_same_bits;
using test::RankRun;
using test::train_on_ranks;

struct Kept {
  const char* name;
  Precision precision;
  int64_t parameter_bytes, gradient_bytes, optimizer_bytes;  // of each parameter
};

const Kept kFp16 = {"fp16", {.compute = DType::f16}, 2, 4, 12};

const Kept kKept[] = {
    {"bf16", {.compute = DType::bf16}, 2, 4, 12},
    {"bf16_gradients", {.compute = DType::bf16, .gradients = DType::bf16}, 2, 2, 12},
    {"bf16_no_master", {DType::bf16, DType::bf16, false}, 2, 2, 8},
    {"bf16_states", {DType::bf16, DType::bf16, false, DType::bf16}, 2, 2, 4},
    {"bf16_moments", {DType::bf16, DType::bf16, true, DType::bf16}, 2, 2, 8},
    {"bits8", {DType::bf16, DType::bf16, false, DType::u8}, 2, 2, 2},
    kFp16,
};

ModelSpec tiny(const std::string& preset) {
  ModelSpec spec = spec_from_preset(preset, "test");
  if (spec.vocab_size == 0) spec.vocab_size = 101;
  spec.dropout = 0.1f;
  return spec;
}

EngineOptions options_for(const Kept& kept, int stage = 0) {
  EngineOptions options{
      .threads = 1, .micro_batch = 1, .sequence = 11, .micros = 2, .clipping = 1.0};
  options.zero.stage = stage;
  options.zero.persistence_elems = 0;
  options.precision = kept.precision;
  return options;
}

class InSixteenBits : public testing::TestWithParam<std::tuple<std::string, Kept>> {
 protected:
  ModelSpec spec() const { return tiny(std::get<0>(GetParam())); }
  const Kept& kept() const { return std::get<1>(GetParam()); }
};

TEST_P(InSixteenBits, StagesOrdersAndRecomputationGiveTheSameBitsAsPlanned) {
  constexpr int kRanks = 2;
  const RankRun reference = train_on_ranks(spec(), options_for(kept()), kRanks, 3);
  test::Combinations combinations;
  for (const int stage : {0, 1, 2, 3})
    for (const Order order : {Order::micro_first, Order::unit_first})
      for (const bool recompute : {false, true}) {
        if (!combinations.take()) continue;
        SCOPED_TRACE(
            fmt::format("stage {} {}{}", stage, order_name(order), recompute ? " recomputed" : ""));
        EngineOptions options = options_for(kept(), stage);
        options.order = order;
        options.recompute = recompute;
        const RankRun run = train_on_ranks(spec(), options, kRanks, 3);
        EXPECT_EQ(run.losses, reference.losses);
        expect_same_bits(run.weights, reference.weights);
        const auto plan = Engine::plan(spec(), options, kRanks, 0, test::this_processor());
        for (const int64_t peak : run.peaks) EXPECT_EQ(plan->ledger().peak_bytes(), peak);
      }
}

TEST_P(InSixteenBits, StateHasTheBytesOfItsTypes) {
  const EngineOptions options = options_for(kept());
  const Model model(spec());
  const std::vector<UnitTraits> units = unit_traits(model, options, 1);
  int64_t elems = 0;
  for (const UnitTraits& unit : units) elems += unit.elems;
  const StateBytes bytes = state_bytes(units, options, 1);
  EXPECT_EQ(bytes.parameters, kept().parameter_bytes * elems);
  EXPECT_EQ(bytes.gradients, kept().gradient_bytes * elems);
  const int64_t scales = kept().precision.moments == DType::u8 ? 2 * 4 * elems / kBlock8 : 0;
  EXPECT_EQ(bytes.optimizer, kept().optimizer_bytes * elems + scales);
  Engine engine(spec(), options);
  test::train(engine, 1);
  EXPECT_EQ(engine.ledger().peak_bytes(Kind::parameters), bytes.parameters);
  // Each slab of scales is booked in whole lines of memory.
  const int64_t lines =
      scales > 0 ? 2 * Ledger::kAlignment * static_cast<int64_t>(units.size()) : 0;
  EXPECT_GE(engine.ledger().peak_bytes(Kind::optimizer), bytes.optimizer);
  EXPECT_LE(engine.ledger().peak_bytes(Kind::optimizer), bytes.optimizer + lines);
}

// The loss of each step against fp32's: rounding to 8 bits of every activation, and no more.
TEST_P(InSixteenBits, LossesFollowThoseOfSingle) {
  EngineOptions single = options_for(kept());
  single.precision = {};
  const RankRun wide = train_on_ranks(spec(), single, 1, 12);
  const RankRun narrow = train_on_ranks(spec(), options_for(kept()), 1, 12);
  for (size_t step = 0; step < wide.losses.size(); ++step)
    EXPECT_NEAR(narrow.losses[step], wide.losses[step], 5e-3 * wide.losses[step]) << step;
}

INSTANTIATE_TEST_SUITE_P(Tiny, InSixteenBits,
                         testing::Combine(testing::Values("gpt2-tiny", "llama-tiny"),
                                          testing::ValuesIn(kKept)),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + "_" + std::get<1>(info.param).name;
                         });

EngineOptions scaled(int power) {
  EngineOptions options = options_for(kFp16);
  options.loss_scale = {.fixed = 0, .initial_power = power, .window = 3, .hysteresis = 1};
  options.skip_overflow = true;
  return options;
}

TEST(LossScaling, OverflowingStepsChangeNothingAndHalveTheScale) {
  Engine engine(tiny("gpt2-tiny"), scaled(30));  // far beyond what fp16 holds
  const test::Weights before = test::weights_of(engine);
  const StepResult first = test::train_step(engine);
  EXPECT_TRUE(first.skipped);
  EXPECT_EQ(first.loss_scale, std::ldexp(1.0, 30));
  expect_same_bits(test::weights_of(engine), before);
  EXPECT_EQ(engine.loss_scale().scale(), std::ldexp(1.0, 29));
  int skipped = 1;
  while (test::train_step(engine).skipped) ++skipped;
  EXPECT_EQ(engine.steps_done(), skipped + 1);
  EXPECT_EQ(engine.updates_done(), 1);
  EXPECT_EQ(engine.loss_scale().scale(), std::ldexp(1.0, 30 - skipped));
}

// A power of two scales and unscales exactly, as long as nothing leaves fp16's range.
TEST(LossScaling, APowerOfTwoLeavesNormsAndUpdatesAlmostAlone) {
  EngineOptions one = scaled(0), many = scaled(8);
  one.loss_scale.fixed = 64;
  many.loss_scale.fixed = 1024;
  Engine a(tiny("llama-tiny"), one), b(tiny("llama-tiny"), many);
  const StepResult x = test::train_step(a), y = test::train_step(b);
  EXPECT_FALSE(x.skipped || y.skipped);
  EXPECT_NEAR(x.gradient_norm, y.gradient_norm, 1e-3 * x.gradient_norm);
  EXPECT_EQ(x.loss, y.loss);
}

TEST(LossScaling, WithoutSkippingAnOverflowEndsTheRun) {
  EngineOptions options = scaled(30);
  options.skip_overflow = false;
  Engine engine(tiny("gpt2-tiny"), options);
  EXPECT_THROW(test::train_step(engine), DivergedError);
}

}  // namespace
}  // namespace onefold
