// The optimizer's keys by their effect: one step on a parameter, against the formula in double.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "base/thread_pool.h"
#include "config/config.h"
#include "error_text.h"

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
  const SteppedParam param{{1, 1, matrix},
                           {view(values[0], DType::f32), view(values[1], DType::f32)},
                           {view(values[2], DType::f32), view(values[3], DType::f32)}};
  optimizer_step({*kernels}, config.optimizer, step, rates,
                 {view(factor, DType::f32), view(finite, DType::i32)}, {.params = {param}});
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

Config config_with(const std::string& more) {
  return Config::from_json(
      parse_json(R"({"model": "gpt2-tiny", "train_batch_size": 8)" + more + "}", "test"));
}

// What is written of it reads back as the same.
Config twice(const Config& config) {
  const Json effective = config.effective();
  const Config again = Config::from_json(effective);
  EXPECT_EQ(again.effective(), effective);
  return again;
}

TEST(OptimizerKeys, DeepSpeedsNamesMeanTheirOptimizers) {
  using Type = OptimizerSpec::Type;
  const auto spec_of = [](const std::string& optimizer) {
    return twice(config_with(R"(, "optimizer": )" + optimizer)).optimizer;
  };
  const OptimizerSpec lion = spec_of(R"({"type": "Lion", "params": {"weight_decay": 0.1}})");
  EXPECT_EQ(lion.type, Type::lion);
  EXPECT_EQ(lion.beta2, 0.99);
  const OptimizerSpec lamb = spec_of(R"({"type": "lamb", "params": {"max_coeff": 0.3,
      "min_coeff": 0.02, "eps_inside_sqrt": true, "bias_correction": false, "amsgrad": false}})");
  EXPECT_EQ(lamb.type, Type::lamb);
  EXPECT_EQ(lamb.most_trust, 0.3);
  EXPECT_EQ(lamb.least_trust, 0.02);
  EXPECT_TRUE(lamb.eps_inside);
  EXPECT_FALSE(lamb.bias_correction);
  const OptimizerSpec lars = spec_of(R"({"type": "LARS", "params": {"trust_coefficient": 0.02}})");
  EXPECT_EQ(lars.type, Type::lars);
  EXPECT_EQ(lars.momentum, 0.9);
  EXPECT_EQ(lars.trust, 0.02);
  const OptimizerSpec adafactor =
      spec_of(R"({"type": "Adafactor", "params": {"clip_threshold": 2}})");
  EXPECT_EQ(adafactor.type, Type::adafactor);
  EXPECT_EQ(adafactor.clip, 2);
  EXPECT_EQ(adafactor.decay_power, -0.8);
  const OptimizerSpec muon =
      spec_of(R"({"type": "Muon", "params": {"lr": 0.02, "adam_lr": 0.01, "ns_method": "gram"}})");
  EXPECT_EQ(muon.type, Type::muon);
  EXPECT_EQ(muon.momentum, 0.95);
  EXPECT_TRUE(muon.nesterov);
  EXPECT_EQ(muon.beta2, 0.95);
  EXPECT_EQ(muon.eps, 1e-10);
  EXPECT_EQ(muon.adam_rate, 0.5);
}

TEST(OptimizerKeys, TheSecondMomentMayStayAfterAStep) {
  const Config c =
      twice(config_with(R"(, "optimizer": {"type": "Adam", "params": {"freeze_step": 30}})"));
  EXPECT_EQ(c.optimizer.freeze_step, 30);
  EXPECT_EQ(config_with(R"(, "optimizer": {"type": "Adam"})").optimizer.freeze_step, 0);
  EXPECT_ERROR(config_with(R"(, "optimizer": {"type": "Lion", "params": {"freeze_step": 30}})"),
               "freeze_step");
  EXPECT_ERROR(config_with(R"(, "optimizer": {"type": "AdamW", "params": {"freeze_step": 30}},
      "data_types": {"moments": "8bit"})"),
               "and optimizer.params.freeze_step does not");
}

// DeepSpeed's optimizers that send one bit, on two ranks: as they are, and as they are printed.
TEST(OptimizerKeys, OneBitOptimizersCompressWhatTravels) {
  const auto on_two = [](const std::string& text) {
    const Config first =
        Config::from_json(parse_json(R"({"model": {"preset": "gpt2-tiny", "vocab_size": 101},
            "train_micro_batch_size_per_gpu": 1, )" +
                                         text + "}",
                                     "test"),
                          2);
    const Config again = Config::from_json(first.effective(), 2);
    EXPECT_EQ(again.effective(), first.effective());
    return first;
  };
  const Config adam = on_two(R"("optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-4,
      "freeze_step": 400, "betas": [0.8, 0.99], "cuda_aware": false, "comm_backend_name": "nccl"}})");
  const EngineOptions options = engine_options(adam);
  EXPECT_EQ(options.optimizer.type, OptimizerSpec::Type::adamw);
  EXPECT_FALSE(options.optimizer.bias_correction);
  EXPECT_EQ(options.optimizer.freeze_step, 400);
  EXPECT_EQ(options.compression.gradients.type, WireFormat::Type::sign);
  EXPECT_EQ(options.compression.whole_steps, 400);
  EXPECT_TRUE(options.compression.feedback);
  EXPECT_TRUE(options.compression.corrects_momentum);
  EXPECT_FLOAT_EQ(options.compression.correction.momentum, 0.8f);
  EXPECT_FLOAT_EQ(options.compression.correction.share, 0.2f);
  EXPECT_FALSE(options.compression.correction.masks);
  EXPECT_EQ(on_two(R"("optimizer": {"type": "OneBitAdam"})").compression.whole_steps, 100000);

  const Config lamb = on_two(R"("optimizer": {"type": "onebitlamb", "params": {"freeze_step": 7,
      "max_coeff": 0.3, "coeff_beta": 0.9, "factor_max": 4.0}})");
  EXPECT_EQ(lamb.optimizer.type, OptimizerSpec::Type::lamb);
  EXPECT_EQ(lamb.optimizer.freeze_step, 7);
  EXPECT_EQ(lamb.optimizer.most_trust, 0.3);
  EXPECT_TRUE(lamb.compression.corrects_momentum);
  ASSERT_TRUE(lamb.optimizer.frozen_trust);
  EXPECT_EQ(lamb.optimizer.frozen_trust->threshold, 0.1);
  const auto trust = engine_options(on_two(R"("optimizer": {"type": "OneBitLamb", "params": {
      "coeff_beta": 0.8, "factor_max": 3.0, "factor_min": 0.25, "factor_threshold": 0.2}})"))
                         .optimizer.frozen_trust;
  ASSERT_TRUE(trust);
  EXPECT_EQ(trust->beta, 0.8);
  EXPECT_EQ(trust->most, 3.0);
  EXPECT_EQ(trust->least, 0.25);
  EXPECT_EQ(trust->threshold, 0.2);

  const Config zero_one = on_two(R"("optimizer": {"type": "ZeroOneAdam", "params": {
      "var_freeze_step": 60, "var_update_scaler": 8, "local_step_clipper": 8,
      "local_step_scaler": 5}})");
  EXPECT_EQ(zero_one.optimizer.freeze_step, 60);
  EXPECT_EQ(zero_one.optimizer.variance_scaler, 8);
  EXPECT_FALSE(zero_one.compression.corrects_momentum);
  EXPECT_EQ(zero_one.compression.whole_steps, 0);
  EXPECT_EQ(zero_one.compression.gradients.type, WireFormat::Type::sign);
  const LocalOptions moves = engine_options(zero_one).local;
  EXPECT_TRUE(moves.sums_moves);
  EXPECT_EQ(moves.whole_steps, 60);
  EXPECT_EQ(moves.steps, 8);
  EXPECT_EQ(moves.scaler, 5);
  const LocalOptions usual =
      engine_options(on_two(R"("optimizer": {"type": "ZeroOneAdam"})")).local;
  EXPECT_EQ(usual.steps, 16);
  EXPECT_EQ(usual.scaler, 32678);
  // Of one rank nothing is left of it but the second moment that stays.
  const Config alone = twice(config_with(R"(, "optimizer": {"type": "ZeroOneAdam"})"));
  EXPECT_FALSE(engine_options(alone).local.on());
  EXPECT_TRUE(engine_options(alone).compression.gradients.none());
  EXPECT_EQ(engine_options(alone).optimizer.freeze_step, 100000);
  // Where state is sharded ranks exchange in every step.
  const Config sharded = on_two(R"("optimizer": {"type": "ZeroOneAdam", "params": {
      "local_step_clipper": 8}}, "zero_optimization": {"stage": 1})");
  EXPECT_FALSE(engine_options(sharded).local.on());
  const std::vector<std::string>& idle = sharded.notes.idle;
  EXPECT_NE(std::find(idle.begin(), idle.end(), "optimizer.params.local_step_clipper"), idle.end());
  EXPECT_ERROR(on_two(R"("optimizer": {"type": "ZeroOneAdam"}, "delay": {"local_steps": 4})"),
               "delay.local_steps and what belongs to it are set by optimizer.type");
  EXPECT_ERROR(
      on_two(R"("optimizer": {"type": "ZeroOneAdam"}, "fp16": {"enabled": true})"),
      "training must be in fp32 or bf16. At zero_optimization.stage 1, ranks of ZeroOneAdam");

  EXPECT_ERROR(
      on_two(R"("optimizer": {"type": "OneBitAdam"}, "compression": {"gradients": "int8"})"),
      "compression.gradients is int8, and optimizer.type asks for 1bit");
  EXPECT_ERROR(on_two(R"("optimizer": {"type": "OneBitAdam"},
      "zero_optimization": {"stage": 3, "zero_quantized_gradients": true})"),
               "optimizer.type sends one bit");
  EXPECT_ERROR(on_two(R"("optimizer": {"type": "OneBitAdam"}, "delay": {"one_step": true})"),
               "delay.one_step is true, which does not go with momentum");
  EXPECT_ERROR(on_two(R"("optimizer": {"type": "OneBitAdam"}, "data_types": {"moments": "bf16"})"),
               "moments must be fp32");
  EXPECT_ERROR(on_two(R"("optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 9}},
      "compression": {"warmup_steps": 5})"),
               "optimizer.params.freeze_step, of at most warmup_steps");
  EXPECT_ERROR(on_two(R"("optimizer": {"type": "OneBitAdam"}, "scheduler": {"type": "OneCycle",
      "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3}})"),
               "the schedule may not change momentum");
}

TEST(OptimizerKeys, RatiosOfLambMayStay) {
  const auto lamb = [](const std::string& params) {
    return config_with(R"(, "optimizer": {"type": "Lamb", "params": {)" + params + "}}");
  };
  EXPECT_FALSE(lamb(R"("freeze_step": 9)").optimizer.frozen_trust);
  const Config stays = lamb(R"("freeze_step": 9, "coeff_beta": 0.5, "factor_max": 2)");
  ASSERT_TRUE(stays.optimizer.frozen_trust);
  EXPECT_EQ(stays.optimizer.frozen_trust->beta, 0.5);
  EXPECT_EQ(stays.optimizer.frozen_trust->most, 2);
  EXPECT_EQ(stays.optimizer.frozen_trust->least, 0.5);
  EXPECT_ERROR(lamb(R"("coeff_beta": 0.5)"),
               "optimizer.params.coeff_beta is of ratios that stay after freeze_step steps");
  EXPECT_ERROR(lamb(R"("freeze_step": 9, "factor_max": 2)"),
               "optimizer.params.factor_max has no effect: it is for ratios that stay");
  EXPECT_ERROR(lamb(R"("freeze_step": 9, "coeff_beta": 0.5, "factor_min": 5)"),
               "optimizer.params.factor_min is more than factor_max");
  EXPECT_ERROR(lamb(R"("freeze_step": 9, "coeff_beta": 1)"), "coeff_beta must be at least 0");
  EXPECT_ERROR(lamb(R"("freeze_step": 9, "coeff_beta": 0.5, "factor_threshold": -1)"),
               "factor_threshold must not be negative");
  EXPECT_ERROR(lamb(R"("freeze_step": 9, "coeff_beta": 0.5, "factor_max": 0)"),
               "factor_max must be");
  // No bound is one too.
  const auto free =
      lamb(R"("freeze_step": 9, "coeff_beta": 0.5, "factor_min": 0, "factor_threshold": 2.5)")
          .optimizer.frozen_trust;
  EXPECT_EQ(free->least, 0);
  EXPECT_EQ(free->threshold, 2.5);
  EXPECT_ERROR(lamb(R"("min_coeff": 5, "max_coeff": 2)"), "min_coeff is more than max_coeff");
}

TEST(OptimizerKeys, MuonsRateMayBeNamedApart) {
  const Config c =
      config_with(R"(, "optimizer": {"type": "Muon", "params": {"lr": 0.001, "muon_lr": 0.02}})");
  EXPECT_EQ(c.learning_rate, 0.02);
  EXPECT_DOUBLE_EQ(c.optimizer.adam_rate * c.learning_rate, 0.001);
}

TEST(OptimizerKeys, WhatIsMissingIsRefusedByName) {
  EXPECT_ERROR(config_with(R"(, "optimizer": {"type": "MuAdam"})"), "there are AdamW");
  EXPECT_ERROR(config_with(R"(, "optimizer": {"type": "Lion", "params": {"eps": 1e-8}})"), "eps");
  EXPECT_ERROR(config_with(R"(, "optimizer": {"type": "Lion"}, "data_types": {"moments": "8bit"})"),
               "and Lion does not");
}

TEST(OptimizerKeys, GroupsHaveRatesAndDecays) {
  const Config c = twice(config_with(R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01},
      "groups": [{"match": ["*.bias", "*norm*"], "weight_decay": 0, "lr": 0.005},
                 {"match": "embedding.*", "frozen": true}]})"));
  ASSERT_EQ(c.optimizer.groups.size(), 2U);
  EXPECT_EQ(c.optimizer.groups[0].rate, 0.5);
  EXPECT_EQ(c.optimizer.groups[0].weight_decay, 0.0);
  EXPECT_TRUE(c.optimizer.groups[1].frozen);
  EXPECT_EQ(c.optimizer.group_of("block.0.mlp.up.bias"), &c.optimizer.groups[0]);
  EXPECT_EQ(c.optimizer.group_of("embedding.tokens"), &c.optimizer.groups[1]);
  EXPECT_EQ(c.optimizer.group_of("block.0.mlp.up.weight"), nullptr);
  EXPECT_ERROR(config_with(R"(, "optimizer": {"groups": [{"match": "a", "frozen": true,
      "lr": 1}]})"),
               "the group is frozen");
  EXPECT_ERROR(config_with(R"(, "optimizer": {"groups": [{"lr": 1}]})"), "match");
}

TEST(OptimizerKeys, RateAndWarmUpFollowTheBatch) {
  const Config linear = config_with(R"(, "optimizer": {"params": {"lr": 0.001},
      "batch_scaling": {"base_batch": 2}},
      "scheduler": {"type": "cosine", "params": {"warmup_steps": 100}}, "run": {"steps": 1000})");
  EXPECT_DOUBLE_EQ(linear.learning_rate, 0.004);
  EXPECT_EQ(linear.schedule.warmup_steps, 25);
  ASSERT_FALSE(linear.notes.remarks.empty());
  EXPECT_EQ(linear.notes.remarks.back(),
            "optimizer.batch_scaling: lr 0.001 of batches of 2 becomes 0.004 for 8 sequences "
            "(linear); the warm-up of 100 steps becomes 25");
  EXPECT_DOUBLE_EQ(twice(linear).learning_rate, 0.004);
  const Config root = config_with(R"(, "optimizer": {"params": {"lr": 0.001},
      "batch_scaling": {"base_batch": 2, "rule": "sqrt", "warmup": false}},
      "scheduler": {"type": "cosine", "params": {"warmup_steps": 100}}, "run": {"steps": 1000})");
  EXPECT_DOUBLE_EQ(root.learning_rate, 0.002);
  EXPECT_EQ(root.schedule.warmup_steps, 100);
  EXPECT_ERROR(config_with(R"(, "optimizer": {"batch_scaling": {"rule": "sqrt"}})"), "base_batch");
}

TEST(ClippingKeys, AreRead) {
  const Config each =
      twice(config_with(R"(, "gradient_clipping": 0.5, "clipping": {"of": "tensor", "value": 2})"));
  EXPECT_EQ(each.gradient_clipping, 0.5);
  EXPECT_EQ(each.clip_rule.of, ClipRule::Of::tensor);
  EXPECT_EQ(each.clip_rule.value, 2);
  const Config adaptive = twice(config_with(R"(, "clipping": {"adaptive": 0.02})"));
  EXPECT_TRUE(adaptive.clip_rule.adaptive);
  EXPECT_EQ(engine_options(adaptive).clipping, 0.02);
  const Config past = twice(config_with(R"(, "clipping": {"percentile": 10, "window": 50})"));
  EXPECT_EQ(past.gradient_clipping, 0);
  EXPECT_EQ(past.clip_rule.percentile, 10);
  EXPECT_EQ(past.clip_rule.window, 50);
}

TEST(ClippingKeys, ThatContradictEachOtherAreRefused) {
  EXPECT_ERROR(config_with(R"(, "gradient_clipping": 1, "clipping": {"adaptive": 0.01})"),
               "set one of them");
  EXPECT_ERROR(config_with(R"(, "clipping": {"adaptive": 0.01, "of": "unit"})"), "neither");
  EXPECT_ERROR(config_with(R"(, "clipping": {"window": 5})"), "it is for percentile");
  EXPECT_ERROR(config_with(R"(, "clipping": {"percentile": 101})"), "at most 100");
  EXPECT_ERROR(config_with(R"(, "gradient_clipping": 0, "clipping": {"of": "unit"})"), "no effect");
  EXPECT_ERROR(config_with(R"(, "clipping": {"adaptive": 0.01},
      "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}})"),
               "needs the weights where gradients are");
}

}  // namespace
}  // namespace onefold
