#include "engine/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <limits>

#include "engine/ranks.h"
#include "engine/support.h"
#include "error_text.h"
#include "plan/fit.h"

namespace onefold {
namespace {

using test::expect_same_bits;
using test::OwnedBatch;
using test::random_batch;
using test::weights_of;

EngineOptions tiny_options(int threads = 2) {
  return {.threads = threads, .micro_batch = 2, .sequence = 19, .micros = 1, .clipping = 1.0};
}

class EveryPreset : public testing::TestWithParam<std::string> {
 protected:
  ModelSpec spec() const {
    ModelSpec spec = spec_from_preset(GetParam(), "test");
    if (spec.vocab_size == 0) spec.vocab_size = 101;
    return spec;
  }
};

TEST(EngineErrors, OfADeviceNameTheActionAndTheStep) {
  ModelSpec spec = spec_from_preset("llama-tiny", "test");
  spec.vocab_size = 101;
  EngineOptions options = tiny_options();
  options.before_action = [seen = 0](const Action& action) mutable {
    if (action.verb == Verb::backward && ++seen == 2) internal_error("the card is gone");
  };
  Engine engine(spec, options);
  const std::string last = fmt::format("block.{}.mlp", spec.num_layers - 1);
  try {
    test::train(engine, 1);
    FAIL() << "nothing was thrown";
  } catch (const InternalError& error) {
    EXPECT_EQ(error.what(), fmt::format("backward {}, micro 0, step 1: the card is gone", last));
  }
}

TEST_P(EveryPreset, SameBitsWithOneTwoAndFourThreads) {
  // Longer than one attention tile and wider than one matrix tile, so that there is something to
  // share out.
  EngineOptions options = tiny_options(1);
  options.sequence = 150;
  ModelSpec longer = spec();
  longer.max_sequence_length = std::max<int64_t>(longer.max_sequence_length, options.sequence);
  longer.dropout = 0.1f;
  Engine one(longer, options);
  options.threads = 2;
  Engine two(longer, options);
  options.threads = 4;
  Engine four(longer, options);
  const auto losses = test::train(one, 3);
  EXPECT_EQ(losses, test::train(two, 3));
  EXPECT_EQ(losses, test::train(four, 3));
  expect_same_bits(weights_of(one), weights_of(two));
  expect_same_bits(weights_of(one), weights_of(four));
}

TEST_P(EveryPreset, TwoRunsGiveTheSameBits) {
  Engine first(spec(), tiny_options()), second(spec(), tiny_options());
  EXPECT_EQ(test::train(first, 3), test::train(second, 3));
  expect_same_bits(weights_of(first), weights_of(second));
}

TEST_P(EveryPreset, RecomputeKeepsTheBits) {
  ModelSpec dropping = spec();
  dropping.dropout = 0.2f;
  EngineOptions options = tiny_options();
  Engine plain(dropping, options);
  options.recompute = true;
  Engine recomputed(dropping, options);
  EXPECT_EQ(test::train(plain, 3), test::train(recomputed, 3));
  expect_same_bits(weights_of(plain), weights_of(recomputed));
  EXPECT_LT(recomputed.ledger().peak_bytes(Kind::activations),
            plain.ledger().peak_bytes(Kind::activations));
}

TEST_P(EveryPreset, PlanEqualsTheRunToTheByte) {
  for (const bool recompute : {false, true}) {
    for (const int micros : {1, 3}) {
      EngineOptions options = tiny_options();
      options.recompute = recompute;
      options.micros = micros;
      Engine engine(spec(), options);
      test::train(engine, 2);
      const auto plan = Engine::plan(spec(), options, 1, 0, test::this_processor());
      EXPECT_EQ(plan->ledger().peak_bytes(), engine.ledger().peak_bytes());
      for (int kind = 0; kind < kKinds; ++kind)
        EXPECT_EQ(plan->ledger().peak_bytes(static_cast<Kind>(kind)),
                  engine.ledger().peak_bytes(static_cast<Kind>(kind)))
            << kind_name(static_cast<Kind>(kind));
      EXPECT_EQ(plan->ledger().peak_moment(), engine.ledger().peak_moment());
    }
  }
}

TEST_P(EveryPreset, StateIsSixteenBytesForEachParameterWithinPadding) {
  Engine engine(spec(), tiny_options());
  test::train(engine, 1);
  const Ledger& ledger = engine.ledger();
  const int64_t state = ledger.peak_bytes(Kind::parameters) + ledger.peak_bytes(Kind::gradients) +
                        ledger.peak_bytes(Kind::optimizer);
  EXPECT_EQ(ledger.held_bytes(Kind::gradients), 0);  // given back after the step
  int64_t padding = 0;
  for (const ParamSpec& param : parameters_of(spec()))
    padding += 4 * Ledger::kAlignment + 16 * param.slack_rows * param.cols;
  EXPECT_GE(state, 16 * spec().parameter_count());
  EXPECT_LE(state, 16 * spec().parameter_count() + padding);
}

INSTANTIATE_TEST_SUITE_P(Tiny, EveryPreset,
                         testing::Values("gpt2-tiny", "llama-tiny", "qwen3-tiny", "mixtral-tiny",
                                         "gemma-tiny", "olmo2-tiny", "neox-tiny", "gptj-tiny",
                                         "bloom-tiny"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

ModelSpec tiny() { return spec_from_preset("gpt2-tiny", "test"); }

// Splits one batch of 4 into two of 2, with padding that leaves the halves with different numbers
// of valid targets.
TEST(Accumulation, AveragesOverTheValidTokensOfTheWholeBatch) {
  const int64_t sequence = 13;
  OwnedBatch whole = random_batch(4, sequence, tiny().vocab_size, 7);
  for (int64_t i = 0; i < 20; ++i) whole.targets[static_cast<size_t>(i)] = -1;
  std::vector<OwnedBatch> halves(2, OwnedBatch{.batch = 2, .sequence = sequence});
  for (size_t half = 0; half < 2; ++half) {
    const auto begin = static_cast<int64_t>(half) * 2 * sequence, end = begin + 2 * sequence;
    halves[half].tokens.assign(whole.tokens.begin() + begin, whole.tokens.begin() + end);
    halves[half].targets.assign(whole.targets.begin() + begin, whole.targets.begin() + end);
    halves[half].samples = {static_cast<int64_t>(half) * 2, static_cast<int64_t>(half) * 2 + 1};
  }
  EngineOptions options = tiny_options();
  options.sequence = sequence;
  options.micro_batch = 4;
  Engine one(tiny(), options);
  options.micro_batch = 2;
  options.micros = 2;
  Engine two(tiny(), options);
  const std::vector<BatchView> one_view = {whole.view()},
                               two_views = {halves[0].view(), halves[1].view()};
  const StepResult a = one.train_step(one_view, 1e-3), b = two.train_step(two_views, 1e-3);
  EXPECT_EQ(a.valid_targets, 4 * sequence - 20);
  EXPECT_EQ(a.valid_targets, b.valid_targets);
  // Only the order of sums differs.
  EXPECT_NEAR(a.loss, b.loss, 1e-6 * a.loss);
  EXPECT_NEAR(a.gradient_norm, b.gradient_norm, 1e-5 * a.gradient_norm);
}

TEST(Accumulation, ABatchWithoutValidTargetsIsRefused) {
  Engine engine(tiny(), tiny_options());
  OwnedBatch batch = random_batch(2, 19, tiny().vocab_size, 1);
  std::fill(batch.targets.begin(), batch.targets.end(), -1);
  const std::vector<BatchView> views = {batch.view()};
  try {
    engine.train_step(views, 1e-3);
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("no valid target in the whole batch"),
              std::string::npos)
        << error.what();
  }
}

TEST(Training, LowersTheLossOnARepeatedBatch) {
  Engine engine(tiny(), tiny_options());
  OwnedBatch batch = random_batch(2, 19, tiny().vocab_size, 1);
  const std::vector<BatchView> views = {batch.view()};
  const double first = engine.train_step(views, 1e-2).loss;
  EXPECT_NEAR(first, std::log(static_cast<double>(tiny().vocab_size)), 0.3);  // untrained: uniform
  double last = first;
  for (int i = 0; i < 60; ++i) last = engine.train_step(views, 1e-2).loss;
  EXPECT_LT(last, 0.2 * first);
}

TEST(Training, SgdWithMomentumLowersTheLossToo) {
  EngineOptions options = tiny_options();
  options.optimizer = {.type = OptimizerSpec::Type::sgd, .weight_decay = 0, .momentum = 0.9};
  Engine engine(tiny(), options);
  OwnedBatch batch = random_batch(2, 19, tiny().vocab_size, 1);
  const std::vector<BatchView> views = {batch.view()};
  const double first = engine.train_step(views, 0.1).loss;
  double last = first;
  for (int i = 0; i < 60; ++i) last = engine.train_step(views, 0.1).loss;
  EXPECT_LT(last, 0.8 * first);
}

TEST(Clipping, LimitsTheUpdateToTheGivenNorm) {
  EngineOptions options = tiny_options();
  options.optimizer = {.type = OptimizerSpec::Type::sgd, .weight_decay = 0};
  options.clipping = 0.01;
  Engine engine(tiny(), options);
  const test::Weights before = weights_of(engine);
  OwnedBatch batch = random_batch(2, 19, tiny().vocab_size, 1);
  const std::vector<BatchView> views = {batch.view()};
  const StepResult result = engine.train_step(views, 1.0);
  EXPECT_GT(result.gradient_norm, 0.1);
  double moved = 0;
  for (const auto& [name, values] : weights_of(engine))
    for (size_t i = 0; i < values.size(); ++i)
      moved += std::pow(values[i] - before.at(name)[i], 2.0);
  EXPECT_NEAR(std::sqrt(moved), 0.01, 1e-5);  // SGD at rate 1: the step is the clipped gradient
}

void set_parameter(Engine& engine, const std::string& name, float value) {
  test::change_weights(engine, [&](const ParamSpec& param, std::span<float> values) {
    if (param.name == name) values[0] = value;
  });
}

std::string divergence_of(Engine& engine) {
  try {
    test::train(engine, 1);
  } catch (const DivergedError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Diverging, NamesWhereItFirstAppeared) {
  struct {
    const char* param;
    float value;
    const char* said;
  } const kCases[] = {
      {"head.norm.weight", std::numeric_limits<float>::infinity(),
       "step 2, micro-batch 0: a weight is inf (unit head, tensor head.norm.weight)"},
      {"head.norm.weight", 3e38f, "step 2, micro-batch 0: the loss is "},
      {"block.1.mlp_norm.weight", 3e38f,
       "step 2, micro-batch 0: forward computed nan (unit block.1.mlp, tensor output)"}};
  for (const auto& [param, value, said] : kCases) {
    Engine engine(tiny(), tiny_options());
    test::train(engine, 1);
    set_parameter(engine, param, value);
    const test::Weights before = weights_of(engine);
    EXPECT_TRUE(contains(divergence_of(engine), said)) << divergence_of(engine);
    expect_same_bits(before, weights_of(engine));
  }
}

TEST(Diverging, ANonFiniteGradientNamesUnitAndTensorAndLeavesTheWeights) {
  // An embedding of zeros keeps every activation zero and the loss finite, but each norm's backward
  // multiplies by 1 / sqrt(eps) = 1e19: after two or three of them the gradient overflows.
  ModelSpec spec = tiny();
  spec.tie_embeddings = false;
  spec.norm_eps = 1e-38f;
  Engine engine(spec, tiny_options());
  test::change_weights(engine, [](const ParamSpec& param, std::span<float> values) {
    if (param.name.starts_with("embedding.")) std::fill(values.begin(), values.end(), 0.0f);
  });
  const test::Weights before = weights_of(engine);
  const std::string said = divergence_of(engine);
  EXPECT_TRUE(contains(said, "step 1, micro-batch 0: backward computed ")) << said;
  EXPECT_TRUE(contains(said, "(unit block.")) << said;
  expect_same_bits(before, weights_of(engine));
}

TEST(Diverging, OneRanksLossStopsAllWithTheSameWordsAndNoneIsGone) {
  std::vector<std::string> texts(3);
  std::vector<size_t> answers(3);
  test::on_ranks(3, [&](int rank, std::shared_ptr<Communicator> communicator) {
    Engine engine(tiny(), tiny_options(), std::move(communicator));
    test::train_step(engine);
    set_parameter(engine, rank == 1 ? "head.norm.weight" : "none",
                  std::numeric_limits<float>::infinity());
    try {
      test::train_step(engine);
    } catch (const DivergedError& error) {
      texts[static_cast<size_t>(rank)] = error.what();
      answers[static_cast<size_t>(rank)] = engine.control().collect("after", "here").size();
    }
  });
  EXPECT_TRUE(contains(texts[0], "step 2, micro-batch 0, rank 1: a weight is inf (unit head"))
      << texts[0];
  EXPECT_EQ(texts, std::vector<std::string>(3, texts[0]));
  EXPECT_EQ(answers, std::vector<size_t>(3, 3));
}

TEST(MemoryLimit, IsKnownBeforeTheRunAndSaysWhatWouldFit) {
  EngineOptions options = tiny_options();
  options.micro_batch = 64;
  const int64_t needed = Engine::plan(tiny(), options)->ledger().peak_bytes();
  options.memory_limit_bytes = needed - 1;
  try {
    require_fits(tiny(), options);
    FAIL() << "no error";
  } catch (const UserError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("run.memory allows"), std::string::npos) << text;
    EXPECT_NE(text.find("train_micro_batch_size_per_gpu 32, gradient_accumulation_steps 2"),
              std::string::npos)
        << text;
  }
  options.memory_limit_bytes = needed;
  require_fits(tiny(), options);
  Engine engine(tiny(), options);
  test::train(engine, 1);
  EXPECT_EQ(engine.ledger().peak_bytes(), needed);
}

// Bar 4 of the design: tiles and chunks keep activation memory flat as the sequence grows at
// constant tokens.
TEST(Memory, ActivationsGrowByLessThanATenthFromShortToLongSequences) {
  ModelSpec spec = spec_from_preset("gpt2", "test");
  spec.max_sequence_length = 4096;
  const auto held = [&](int64_t sequence) {
    EngineOptions options{.threads = 2, .micro_batch = 4096 / sequence, .sequence = sequence};
    const auto plan = Engine::plan(spec, options, 1, 0, test::this_processor());
    return static_cast<double>(plan->ledger().peak_bytes(Kind::activations) +
                               plan->ledger().peak_bytes(Kind::workspace));
  };
  EXPECT_LT(held(4096), 1.1 * held(256));
}

}  // namespace
}  // namespace onefold
