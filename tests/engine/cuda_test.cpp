// Training on a card, where there is one. That its numbers are right is
// tests/engine/parity_test.cpp with ONEFOLD_TEST_DEVICE=cuda.
#include <gtest/gtest.h>

#include <algorithm>

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

TEST_P(CudaEngine, SeveralRanksAreRefusedInWords) {
  const std::shared_ptr<Communicator> ranks = make_dry_communicator(2);
  EXPECT_ERROR(Engine(spec_, options_, ranks), "2 ranks", "one rank");
}

INSTANTIATE_TEST_SUITE_P(Presets, CudaEngine,
                         testing::Values("gpt2-tiny", "llama-tiny", "qwen3-tiny"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace onefold
