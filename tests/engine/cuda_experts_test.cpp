// Mixtures of experts on a card, where there is one: everything that they can have, against the
// host in fp32, and the same bits at every stage. Their kernels are tested by the cases of
// tests/kernels, plain mixtures with the other models (cuda_test.cpp, cuda_ranks_test.cpp).
#include <gtest/gtest.h>

#include "device/cuda_library.h"
#include "engine/ranks.h"
#include "error_text.h"

namespace onefold {
namespace {

class CudaExperts : public testing::Test {
 protected:
  void SetUp() override {
    const std::string problem = error_text([] { (void)cuda_cards(); });
    if (!problem.empty()) GTEST_SKIP() << problem;
    spec_ = spec_from_preset("mixtral-tiny", "test");
    spec_.vocab_size = 101;
    spec_.dropout = 0.1f;
    spec_.experts.intermediate_size = 17;
    spec_.experts.shared_intermediate_size = 13;
    spec_.experts.shared_gate = true;
    spec_.experts.dense_blocks = {1};
    spec_.experts.balance_loss = 0.02f;
    spec_.experts.z_loss = 0.01f;
    spec_.experts.jitter = 0.05f;
    spec_.experts.capacity_factor = 1;
  }
  // A mixture whose products in 16 bits are those of tensor cores.
  void widen() {
    spec_.hidden_size = 3 * 64;
    spec_.head_dim = 64;
    spec_.experts.intermediate_size = 136;
    spec_.experts.shared_intermediate_size = 64;
  }
  static EngineOptions options(const std::string& device, int stage) {
    EngineOptions options{.device = device,
                          .threads = 1,
                          .micro_batch = 2,
                          .sequence = 61,
                          .micros = 2,
                          .clipping = 1.0};
    options.zero.stage = stage;
    options.zero.persistence_elems = 0;
    return options;
  }

  ModelSpec spec_;
};

TEST_F(CudaExperts, FollowTheHostWithAllThatMixturesCanHave) {
  for (const RouterScores scores : {RouterScores::softmax, RouterScores::sigmoid}) {
    spec_.experts.scores = scores;
    Engine card(spec_, options("cuda:0", 0)), host(spec_, options("cpu", 0));
    for (int step = 0; step < 4; ++step) {
      SCOPED_TRACE(fmt::format("step {}", step));
      const StepResult own = test::train_step(card), expected = test::train_step(host);
      EXPECT_NEAR(own.loss, expected.loss, 1e-5 * expected.loss);
      EXPECT_NEAR(own.gradient_norm, expected.gradient_norm, 1e-4 * expected.gradient_norm);
      EXPECT_NEAR(own.experts.balance_loss, expected.experts.balance_loss, 1e-5);
      EXPECT_NEAR(own.experts.z_loss, expected.experts.z_loss, 1e-5);
      ASSERT_EQ(own.experts.layers.size(), expected.experts.layers.size());
      for (size_t i = 0; i < own.experts.layers.size(); ++i) {
        EXPECT_EQ(own.experts.layers[i].shares, expected.experts.layers[i].shares);
        EXPECT_EQ(own.experts.layers[i].dropped, expected.experts.layers[i].dropped);
      }
    }
  }
}

TEST_F(CudaExperts, EveryStageHasTheSameBitsAsPlanned) {
  constexpr int kRanks = 4, kSteps = 2;
  for (const bool wide : {false, true}) {
    if (wide) widen();
    EngineOptions first = options("cuda:0", 0);
    if (wide) first.precision.compute = DType::bf16;
    const test::RankRun reference = test::train_on_ranks(spec_, first, kRanks, kSteps);
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(fmt::format("stage {}{}", stage, wide ? ", wide" : ""));
      EngineOptions own = first;
      own.zero.stage = stage;
      own.recompute = stage == 3;
      const test::RankRun run = test::train_on_ranks(spec_, own, kRanks, kSteps);
      EXPECT_EQ(run.losses, reference.losses);
      EXPECT_EQ(run.norms, reference.norms);
      test::expect_same_bits(run.weights, reference.weights);
      test::expect_planned(spec_, own, kRanks, run, hardware_named("h200"));
    }
  }
}

TEST_F(CudaExperts, InSixteenBitsFollowTheHost) {
  widen();
  spec_.dropout = 0;
  for (const DType type : {DType::bf16, DType::f16}) {
    EngineOptions own = options("cuda:0", 0), exact = options("cpu", 0);
    own.precision.compute = type;
    Engine card(spec_, own), host(spec_, exact);
    const std::vector<double> losses = test::train(card, 4), expected = test::train(host, 4);
    for (size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], expected[i], 0.02 * expected[i]) << dtype_name(type);
  }
}

}  // namespace
}  // namespace onefold
