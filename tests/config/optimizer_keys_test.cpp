// The optimizer's keys by their effect: one step on a parameter, against the formula in double.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "base/thread_pool.h"
#include "config/config.h"

namespace onefold {
namespace {

constexpr float kParameter = 2.0f, kGradient = 0.5f, kMean = 0.25f, kSquare = 0.04f;

// The parameter after step `step`.
double stepped(const char* optimizer, bool matrix, int64_t step = 3, StepRates rates = 0.1) {
  const Config config = Config::from_json({{"model", "gpt2-tiny"},
                                           {"train_batch_size", 1},
                                           {"optimizer", parse_json(optimizer, "test")}});
  std::array<float, 4> values = {kParameter, kGradient, kMean, kSquare};
  float factor = 1;
  int32_t finite = 1;
  const auto view = [](auto& value, DType type) {
    return Tensor{.data = &value, .dtype = type, .rows = 1, .cols = 1, .stride = 1};
  };
  ThreadPool pool(1);
  const auto kernels = make_cpu_kernels(pool);
  const SteppedParam param{matrix,
                           {view(values[0], DType::f32), view(values[1], DType::f32)},
                           {view(values[2], DType::f32), view(values[3], DType::f32)}};
  optimizer_step(*kernels, config.optimizer, step, rates,
                 {view(factor, DType::f32), view(finite, DType::i32)}, {&param, 1});
  return values[0];
}

struct Adam {
  double decay = 0, l2 = 0, beta1 = 0.9, beta2 = 0.999;
  bool corrected = true;
};

double expected(const Adam& adam) {
  const double gradient = kGradient + adam.l2 * kParameter;
  const double mean = adam.beta1 * kMean + (1 - adam.beta1) * gradient;
  const double square = adam.beta2 * kSquare + (1 - adam.beta2) * gradient * gradient;
  const double c1 = adam.corrected ? 1 - std::pow(adam.beta1, 3) : 1;
  const double c2 = adam.corrected ? 1 - std::pow(adam.beta2, 3) : 1;
  return kParameter * (1 - 0.1 * adam.decay) - 0.1 * (mean / c1) / (std::sqrt(square / c2) + 1e-8);
}

constexpr double kTolerance = 2e-6;  // a few units of fp32 at 2

TEST(OptimizerKeys, DecayIsOfMatricesOrOfAll) {
  const char* plain = R"({"type": "AdamW", "params": {"weight_decay": 0.3}})";
  EXPECT_NEAR(stepped(plain, true), expected({.decay = 0.3}), kTolerance);
  EXPECT_NEAR(stepped(plain, false), expected({}), kTolerance);
  const char* all = R"({"type": "AdamW", "params": {"weight_decay": 0.3, "decay": "all"}})";
  EXPECT_NEAR(stepped(all, false), expected({.decay = 0.3}), kTolerance);
}

TEST(OptimizerKeys, AdamWithoutAdamWModeDecaysInsideTheGradient) {
  const char* adamw = R"({"type": "Adam", "params": {"weight_decay": 0.3}})";
  EXPECT_NEAR(stepped(adamw, true), expected({.decay = 0.3}), kTolerance);
  const char* l2 = R"({"type": "Adam", "params": {"weight_decay": 0.3, "adam_w_mode": false}})";
  EXPECT_NEAR(stepped(l2, true), expected({.l2 = 0.3}), kTolerance);
  EXPECT_NEAR(stepped(l2, false), expected({}), kTolerance);
}

TEST(OptimizerKeys, BiasCorrectionCanBeOff) {
  EXPECT_NEAR(stepped(R"({"type": "AdamW", "params": {"bias_correction": false}})", true),
              expected({.corrected = false}), kTolerance);
}

TEST(OptimizerKeys, ASchedulesBetasReplaceTheOptimizers) {
  StepRates rates = 0.1;
  rates.betas = {0.8, 0.99};
  EXPECT_NEAR(stepped(R"({"type": "AdamW"})", true, 3, rates),
              expected({.beta1 = 0.8, .beta2 = 0.99}), kTolerance);
}

TEST(OptimizerKeys, WaysToComputeTheSameAreNoted) {
  const Config c = Config::from_json(parse_json(R"({"model": "gpt2-tiny", "train_batch_size": 1,
      "optimizer": {"type": "AdamW", "params": {"torch_adam": true, "fp32_optimizer_states": false,
                    "set_grad_none": true, "fused": true, "foreach": false, "amsgrad": false}}})",
                                                "test"));
  EXPECT_EQ(c.notes.idle.size(), 6U);
  EXPECT_EQ(c.notes.idle[1], "optimizer.params.torch_adam");
}

}  // namespace
}  // namespace onefold
