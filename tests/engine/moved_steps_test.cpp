// Ranks that step by themselves and sum what they have moved (0/1 Adam): by the rule, with
// repeatable bits, as planned.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/optimizers.h"
#include "engine/ranks.h"
#include "model/zoo.h"

namespace onefold {
namespace {

using test::expect_same_bits;
using test::RankRun;
using test::train_on_ranks;
using test::Weights;

constexpr int64_t kFreeze = 4;

ModelSpec moved_model(const std::string& preset = "gpt2-tiny") {
  ModelSpec spec = spec_from_preset(preset, "test");
  if (spec.vocab_size == 0) spec.vocab_size = 101;
  return spec;
}

// A bit has no zero: what never had a gradient moves by what its block has, over eps alone.
double eps_of(const WireFormat& format) { return format.sparse() ? 1e-6 : 1e-2; }

// Squares are taken in in steps 1, 2 and 4; intervals are of 1 step for two steps, then of 2, then
// of `most`.
EngineOptions moved_options(const WireFormat& format, int64_t most = 4, int64_t scaler = 2) {
  EngineOptions options{.threads = 1, .micro_batch = 1, .sequence = 11};
  options.optimizer = {.beta2 = 0.95,
                       .eps = eps_of(format),
                       .weight_decay = 0.1,
                       .bias_correction = false,
                       .freeze_step = kFreeze,
                       .variance_scaler = 2};
  options.compression.gradients = format;
  options.local = {.steps = most, .sums_moves = true, .scaler = scaler, .whole_steps = kFreeze};
  return options;
}

const WireFormat kSign = {.type = WireFormat::Type::sign, .block = 64};
// Nothing is lost.
const WireFormat kEverything = {.type = WireFormat::Type::topk, .density = 1};

// As DeepSpeed's counters have it.
TEST(MovedSteps, MeetAtIntervalsThatDouble) {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  for (const auto& [most, scaler] :
       {std::pair<int64_t, int64_t>{16, 3}, {1, 5}, {12, 1}, {8, 7}, {16, kNever}, {kNever, 1}}) {
    const LocalOptions local{
        .steps = most, .sums_moves = true, .scaler = scaler, .whole_steps = 10};
    int64_t interval = 1, counter = 0;
    for (int64_t step = 1; step <= 200; ++step) {
      ASSERT_EQ(local.meets(step), step > 10 && step % interval == 0) << step;
      if (step > 10 && ++counter == scaler) {
        counter = 0;
        interval = interval > most / 2 ? most : 2 * interval;
      }
    }
  }
}

// What one rank has of a parameter, in double.
struct Moving {
  std::vector<double> values, anchor, mean, moved;
};

// The rule in double on all ranks together, by the gradients that each of them has computed.
class MovedOracle {
 public:
  MovedOracle(const EngineOptions& options, int ranks) : options_(options), ranks_(ranks) {}

  void begin(const ParamSpec& param, std::span<const float> values) {
    Parameter& p = params_[param.name];
    const ParamGroup* const group = options_.optimizer.group_of(param.name);
    const double decay = param.decay ? options_.optimizer.weight_decay : 0;
    p.decay = group ? group->weight_decay.value_or(decay) : decay;
    p.rate = group ? group->rate : 1;
    p.frozen = group && group->frozen;
    p.square.resize(values.size());
    const std::vector<double> wide(values.begin(), values.end());
    p.of_ranks.assign(static_cast<size_t>(ranks_), {wide, wide, std::vector<double>(wide.size()),
                                                    std::vector<double>(wide.size())});
  }

  // gradients: of each rank, or in whole steps of all together.
  void step(int64_t step, double rate, const std::vector<test::Weights>& gradients) {
    const OptimizerSpec& optimizer = options_.optimizer;
    if (step > kFreeze) rates_ += rate;
    for (auto& [name, p] : params_) {
      if (p.frozen) continue;
      for (size_t r = 0; r < p.of_ranks.size(); ++r) {
        const std::vector<float>& g = gradients[r].at(name);
        Moving& own = p.of_ranks[r];
        for (size_t i = 0; i < g.size(); ++i) {
          const double gradient = double{g[i]};
          if (r == 0 && optimizer.takes_squares(step))
            p.square[i] =
                optimizer.beta2 * p.square[i] + (1 - optimizer.beta2) * gradient * gradient;
          own.mean[i] = optimizer.beta1 * own.mean[i] + (1 - optimizer.beta1) * gradient;
          const double move = rate * p.rate * (own.mean[i] / root(p, i) + p.decay * own.values[i]);
          own.values[i] -= move;
          if (step > kFreeze) own.moved[i] -= move;
          if (step == kFreeze) own.anchor[i] = own.values[i];
        }
      }
      if (options_.local.meets(step)) meet(p);
    }
    if (options_.local.meets(step)) rates_ = 0;
  }

  const std::vector<double>& values(const std::string& name) const {
    return params_.at(name).of_ranks[0].values;
  }

 private:
  struct Parameter {
    double decay = 0, rate = 1;
    bool frozen = false;
    std::vector<double> square;
    std::vector<Moving> of_ranks;
  };

  double root(const Parameter& p, size_t i) const {
    return std::sqrt(p.square[i]) + options_.optimizer.eps;
  }

  void meet(Parameter& p) const {
    for (size_t i = 0; i < p.square.size(); ++i) {
      double sum = 0;
      for (const Moving& own : p.of_ranks) sum += own.moved[i] * root(p, i);
      sum /= ranks_;
      for (Moving& own : p.of_ranks) {
        own.mean[i] = -sum / (rates_ * p.rate);
        own.values[i] = own.anchor[i] = own.anchor[i] + sum / root(p, i);
        own.moved[i] = 0;
      }
    }
  }

  const EngineOptions options_;
  const int ranks_;
  double rates_ = 0;
  std::map<std::string, Parameter> params_;
};

// Over 24 steps, by a rate that changes and with groups, where packets hold everything.
TEST(MovedSteps, FollowTheirRuleInDouble) {
  constexpr int64_t kSteps = 24;
  ModelSpec narrow = moved_model("llama-tiny");
  narrow.num_layers = 3;
  narrow.tie_embeddings = false;
  narrow.intermediate_size = 29;
  for (const auto& one : {std::pair(moved_model(), 3), std::pair(moved_model("llama-tiny"), 3),
                          std::pair(narrow, 3), std::pair(narrow, 1)}) {
    const ModelSpec& spec = one.first;
    const int ranks = one.second;
    EngineOptions options = moved_options(ranks == 1 ? WireFormat{} : kEverything);
    options.keep_gradients = true;
    options.optimizer.groups = {{.match = {"block.1.*norm*"}, .frozen = true},
                                {.match = {"block.1.*"}, .rate = 0.5, .weight_decay = 0.2}};
    MovedOracle oracle(options, ranks);
    const auto rate_of = [](int64_t step) {
      return 1e-3 * (1 + 0.1 * static_cast<double>(step % 5));
    };
    std::vector<std::vector<Weights>> gradients(kSteps,
                                                std::vector<Weights>(static_cast<size_t>(ranks)));
    Weights end;
    test::on_ranks(ranks, [&](int rank, std::shared_ptr<Communicator> communicator) {
      Engine engine(spec, options, std::move(communicator));
      if (rank == 0)
        test::for_each_parameter(engine,
                                 [&](const ParamSpec& param, std::span<const float> values) {
                                   oracle.begin(param, values);
                                 });
      for (int64_t step = 1; step <= kSteps; ++step) {
        test::OwnedBatch batch = test::random_rows(step * ranks + rank, options, spec.vocab_size);
        const BatchView view = batch.view();
        engine.train_step({&view, 1}, rate_of(step));
        Weights& mine = gradients[static_cast<size_t>(step - 1)][static_cast<size_t>(rank)];
        test::for_each_gradient(engine, [&](const ParamSpec& param, std::span<const float> values) {
          mine[param.name].assign(values.begin(), values.end());
        });
      }
      const Weights weights = test::weights_of(engine);
      if (rank == 0) end = weights;
    });
    ASSERT_TRUE(options.local.meets(kSteps));
    for (int64_t step = 1; step <= kSteps; ++step)
      oracle.step(step, rate_of(step), gradients[static_cast<size_t>(step - 1)]);
    for (const auto& [name, values] : end) {
      double largest = 1, worst = 0;
      const std::vector<double>& expected = oracle.values(name);
      for (size_t i = 0; i < values.size(); ++i) {
        largest = std::max(largest, std::abs(expected[i]));
        worst = std::max(worst, std::abs(expected[i] - double{values[i]}));
      }
      EXPECT_LE(worst, 1e-6 * largest) << spec.num_layers << " layers, " << name;
    }
  }
}

TEST(MovedSteps, RepeatWithTheSameBitsAsPlanned) {
  for (const Precision& precision : {Precision{}, Precision{.compute = DType::bf16}})
    for (const int ranks : {2, 3}) {
      EngineOptions options = moved_options(kSign);
      options.precision = precision;
      const RankRun run = train_on_ranks(moved_model(), options, ranks, 12);
      const RankRun again = train_on_ranks(moved_model(), options, ranks, 12);
      EXPECT_EQ(run.losses, again.losses);
      expect_same_bits(run.weights, again.weights);
      test::expect_planned(moved_model(), options, ranks, run, this_machine(1));
    }
}

// Where they meet all ranks have the same weights; between two sums they do not.
TEST(MovedSteps, LeaveRanksWithTheSameWeightsWhereTheyMeet) {
  constexpr int kRanks = 3, kSteps = 20;
  const EngineOptions options = moved_options(kSign);
  std::vector<std::vector<Weights>> weights(kSteps, std::vector<Weights>(kRanks));
  test::on_ranks(kRanks, [&](int rank, std::shared_ptr<Communicator> communicator) {
    Engine engine(moved_model(), options, std::move(communicator));
    for (auto& at : weights) {
      test::train_step(engine);
      at[static_cast<size_t>(rank)] = test::weights_of(engine);
    }
  });
  for (int64_t step = 1; step <= kSteps; ++step) {
    const std::vector<Weights>& at = weights[static_cast<size_t>(step - 1)];
    const bool together = step <= kFreeze || options.local.meets(step);
    EXPECT_EQ(at[0] == at[1] && at[0] == at[2], together) << step;
  }
}

// Steps that are skipped count among the whole ones, and not among those of the optimizer: the
// second moment stays where ranks step by themselves, or theirs would part.
TEST(MovedSteps, LeaveRanksWithTheSameWeightsAfterStepsThatAreSkipped) {
  constexpr int kRanks = 2;
  EngineOptions options = moved_options(kSign);
  options.skip_overflow = true;
  options.loss_scale = {.fixed = 0, .initial_power = 130, .hysteresis = 1};
  test::on_ranks(kRanks, [&](int, std::shared_ptr<Communicator> communicator) {
    Engine engine(moved_model(), options, std::move(communicator));
    while (engine.steps_done() < kFreeze) test::train_step(engine);
    ASSERT_GT(engine.updates_done(), 0);
    ASSERT_LT(engine.updates_done(), kFreeze);
    const auto squares = [&] {
      std::vector<float> all;
      const RankState& state = std::as_const(engine).state();
      for (int u = 0; u < state.units(); ++u) {
        const std::span<const float> own =
            floats_of(state.unit(u).state(state.unit(u).master() + 2).at_home());
        all.insert(all.end(), own.begin(), own.end());
      }
      return all;
    };
    const std::vector<float> before = squares();
    for (int step = 0; step < 8; ++step) test::train_step(engine);
    EXPECT_EQ(squares(), before);
  });
}

// Steps without a message beside the small sums of each step are steps in which nothing is met.
TEST(MovedSteps, SendOnlyWhereTheyMeet) {
  constexpr int kRanks = 2;
  const auto sent_on = [](const RankRun& run, Lane lane) {
    int64_t bytes = 0;
    for (const Traffic& one : run.traffic[static_cast<size_t>(lane)]) bytes += one.bytes_sent;
    return bytes;
  };
  const auto sent_after = [&](int steps) {
    const RankRun run = train_on_ranks(moved_model(), moved_options(kSign), kRanks, steps);
    EXPECT_EQ(sent_on(run, Lane::reduce), 0);
    return sent_on(run, Lane::compute);
  };
  const int64_t small = sent_after(9) - sent_after(8), large = sent_after(12) - sent_after(11),
                whole = sent_after(2) - sent_after(1);
  EXPECT_LT(8 * small, large);
  EXPECT_LT(8 * large, whole);  // a bit for each element, and scales, in the place of 32
}

TEST(MovedSteps, EveryConstantCounts) {
  const auto weights = [](int64_t most, int64_t scaler, int64_t block = 64) {
    WireFormat format = kSign;
    format.block = block;
    return train_on_ranks(moved_model(), moved_options(format, most, scaler), 2, 16).weights;
  };
  const Weights usual = weights(4, 2);
  EXPECT_NE(weights(1, 2), usual);
  EXPECT_NE(weights(8, 2), usual);
  EXPECT_NE(weights(4, 4), usual);
  EXPECT_NE(weights(4, 2, 16), usual);
  EXPECT_EQ(weights(16, 100), weights(1, 2));  // nothing doubles so early
}

TEST(MovedSteps, FindWhatIsNotFiniteOnAnyRank) {
  EngineOptions options = moved_options(kSign);
  options.initial = [](const ParamSpec& param, int64_t, std::span<float> dst) {
    std::fill(dst.begin(), dst.end(), param.cols > 1 ? 0.1f : 1.0f);
    if (param.name.starts_with("block.1.mlp")) dst[0] = std::nanf("");
  };
  EXPECT_THROW(train_on_ranks(moved_model(), options, 2, 1), DivergedError);
}

}  // namespace
}  // namespace onefold
