// Ranks that go on with old weights: who is how old, by their rule, with repeatable bits, as
// planned.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "engine/ranks.h"
#include "model/zoo.h"

namespace onefold {
namespace {

using test::expect_same_bits;
using test::RankRun;
using test::train_on_ranks;
using test::Weights;

ModelSpec stale_model() {
  ModelSpec spec = spec_from_preset("gpt2-tiny", "test");
  if (spec.vocab_size == 0) spec.vocab_size = 101;
  return spec;
}

EngineOptions stale_options(const StaleOptions& stale, int stage = 0) {
  EngineOptions options{.threads = 1, .micro_batch = 1, .sequence = 11, .clipping = 0.5};
  options.stale = stale;
  options.zero.stage = stage;
  return options;
}

TEST(StaleSteps, AreOfAnAgeWithinTheBound) {
  const StaleOptions stale{.bound = 3, .whole_steps = 5};
  bool differs = false;
  std::set<int64_t> ages;
  for (const int rank : {0, 1, 7}) {
    int64_t before = 0;
    for (int64_t step = 0; step < 3000; ++step) {
      const int64_t age = stale.age(11, rank, step);
      EXPECT_TRUE(age == 0 || age == before + 1) << step;
      if (step <= 5) {
        EXPECT_EQ(age, 0);
      }
      EXPECT_LE(age, 3);
      ages.insert(age);
      differs |= age != stale.age(11, rank + 1, step);
      before = age;
    }
  }
  EXPECT_EQ(ages.size(), 4u);
  EXPECT_TRUE(differs);
  EXPECT_EQ(StaleOptions{}.age(11, 0, 9), 0);
}

struct StepGradients {
  Weights values;
  double targets = 0;
};

// Means over the targets of one rank's rows at given weights, by an engine of its own.
StepGradients gradients_at(const Weights& weights, int rank, int ranks, int64_t step) {
  EngineOptions options = stale_options({});
  options.clipping = 0;
  options.keep_gradients = true;
  options.initial = [&](const ParamSpec& param, int64_t first, std::span<float> dst) {
    std::copy_n(weights.at(param.name).begin() + first, dst.size(), dst.begin());
  };
  Engine engine(stale_model(), options);
  test::OwnedBatch batch =
      test::random_rows(step * ranks + rank, options, engine.model().spec.vocab_size);
  const BatchView view = batch.view();
  StepGradients found;
  found.targets = static_cast<double>(engine.train_step({&view, 1}, 1e-3).valid_targets);
  engine.state().for_each_gradient(engine.channel(Lane::gather),
                                   [&](const ParamSpec& param, std::span<const float> values) {
                                     found.values[param.name].assign(values.begin(), values.end());
                                   });
  return found;
}

// SGD without clipping, by the weights of every step, in double.
TEST(StaleSteps, FollowTheirRule) {
  constexpr int kRanks = 2, kSteps = 6;
  constexpr double kCompensation = 2000;
  EngineOptions options = stale_options({.bound = 2, .compensation = kCompensation});
  options.clipping = 0;
  options.optimizer = {.type = OptimizerSpec::Type::sgd};
  std::vector<Weights> past = {train_on_ranks(stale_model(), options, 1, 0).weights};
  int stale_gradients = 0;
  double largest = 0;  // of what compensation adds, by the gradient
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<StepGradients> of_ranks;
    double targets = 0;
    std::vector<const Weights*> old;
    for (int rank = 0; rank < kRanks; ++rank) {
      const int64_t age = options.stale.age(options.seed, rank, step);
      stale_gradients += age > 0;
      old.push_back(&past[static_cast<size_t>(step - age)]);
      of_ranks.push_back(gradients_at(*old.back(), rank, kRanks, step));
      targets += of_ranks.back().targets;
    }
    Weights next = past.back();
    for (auto& [name, values] : next)
      for (size_t i = 0; i < values.size(); ++i) {
        double sum = 0;
        for (size_t rank = 0; rank < kRanks; ++rank) {
          const double part = of_ranks[rank].values.at(name)[i] * of_ranks[rank].targets / targets;
          const double added = kCompensation * kRanks * part * part *
                               (double{past.back().at(name)[i]} - old[rank]->at(name)[i]);
          largest = std::max(largest, std::abs(added) / (std::abs(part) + 1e-6));
          sum += part + added;
        }
        values[i] = static_cast<float>(values[i] - 1e-3 * sum);
      }
    past.push_back(next);
  }
  ASSERT_GT(stale_gradients, 3);
  ASSERT_GT(largest, 0.01);
  const RankRun run = train_on_ranks(stale_model(), options, kRanks, kSteps);
  for (const auto& [name, values] : run.weights)
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(values[i], past.back().at(name)[i], 1e-6) << name;
}

TEST(StaleSteps, RepeatWithTheSameBitsAtEveryStageAsPlanned) {
  const StaleOptions stale{.bound = 2, .compensation = 100};
  const RankRun reference = train_on_ranks(stale_model(), stale_options(stale), 3, 7);
  for (const int stage : {0, 1, 2}) {
    SCOPED_TRACE(stage);
    const EngineOptions options = stale_options(stale, stage);
    const RankRun run = train_on_ranks(stale_model(), options, 3, 7);
    EXPECT_EQ(run.losses, reference.losses);
    expect_same_bits(run.weights, reference.weights);
    test::expect_planned(stale_model(), options, 3, run, this_machine(1));
  }
  const RankRun plain = train_on_ranks(stale_model(), stale_options({}), 3, 7);
  EXPECT_NE(plain.weights, reference.weights);
  StaleOptions late = stale;
  late.whole_steps = 7;
  expect_same_bits(train_on_ranks(stale_model(), stale_options(late), 3, 7).weights, plain.weights);
}

TEST(StaleSteps, FindWhatIsNotFiniteOnAnyRank) {
  EngineOptions options = stale_options({.bound = 2});
  options.initial = [](const ParamSpec& param, int64_t, std::span<float> dst) {
    std::fill(dst.begin(), dst.end(), param.cols > 1 ? 0.1f : 1.0f);
    if (param.name.starts_with("block.1.mlp")) dst[0] = std::nanf("");
  };
  EXPECT_THROW(train_on_ranks(stale_model(), options, 2, 1), DivergedError);
}

}  // namespace
}  // namespace onefold
