// "bf16", "fp16", "data_types" and "communication_data_type", each key by its effect.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "config/config.h"
#include "error_text.h"

namespace onefold {
namespace {

Config read_types(const std::string& keys) {
  Json root = {{"model", "gpt2-tiny"}, {"train_batch_size", 8}};
  root.update(Json::parse(keys));
  const Config config = Config::from_json(root);
  EXPECT_EQ(Config::from_json(config.effective()).effective(), config.effective()) << keys;
  return config;
}

std::string refusal_of_types(const std::string& keys) {
  return error_text([&] { read_types(keys); });
}

bool is_idle(const Config& config, const std::string& path) {
  const std::vector<std::string>& idle = config.notes.idle;
  return std::find(idle.begin(), idle.end(), path) != idle.end();
}

TEST(PrecisionKeys, WithoutAnyEverythingIsFp32) {
  const Config config = read_types("{}");
  EXPECT_EQ(config.precision, Precision{});
  EXPECT_FALSE(config.skip_overflow);
  EXPECT_FALSE(config.effective().contains("bf16"));
}

TEST(PrecisionKeys, Bf16HasFp32MastersGradientsAndMoments) {
  for (const char* key : {"bf16", "bfloat16"}) {
    const Config config = read_types(fmt::format(R"({{"{}": {{"enabled": true}}}})", key));
    EXPECT_EQ(config.precision, (Precision{.compute = DType::bf16})) << key;
    EXPECT_TRUE(config.skip_overflow) << "check_grad_overflow is true in DeepSpeed";
    EXPECT_FALSE(config.loss_scale.dynamic());
    EXPECT_EQ(engine_options(config).precision, config.precision);
    EXPECT_TRUE(engine_options(config).skip_overflow);
  }
  EXPECT_FALSE(
      read_types(R"({"bf16": {"enabled": true, "check_grad_overflow": false}})").skip_overflow);
}

TEST(PrecisionKeys, Bf16WithoutMastersAsDeepSpeedNamesIt) {
  EXPECT_EQ(
      read_types(R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true}})").precision,
      (Precision{DType::bf16, DType::bf16, false}));
  EXPECT_EQ(read_types(R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true,
                                   "bf16_optimizer_states": true}})")
                .precision,
            (Precision{DType::bf16, DType::bf16, false, DType::bf16}));
  EXPECT_TRUE(
      contains(refusal_of_types(R"({"bf16": {"enabled": true, "bf16_optimizer_states": true}})"),
               "bf16.bf16_optimizer_states needs bf16_master_weights_and_grads"));
}

TEST(PrecisionKeys, Fp16ScalesTheLossByDeepSpeedsRules) {
  const Config plain = read_types(R"({"fp16": {"enabled": true}})");
  EXPECT_EQ(plain.precision, (Precision{.compute = DType::f16}));
  EXPECT_TRUE(plain.skip_overflow);
  EXPECT_TRUE(plain.loss_scale.dynamic());
  EXPECT_EQ(LossScale(plain.loss_scale).scale(), 65536);
  const LossScaleConfig scale =
      read_types(R"({"fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 5,
                  "loss_scale_window": 7, "hysteresis": 3, "consecutive_hysteresis": true,
                  "min_loss_scale": 4}})")
          .loss_scale;
  EXPECT_EQ(LossScale(scale).scale(), 32);
  EXPECT_EQ(scale.window, 7);
  EXPECT_EQ(scale.hysteresis, 3);
  EXPECT_TRUE(scale.consecutive);
  EXPECT_EQ(scale.least, 4);
  const Config fixed = read_types(R"({"fp16": {"enabled": true, "loss_scale": 128}})");
  EXPECT_FALSE(fixed.loss_scale.dynamic());
  EXPECT_EQ(LossScale(engine_options(fixed).loss_scale).scale(), 128);
}

TEST(PrecisionKeys, Fp16sValuesHaveRanges) {
  const auto said = [](const std::string& key) {
    return refusal_of_types(fmt::format(R"({{"fp16": {{"enabled": true, {}}}}})", key));
  };
  EXPECT_TRUE(contains(said(R"("loss_scale": -1)"), "fp16.loss_scale must not be negative"));
  EXPECT_TRUE(contains(said(R"("loss_scale_window": 0)"), "loss_scale_window must be at least 1"));
  EXPECT_TRUE(contains(said(R"("hysteresis": 0)"), "hysteresis must be at least 1"));
  EXPECT_TRUE(contains(said(R"("min_loss_scale": 0)"), "min_loss_scale must be"));
  EXPECT_TRUE(contains(said(R"("initial_scale_power": 65)"), "must be at most 64"));
  EXPECT_TRUE(contains(said(R"("fp16_master_weights_and_grads": true)"), "train in bf16"));
  EXPECT_TRUE(
      contains(refusal_of_types(R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})"),
               "fp16.enabled is true, and so is bf16.enabled: keep one"));
}

TEST(PrecisionKeys, OfATypeThatIsOffChangeNothing) {
  for (const char* key : {"fp16.hysteresis", "fp16.loss_scale", "bf16.check_grad_overflow"}) {
    const std::string section(key, 4), name(key + 5);
    const Config config =
        read_types(fmt::format(R"({{"{}": {{"enabled": false, "{}": {}}}}})", section, name,
                               name == "check_grad_overflow" ? "true" : "2"));
    EXPECT_EQ(config.precision, Precision{});
    EXPECT_TRUE(is_idle(config, key)) << key;
  }
}

// bf16 has no loss scale, and Apex's levels say nothing here: files have these keys all the same.
TEST(PrecisionKeys, OfEarlierReleasesChangeNothing) {
  const std::string bf16 =
      R"({"bf16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16, "hysteresis": 2,
                   "loss_scale_window": 1000, "min_loss_scale": 1, "opt_level": "O2"}})";
  const Config config = read_types(bf16), plain = read_types(R"({"bf16": {"enabled": true}})");
  EXPECT_EQ(config.effective(), plain.effective());
  for (const char* key : {"loss_scale", "initial_scale_power", "hysteresis", "loss_scale_window",
                          "min_loss_scale", "opt_level"})
    EXPECT_TRUE(is_idle(config, std::string("bf16.") + key)) << key;
  EXPECT_TRUE(
      is_idle(read_types(R"({"fp16": {"enabled": true, "opt_level": "O2"}})"), "fp16.opt_level"));
}

TEST(PrecisionKeys, GradientsAreSummedAsAsked) {
  constexpr const char* kOn = R"("bf16": {"enabled": true})";
  const auto gradients = [&](const std::string& keys) {
    return read_types(fmt::format("{{{}, {}}}", kOn, keys)).precision.gradients;
  };
  EXPECT_EQ(gradients(R"("data_types": {"grad_accum_dtype": "bf16"})"), DType::bf16);
  EXPECT_EQ(gradients(R"("data_types": {"grad_accum_dtype": "torch.bfloat16"})"), DType::bf16);
  EXPECT_EQ(gradients(R"("data_types": {"grad_accum_dtype": "fp32"})"), DType::f32);
  EXPECT_EQ(gradients(R"("communication_data_type": "bf16")"), DType::bf16);
  EXPECT_EQ(gradients(R"("communication_data_type": "fp32",
                         "data_types": {"grad_accum_dtype": "fp32"})"),
            DType::f32);
  EXPECT_TRUE(contains(refusal_of_types(fmt::format(R"({{{}, "communication_data_type": "bf16",
                                              "data_types": {{"grad_accum_dtype": "fp32"}}}})",
                                                    kOn)),
                       "communication_data_type is bf16 and data_types.grad_accum_dtype fp32"));
  EXPECT_TRUE(contains(refusal_of_types(R"({"data_types": {"grad_accum_dtype": "bf16"}})"),
                       "gradients are summed in fp32"));
  EXPECT_TRUE(contains(refusal_of_types(R"({"data_types": {"grad_accum_dtype": "fp8"}})"),
                       "must be fp32, bf16 or fp16, not \"fp8\""));
  EXPECT_TRUE(contains(
      refusal_of_types(R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true},
                                   "data_types": {"grad_accum_dtype": "fp32"}})"),
      "asks for gradients in bf16"));
}

TEST(PrecisionKeys, MastersAndMomentsAreKeysOfOurs) {
  EXPECT_EQ(
      read_types(R"({"bf16": {"enabled": true}, "data_types": {"moments": "bf16"}})").precision,
      (Precision{DType::bf16, DType::f32, true, DType::bf16}));
  EXPECT_EQ(read_types(R"({"bf16": {"enabled": true}, "data_types": {"master": false}})").precision,
            (Precision{DType::bf16, DType::f32, false}));
  EXPECT_EQ(read_types(R"({"data_types": {"moments": "bf16"}})").precision,
            (Precision{.moments = DType::bf16}));
  EXPECT_TRUE(is_idle(read_types(R"({"data_types": {"master": false}})"), "data_types.master"));
  EXPECT_EQ(read_types(R"({"data_types": {"moments": "8bit"}})").precision.moments, DType::u8);
  EXPECT_TRUE(
      contains(refusal_of_types(R"({"data_types": {"moments": "8bit"}, "optimizer": {"type": "SGD",
                                   "params": {"lr": 0.1, "momentum": 0.9}}})"),
               "moments in 8 bits, which AdamW and Adam have"));
  EXPECT_TRUE(
      contains(refusal_of_types(R"({"data_types": {"moments": "fp16"}})"), "too small a range"));
  EXPECT_TRUE(
      contains(refusal_of_types(R"({"fp16": {"enabled": true}, "data_types": {"master": false}})"),
               "data_types.master is false"));
}

TEST(PrecisionKeys, ParamAndBufferTypesMustAgree) {
  EXPECT_EQ(refusal_of_types(R"({"bf16": {"enabled": true}, "data_types": {"param_dtype": "bf16",
                        "buffer_dtype": "fp32", "keep_in_fp32_modules": "auto"}})"),
            "");
  EXPECT_TRUE(contains(refusal_of_types(R"({"data_types": {"param_dtype": "bf16"}})"),
                       "data_types.param_dtype is bf16, and the sections bf16 and fp16 say fp32"));
  EXPECT_TRUE(
      contains(refusal_of_types(R"({"data_types": {"buffer_dtype": "bf16"}})"), "rope's table"));
}

// "auto" follows the weights' own type.
TEST(PrecisionKeys, AutoIsTheModelsType) {
  EXPECT_EQ(read_types(R"({"bf16": {"enabled": "auto"}, "fp16": "auto"})").precision, Precision{});
  const Config plain = read_types(R"({"bf16": {"enabled": "auto"}, "fp16": "auto"})");
  ASSERT_EQ(plain.notes.remarks.size(), 1U);
  EXPECT_TRUE(contains(plain.notes.remarks[0], "bf16 and fp16 left to \"auto\": fp32"));
}

}  // namespace
}  // namespace onefold
