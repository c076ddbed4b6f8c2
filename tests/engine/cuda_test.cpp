// Training on a card, where there is one. That its numbers are right is
// tests/engine/parity_test.cpp with ONEFOLD_TEST_DEVICE=cuda.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "device/profile.h"
#include "engine/generate.h"
#include "engine/scorer.h"
#include "engine/support.h"
#include "error_text.h"

namespace onefold {
namespace {

class CudaEngine : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string problem = error_text([] { open_device("cuda", 1); });
    if (!problem.empty()) GTEST_SKIP() << problem;
    spec_ = spec_from_preset(GetParam(), "test");
    if (spec_.vocab_size == 0) spec_.vocab_size = 101;
    spec_.max_sequence_length = std::max<int64_t>(spec_.max_sequence_length, options_.sequence);
    spec_.dropout = 0.1f;
  }
  ModelSpec spec_;
  EngineOptions options_ = {.device = "cuda",
                            .threads = 2,
                            .micro_batch = 2,
                            .sequence = 150,
                            .micros = 2,
                            .clipping = 1.0};
};

TEST_P(CudaEngine, TwoRunsGiveTheSameBits) {
  Engine first(spec_, options_), second(spec_, options_);
  EXPECT_EQ(test::train(first, 3), test::train(second, 3));
  test::expect_same_bits(test::weights_of(first), test::weights_of(second));
}

// The card waits for the launches of such small models: from the third step on they are graphs. A
// profile has every kernel launched as it is.
TEST_P(CudaEngine, GraphsKeepTheBits) {
  spec_.dropout = 0;
  Engine graphs(spec_, options_);
  options_.profile = std::make_shared<KernelProfile>();
  options_.profile->turn(true);
  Engine launches(spec_, options_);
  EXPECT_EQ(test::train(graphs, 8), test::train(launches, 8));
  test::expect_same_bits(test::weights_of(graphs), test::weights_of(launches));
}

TEST_P(CudaEngine, RecomputeKeepsTheBits) {
  Engine plain(spec_, options_);
  options_.recompute = true;
  Engine recomputed(spec_, options_);
  EXPECT_EQ(test::train(plain, 3), test::train(recomputed, 3));
  test::expect_same_bits(test::weights_of(plain), test::weights_of(recomputed));
  EXPECT_LT(recomputed.ledger().peak_bytes(), plain.ledger().peak_bytes());
}

// The same masks of dropout, and the same sums but for their order.
TEST_P(CudaEngine, FollowsTheHost) {
  Engine card(spec_, options_);
  options_.device = "cpu";
  Engine host(spec_, options_);
  const std::vector<double> losses = test::train(card, 10), expected = test::train(host, 10);
  for (size_t step = 0; step < losses.size(); ++step)
    EXPECT_NEAR(losses[step], expected[step], 1e-4 * expected[step]) << "step " << step;
}

TEST_P(CudaEngine, EvaluationHasTheLossOfTheHost) {
  Engine card(spec_, options_);
  options_.device = "cpu";
  Engine host(spec_, options_);
  const test::OwnedBatch batch = test::random_batch(2, 150, spec_.vocab_size, 3);
  const double expected = host.evaluate(batch.view()).first;
  EXPECT_NEAR(card.evaluate(batch.view()).first, expected, 1e-5 * expected);
}

TEST_P(CudaEngine, StepsHaveTimes) {
  Engine engine(spec_, options_);
  test::train(engine, 2);
  EXPECT_GT(engine.times().forward, 0);
  EXPECT_GT(engine.times().backward, 0);
  EXPECT_GT(engine.times().squares, 0);
  EXPECT_GT(engine.times().step, 0);
}

// Weights larger than the buffers on the way to the host come in pieces, and are visited whole.
TEST_P(CudaEngine, VisitsLargeParametersWhole) {
  spec_.vocab_size = 100'000;
  options_.training = false;
  Engine engine(spec_, options_);
  const test::Weights weights = test::weights_of(engine);
  for (const auto& unit : engine.model().units)
    for (const ParamSpec& param : unit->params()) {
      std::vector<float> expected(static_cast<size_t>(param.elems()));
      initialise(param, spec_, options_.seed, 0, expected);
      ASSERT_EQ(weights.at(param.name), expected) << param.name;
    }
}

// The cache lives on the card, and tokens are chosen on the host: after training, whose choices are
// no near ties, card and host go on alike.
TEST_P(CudaEngine, GeneratesWhatTheHostDoes) {
  spec_.dropout = 0;
  options_ = {.device = "cuda",
              .threads = 2,
              .micro_batch = 1,
              .sequence = 40,
              .positions = 67,
              .clipping = 1.0};
  test::OwnedBatch batch = test::random_batch(1, 40, spec_.vocab_size, 3);
  for (size_t i = 0; i + 1 < batch.tokens.size(); ++i) batch.targets[i] = batch.tokens[i + 1];
  const std::vector<BatchView> views = {batch.view()};
  const std::vector<int32_t> prompt(batch.tokens.begin(), batch.tokens.begin() + 10);
  std::vector<std::vector<int32_t>> greedy, beams;
  for (const char* device : {"cuda", "cpu"}) {
    options_.device = device;
    Engine engine(spec_, options_);
    for (int i = 0; i < 80; ++i) engine.train_step(views, 1e-2);
    greedy.push_back(generate(engine, prompt, {.sampling = {.temperature = 0}, .max_tokens = 25}));
    beams.push_back(generate(engine, prompt, {.max_tokens = 12, .beams = 3}));
  }
  EXPECT_EQ(greedy[0], greedy[1]);
  EXPECT_EQ(beams[0], beams[1]);
  EXPECT_EQ(greedy[0], std::vector<int32_t>(batch.tokens.begin() + 10, batch.tokens.begin() + 35));
}

TEST_P(CudaEngine, ScoresTokensAsTheHostDoes) {
  options_.training = false;
  Engine card(spec_, options_);
  options_.device = "cpu";
  Engine host(spec_, options_);
  const test::OwnedBatch batch = test::random_batch(2, 150, spec_.vocab_size, 5);
  const std::vector<TokenScore> scores = score_tokens(card, batch.view()),
                                expected = score_tokens(host, batch.view());
  for (size_t i = 0; i < scores.size(); ++i)
    EXPECT_NEAR(scores[i].loss, expected[i].loss, 1e-5 * (1 + std::abs(expected[i].loss))) << i;
}

TEST_P(CudaEngine, AdaptersFollowTheHost) {
  spec_.lora = {.rank = 3, .alpha = 5, .dropout = 0.1f, .targets = {"all-linear"}};
  spec_.embedding_scale = spec_.alibi_scale = 1;  // bloom-tiny's have no Hugging Face names
  Engine card(spec_, options_);
  options_.device = "cpu";
  Engine host(spec_, options_);
  const std::vector<double> losses = test::train(card, 10, 1e-2),
                            expected = test::train(host, 10, 1e-2);
  for (size_t step = 0; step < losses.size(); ++step)
    EXPECT_NEAR(losses[step], expected[step], 1e-4 * expected[step]) << "step " << step;
  EXPECT_NE(losses.front(), losses.back());
}

INSTANTIATE_TEST_SUITE_P(Presets, CudaEngine,
                         testing::Values("gpt2-tiny", "llama-tiny", "qwen3-tiny", "mixtral-tiny",
                                         "bloom-tiny"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace onefold
