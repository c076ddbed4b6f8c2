// The fields of a mixture of experts: what they mean, and what is refused.
#include <gtest/gtest.h>

#include "error_text.h"
#include "model/hf_config.h"
#include "model/lora.h"
#include "model/unit.h"

namespace onefold {
namespace {

ModelSpec spec_with_experts(const std::string& experts, const std::string& more = "") {
  const std::string text =
      R"({"preset": "llama-tiny", "num_layers": 6, "experts": )" + experts + more + "}";
  return spec_from_json(parse_json(text, "test"), "model");
}

TEST(ExpertSpecs, RoundTripThroughJson) {
  const ModelSpec spec = spec_with_experts(
      R"({"num_experts": 7, "experts_per_token": 3, "intermediate_size": 11,
          "shared_intermediate_size": 13, "shared_gate": true, "scores": "sigmoid",
          "normalise_weights": false, "every": 2, "dense_blocks": [3, 1, 3], "balance_loss": 0.25,
          "z_loss": 0.5, "jitter": 0.125, "capacity_factor": 1.5})");
  EXPECT_EQ(spec_from_json(spec.to_json(), "model").experts, spec.experts);
  EXPECT_EQ(spec.experts.dense_blocks, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(spec_from_json(spec.to_json(), "model").to_json().dump(), spec.to_json().dump());
}

TEST(ExpertSpecs, SayWhichBlocksHaveExperts) {
  const auto blocks = [](const ModelSpec& spec) {
    std::vector<int> with;
    for (int block = 0; block < spec.num_layers; ++block)
      if (spec.has_experts(block)) with.push_back(block);
    EXPECT_EQ(spec.expert_blocks(), static_cast<int64_t>(with.size()));
    return with;
  };
  EXPECT_EQ(blocks(spec_with_experts(R"({"num_experts": 4, "dense_blocks": [0, 5]})")),
            (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(blocks(spec_with_experts(R"({"num_experts": 4, "every": 2, "dense_blocks": [2, 3]})")),
            (std::vector<int>{1, 5}));
  EXPECT_EQ(blocks(spec_with_experts(R"({"num_experts": 0})")), std::vector<int>());
}

TEST(ExpertSpecs, ParametersAreCountedAsUnitsHaveThem) {
  for (const char* experts :
       {R"({"num_experts": 4})", R"({"num_experts": 3, "every": 4, "intermediate_size": 7})",
        R"({"num_experts": 5, "shared_intermediate_size": 9, "shared_gate": true,
            "dense_blocks": [2]})"}) {
    const ModelSpec spec = spec_with_experts(experts);
    int64_t elems = 0;
    for (const ParamSpec& param : parameters_of(spec)) elems += param.elems();
    EXPECT_EQ(spec.parameter_count(), elems) << experts;
  }
  // 12.9 of Mixtral's 46.7 billion, and 3.3 of Qwen's 30.5, as their makers say.
  EXPECT_EQ(spec_from_preset("mixtral-8x7b", "model").active_parameter_count() / 100'000'000, 128);
  EXPECT_EQ(spec_from_preset("qwen3-30b-a3b", "model").active_parameter_count() / 100'000'000, 33);
  const ModelSpec dense = spec_from_preset("llama-tiny", "model");
  EXPECT_EQ(dense.active_parameter_count(), dense.parameter_count());
}

TEST(ExpertSpecs, CapacityIsAShareOfChoicesRoundedUp) {
  ExpertSpec experts{.count = 8, .per_token = 2};
  EXPECT_EQ(experts.capacity(100), 0) << "all";
  experts.capacity_factor = 1.25f;
  EXPECT_EQ(experts.capacity(100), 32);  // 1.25 * 200 / 8 = 31.25
  EXPECT_EQ(experts.capacity(1), 1);
  experts.capacity_factor = 1000;
  EXPECT_EQ(experts.capacity(100), 100) << "a token chooses an expert once";
}

TEST(ExpertSpecs, RefuseWhatMakesNoModel) {
  EXPECT_ERROR(spec_with_experts(R"({"num_experts": 2, "experts_per_token": 3})"),
               "model.experts.experts_per_token is 3; it may be 1 to 2");
  EXPECT_ERROR(spec_with_experts(R"({"num_experts": 5000})"), "model.experts.num_experts is 5000",
               "4096");
  EXPECT_ERROR(spec_with_experts(R"({"num_experts": 2, "shared_gate": true})"),
               "model.experts.shared_gate has no effect without a shared_intermediate_size");
  EXPECT_ERROR(spec_with_experts(R"({"num_experts": 2, "dense_blocks": [6]})"),
               "model.experts.dense_blocks is 6; it may be 0 to 5");
  EXPECT_ERROR(spec_with_experts(R"({"num_experts": 2, "every": 7})"),
               "leaves no block with experts");
  EXPECT_ERROR(spec_with_experts(R"({"num_experts": 2, "jitter": 1})"),
               "model.experts.jitter must be less than 1");
  EXPECT_ERROR(spec_with_experts(R"({"num_experts": 2, "z_loss": -1})"),
               "model.experts.z_loss must be at least 0");
  EXPECT_ERROR(spec_with_experts(R"({"num_experts": 2})", R"(, "mlp_bias": true)"),
               "model.mlp_bias is true: experts have no biases");
  EXPECT_ERROR(spec_with_experts(R"({"number": 2})"), "model.experts.number");
}

TEST(ExpertSpecs, AdaptersAreBesideAttentionAlone) {
  ModelSpec spec = spec_from_preset("mixtral-tiny", "model");
  EXPECT_EQ(lora_modules(spec).size(), 4u);
  spec.lora = {.rank = 2, .targets = {"gate_proj"}};
  EXPECT_ERROR(check_lora_targets(spec, "lora.targets"), "no linear layer \"gate_proj\"", "q_proj");
}

Json mixtral_config() {
  return parse_json(R"({"model_type": "mixtral", "vocab_size": 50, "hidden_size": 32,
    "intermediate_size": 36, "num_hidden_layers": 2, "num_attention_heads": 8,
    "max_position_embeddings": 64, "num_local_experts": 4})",
                    "test");
}

TEST(HfExperts, DefaultsAreThoseOfTheClass) {
  const ModelSpec spec = spec_from_hf_config(mixtral_config(), "config");
  EXPECT_EQ(spec.num_kv_heads, 8);
  EXPECT_EQ(spec.rope_theta, 1e6f);
  EXPECT_EQ(spec.norm_eps, 1e-5f);
  EXPECT_EQ(spec.experts.per_token, 2);
  EXPECT_TRUE(spec.experts.normalised);
  EXPECT_EQ(spec.experts.balance_loss, 0) << "transformers leaves it out unless asked for logits";
}

TEST(HfExperts, WhatChangesTheArithmeticIsRefusedByName) {
  Json config = mixtral_config();
  config["router_jitter_noise"] = 0.1;
  EXPECT_ERROR(spec_from_hf_config(config, "config"), "config.router_jitter_noise is 0.1",
               "model.experts.jitter");
  config = mixtral_config();
  config["num_local_experts"] = 0;
  EXPECT_ERROR(spec_from_hf_config(config, "config"), "config.num_local_experts is 0");
}

TEST(HfExperts, AFamilyIsChosenByWhatTheMixtureHas) {
  const auto family = [](const std::string& preset, const std::string& experts,
                         const std::string& more = "") {
    return hf_family_for(spec_from_json(
        parse_json(R"({"preset": ")" + preset + R"(", "experts": )" + experts + more + "}", "t"),
        "model"));
  };
  EXPECT_EQ(family("llama-tiny", R"({"num_experts": 4})"), HfFamily::mixtral);
  EXPECT_EQ(family("qwen3-tiny", R"({"num_experts": 4, "every": 2})"), HfFamily::qwen3_moe);
  EXPECT_EQ(family("llama-tiny",
                   R"({"num_experts": 4, "shared_intermediate_size": 5, "shared_gate": true})",
                   R"(, "qkv_bias": true)"),
            HfFamily::qwen2_moe);
  EXPECT_ERROR(family("llama-tiny", R"({"num_experts": 4, "scores": "sigmoid"})"),
               "mixtral (experts.scores is sigmoid)", "llama (it has experts)");
}

}  // namespace
}  // namespace onefold
