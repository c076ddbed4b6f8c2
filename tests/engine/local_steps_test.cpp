// Ranks that step by themselves and are averaged: by their rule, with repeatable bits, as planned,
// sending as much less as there are steps.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/ranks.h"
#include "model/zoo.h"

namespace onefold {
namespace {

using test::expect_same_bits;
using test::RankRun;
using test::train_on_ranks;
using test::Weights;

ModelSpec local_model() {
  ModelSpec spec = spec_from_preset("gpt2-tiny", "test");
  if (spec.vocab_size == 0) spec.vocab_size = 101;
  return spec;
}

ModelSpec local_mixture() {
  ModelSpec spec = spec_from_preset("mixtral-tiny", "test");
  spec.vocab_size = 101;
  spec.experts.balance_loss = 5;
  spec.experts.z_loss = 1;
  return spec;
}

EngineOptions local_options(const LocalOptions& local, double clipping = 0.5) {
  EngineOptions options{.threads = 1, .micro_batch = 1, .sequence = 11, .clipping = clipping};
  options.local = local;
  return options;
}

// What a rank of many would learn alone: by itself, of its own rows.
Weights learned_alone(const ModelSpec& spec, int rank, int ranks, int steps,
                      const std::optional<Weights>& from, int64_t done = 0) {
  EngineOptions options = local_options({});
  options.optimizer = {.type = OptimizerSpec::Type::sgd};
  if (from)
    options.initial = [&](const ParamSpec& param, int64_t first, std::span<float> dst) {
      std::copy_n(from->at(param.name).begin() + first, dst.size(), dst.begin());
    };
  Engine engine(spec, options);
  for (int step = 0; step < steps; ++step) {
    test::OwnedBatch batch =
        test::random_rows((done + step) * ranks + rank, options, engine.model().spec.vocab_size);
    const BatchView view = batch.view();
    engine.train_step({&view, 1}, 1e-3);
  }
  return test::weights_of(engine);
}

// Two intervals of three steps of SGD with clipping, and Nesterov's outer momentum, in double. What
// routers learn is of the rank's own tokens, too.
TEST(LocalSteps, AreAveragedByTheOuterRule) {
  constexpr int kRanks = 3, kSteps = 3;
  const LocalOptions local{.steps = kSteps, .rate = 0.7f, .momentum = 0.9f, .nesterov = true};
  EngineOptions options = local_options(local);
  options.optimizer = {.type = OptimizerSpec::Type::sgd};
  for (const ModelSpec& spec : {local_model(), local_mixture()}) {
    Weights anchor = learned_alone(spec, 0, 1, 0, {});
    std::map<std::string, std::vector<double>> momentum;
    for (int interval = 0; interval < 2; ++interval) {
      std::vector<Weights> ends;
      for (int rank = 0; rank < kRanks; ++rank)
        ends.push_back(learned_alone(spec, rank, kRanks, kSteps, anchor, interval * kSteps));
      for (auto& [name, values] : anchor) {
        momentum[name].resize(values.size());
        for (size_t i = 0; i < values.size(); ++i) {
          double gradient = 0;
          for (const Weights& end : ends) gradient += double{values[i]} - double{end.at(name)[i]};
          gradient /= kRanks;
          double& m = momentum[name][i];
          m = 0.9 * m + gradient;
          values[i] = static_cast<float>(values[i] - 0.7 * (gradient + 0.9 * m));
        }
      }
      const RankRun run = train_on_ranks(spec, options, kRanks, kSteps * (interval + 1));
      for (const auto& [name, values] : run.weights)
        for (size_t i = 0; i < values.size(); ++i)
          ASSERT_NEAR(values[i], anchor.at(name)[i], 2e-6) << name << ", interval " << interval;
    }
  }
}

int64_t sent_on(const RankRun& run, Lane lane) {
  int64_t bytes = 0;
  for (const Traffic& traffic : run.traffic[static_cast<size_t>(lane)]) bytes += traffic.bytes_sent;
  return bytes;
}

// Beside the small sums of each step, which are the same.
TEST(LocalSteps, SendAsMuchLessAsThereAreSteps) {
  constexpr int kRanks = 2, kSteps = 50;
  const RankRun summed = train_on_ranks(local_model(), local_options({}), kRanks, kSteps);
  const RankRun local =
      train_on_ranks(local_model(), local_options({.steps = kSteps}), kRanks, kSteps);
  EXPECT_EQ(sent_on(local, Lane::reduce), 0);
  EXPECT_EQ(sent_on(local, Lane::gather), 0);
  const int64_t averages = sent_on(local, Lane::compute) - sent_on(summed, Lane::compute);
  // Slabs of one rank have a little less padding than those of two.
  EXPECT_NEAR(static_cast<double>(sent_on(summed, Lane::reduce)) / static_cast<double>(averages),
              kSteps, 0.02 * kSteps);
}

TEST(LocalSteps, RepeatWithTheSameBitsAsPlanned) {
  for (const Precision& precision : {Precision{}, Precision{.compute = DType::bf16}}) {
    EngineOptions options = local_options({.steps = 3});
    options.precision = precision;
    const RankRun run = train_on_ranks(local_model(), options, 3, 7);
    const RankRun again = train_on_ranks(local_model(), options, 3, 7);
    EXPECT_EQ(run.losses, again.losses);
    expect_same_bits(run.weights, again.weights);
    test::expect_planned(local_model(), options, 3, run, this_machine(1));
  }
}

// After an average all ranks have the same weights; between two they do not.
TEST(LocalSteps, LeaveRanksWithTheSameWeights) {
  std::vector<Weights> at_three(2), at_four(2);
  test::on_ranks(2, [&](int rank, std::shared_ptr<Communicator> communicator) {
    Engine engine(local_model(), local_options({.steps = 3}), std::move(communicator));
    for (int step = 0; step < 3; ++step) test::train_step(engine);
    at_three[static_cast<size_t>(rank)] = test::weights_of(engine);
    test::train_step(engine);
    at_four[static_cast<size_t>(rank)] = test::weights_of(engine);
  });
  expect_same_bits(at_three[0], at_three[1]);
  EXPECT_NE(at_four[0], at_four[1]);
}

// In the first steps gradients are summed; the norm that clips is of sums in another order.
TEST(LocalSteps, MayBeginLater) {
  const LocalOptions local{.steps = 2, .whole_steps = 4};
  const auto train = [](const EngineOptions& options, int steps) {
    std::vector<Weights> of_ranks(3);
    test::on_ranks(3, [&](int rank, std::shared_ptr<Communicator> communicator) {
      Engine engine(local_model(), options, std::move(communicator));
      for (int step = 0; step < steps; ++step) test::train_step(engine);
      of_ranks[static_cast<size_t>(rank)] = test::weights_of(engine);
    });
    return of_ranks;
  };
  const std::vector<Weights> whole = train(local_options({}), 4),
                             early = train(local_options(local), 4);
  expect_same_bits(early[0], early[2]);
  for (const auto& [name, values] : early[0])
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(values[i], whole[0].at(name)[i], 1e-6) << name;
  const std::vector<Weights> apart = train(local_options(local), 5),
                             together = train(local_options(local), 6);
  EXPECT_NE(apart[0], apart[1]);
  expect_same_bits(together[0], together[1]);
  // From there on it is as if it had begun there.
  EngineOptions from = local_options({.steps = 2});
  from.optimizer = {.type = OptimizerSpec::Type::sgd};
  EngineOptions later = local_options(local);
  later.optimizer = from.optimizer;
  const Weights start = train(later, 4)[0];
  from.initial = [&](const ParamSpec& param, int64_t first, std::span<float> dst) {
    std::copy_n(start.at(param.name).begin() + first, dst.size(), dst.begin());
  };
  Weights resumed;
  test::on_ranks(3, [&](int rank, std::shared_ptr<Communicator> communicator) {
    Engine engine(local_model(), from, std::move(communicator));
    for (int step = 4; step < 6; ++step) {
      test::OwnedBatch batch =
          test::random_rows(step * 3 + rank, from, engine.model().spec.vocab_size);
      const BatchView view = batch.view();
      engine.train_step({&view, 1}, 1e-3);
    }
    const Weights weights = test::weights_of(engine);
    if (rank == 0) resumed = weights;
  });
  expect_same_bits(train(later, 6)[0], resumed);
}

TEST(LocalSteps, FindWhatIsNotFiniteOnAnyRank) {
  EngineOptions options = local_options({.steps = 3});
  options.initial = [](const ParamSpec& param, int64_t, std::span<float> dst) {
    std::fill(dst.begin(), dst.end(), param.cols > 1 ? 0.1f : 1.0f);
    if (param.name.starts_with("block.1.mlp")) dst[0] = std::nanf("");
  };
  EXPECT_THROW(train_on_ranks(local_model(), options, 2, 1), DivergedError);
}

}  // namespace
}  // namespace onefold
