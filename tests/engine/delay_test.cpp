// Gradients that are applied a step late: what they do, at every stage and tier, as planned.
#include <gtest/gtest.h>

#include "engine/ranks.h"
#include "model/zoo.h"

namespace onefold {
namespace {

using test::expect_same_bits;
using test::RankRun;
using test::train_on_ranks;

ModelSpec delayed_model() {
  ModelSpec spec = spec_from_preset("llama-tiny", "test");
  if (spec.vocab_size == 0) spec.vocab_size = 101;
  return spec;
}

EngineOptions delayed_options(const OptimizerSpec& optimizer, bool delayed, int stage = 0) {
  EngineOptions options{.threads = 1, .micro_batch = 1, .sequence = 11, .clipping = 0.5};
  options.zero.stage = stage;
  options.zero.persistence_elems = 0;
  options.optimizer = optimizer;
  options.optimizer.delayed = delayed;
  return options;
}

struct NamedDelay {
  const char* name;
  OptimizerSpec spec;
};
std::vector<NamedDelay> delayed_optimizers() {
  return {{"adamw", {.weight_decay = 0.1}},
          {"sgd", {.type = OptimizerSpec::Type::sgd}},
          {"momentum", {.type = OptimizerSpec::Type::sgd, .momentum = 0.9, .nesterov = true}},
          {"lion", {.type = OptimizerSpec::Type::lion, .beta2 = 0.99}}};
}

// The first step changes nothing; the second applies its gradients, as a step without delay would.
TEST(DelayedSteps, ApplyTheGradientsOfTheStepBefore) {
  for (const NamedDelay& optimizer : delayed_optimizers()) {
    SCOPED_TRACE(optimizer.name);
    const auto run = [&](bool delayed, int steps) {
      return train_on_ranks(delayed_model(), delayed_options(optimizer.spec, delayed), 1, steps);
    };
    const RankRun plain = run(false, 1), late = run(true, 2);
    expect_same_bits(run(true, 1).weights, run(true, 0).weights);
    expect_same_bits(late.weights, plain.weights);
    EXPECT_NE(run(true, 3).weights, run(false, 2).weights);  // of gradients at older weights
  }
}

// As without delay for some steps, and then as from the beginning: the next changes nothing.
TEST(DelayedSteps, MayBeginLater) {
  for (const NamedDelay& optimizer : delayed_optimizers()) {
    SCOPED_TRACE(optimizer.name);
    const auto run = [&](bool delayed, int steps) {
      EngineOptions options = delayed_options(optimizer.spec, delayed);
      options.optimizer.delayed_after = 2;
      return train_on_ranks(delayed_model(), options, 2, steps).weights;
    };
    expect_same_bits(run(true, 2), run(false, 2));
    expect_same_bits(run(true, 3), run(false, 2));
    expect_same_bits(run(true, 4), run(false, 3));
    EXPECT_NE(run(true, 5), run(false, 4));
  }
}

// SGD without clipping in double, of gradients that the engine has kept.
TEST(DelayedSteps, FollowTheirRule) {
  constexpr int kSteps = 6;
  EngineOptions options = delayed_options({.type = OptimizerSpec::Type::sgd}, /*delayed=*/true);
  options.clipping = 0;
  options.keep_gradients = true;
  Engine engine(delayed_model(), options);
  std::map<std::string, std::vector<double>> expected, before;
  const auto collect = [&](auto& to, auto visit_all) {
    visit_all([&](const ParamSpec& param, std::span<const float> values) {
      to[param.name].assign(values.begin(), values.end());
    });
  };
  Channel& channel = engine.channel(Lane::gather);
  collect(expected, [&](auto visit) { engine.state().for_each_parameter(channel, visit); });
  for (int step = 0; step < kSteps; ++step) {
    test::train_step(engine);  // at a rate of 1e-3
    for (auto& [name, values] : before)
      for (size_t i = 0; i < values.size(); ++i) expected[name][i] -= 1e-3 * values[i];
    collect(before, [&](auto visit) { engine.state().for_each_gradient(channel, visit); });
    engine.state().for_each_parameter(
        channel, [&](const ParamSpec& param, std::span<const float> values) {
          for (size_t i = 0; i < values.size(); ++i)
            ASSERT_NEAR(values[i], expected[param.name][i], 1e-6) << param.name;
        });
  }
}

// SGD again: gradients are of weights that have gone on by twice their last step.
TEST(DelayedSteps, LookAheadByTheirRule) {
  constexpr int kSteps = 7;
  EngineOptions options = delayed_options({.type = OptimizerSpec::Type::sgd}, /*delayed=*/true);
  options.clipping = 0;
  options.keep_gradients = true;
  options.optimizer.lookahead = 2;
  options.optimizer.delayed_after = 1;
  Engine engine(delayed_model(), options);
  using Values = std::map<std::string, std::vector<double>>;
  Values exact, before, last;
  const auto collect = [&](Values& to, auto visit_all) {
    visit_all([&](const ParamSpec& param, std::span<const float> values) {
      to[param.name].assign(values.begin(), values.end());
    });
  };
  Channel& channel = engine.channel(Lane::gather);
  collect(exact, [&](auto visit) { engine.state().for_each_parameter(channel, visit); });
  for (int step = 1; step <= kSteps; ++step) {
    test::train_step(engine);  // at a rate of 1e-3
    Values now;
    collect(now, [&](auto visit) { engine.state().for_each_gradient(channel, visit); });
    for (auto& [name, values] : exact) {
      last[name].assign(values.size(), 0.0);
      const Values& applied = step == 1 ? now : before;
      for (size_t i = 0; i < values.size() && step != 2; ++i) {
        last[name][i] = -1e-3 * applied.at(name)[i];
        values[i] += last[name][i];
      }
    }
    before = now;
    double moved = 0;
    engine.state().for_each_parameter(
        channel, [&](const ParamSpec& param, std::span<const float> values) {
          for (size_t i = 0; i < values.size(); ++i) {
            const double ahead = step > 2 ? 2 * last[param.name][i] : 0;
            moved = std::max(moved, std::abs(ahead));
            ASSERT_NEAR(values[i], exact[param.name][i] + ahead, 1e-6) << param.name;
          }
        });
    EXPECT_EQ(moved > 1e-5, step > 2);
  }
}

TEST(DelayedSteps, HaveTheSameBitsAtEveryStageAndTierAsPlanned) {
  std::vector<NamedDelay> optimizers = delayed_optimizers();
  optimizers.push_back({"ahead", {.weight_decay = 0.1, .lookahead = 1.5}});
  for (const NamedDelay& optimizer : optimizers) {
    const RankRun reference =
        train_on_ranks(delayed_model(), delayed_options(optimizer.spec, true), 3, 4);
    for (const int stage : {0, 1, 2, 3})
      for (const Tier tier : {Tier::device, Tier::host}) {
        SCOPED_TRACE(fmt::format("{}, stage {}, {}", optimizer.name, stage,
                                 tier == Tier::host ? "host" : "device"));
        EngineOptions options = delayed_options(optimizer.spec, true, stage);
        options.offload.optimizer = options.offload.parameters = tier;
        const RankRun run = train_on_ranks(delayed_model(), options, 3, 4);
        EXPECT_EQ(run.losses, reference.losses);
        expect_same_bits(run.weights, reference.weights);
        test::expect_planned(delayed_model(), options, 3, run, this_machine(1));
      }
  }
}

TEST(DelayedSteps, HaveTheSameBitsAtEveryStageInLeanTypes) {
  for (const Precision& precision : {Precision{.compute = DType::bf16, .moments = DType::u8},
                                     Precision{DType::bf16, DType::bf16, false, DType::bf16}}) {
    EngineOptions options = delayed_options({.weight_decay = 0.1}, true);
    options.precision = precision;
    options.optimizer.lookahead = precision.has_master() ? 1.5 : 0;
    const RankRun reference = train_on_ranks(delayed_model(), options, 2, 4);
    options.zero.stage = 3;
    expect_same_bits(train_on_ranks(delayed_model(), options, 2, 4).weights, reference.weights);
  }
}

}  // namespace
}  // namespace onefold
