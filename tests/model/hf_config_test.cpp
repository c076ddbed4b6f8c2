// config.json as several versions of transformers wrote it: what a key means where another says the
// same, where it is left out, and what transformers makes of both (compared with 5.23).
#include "model/hf_config.h"

#include <gtest/gtest.h>

#include <cmath>

#include "error_text.h"
#include "model/unit.h"

namespace onefold {
namespace {

ModelSpec read(const Json& config) { return spec_from_hf_config(config, "config"); }

// Of a family with Llama's names, all sizes given.
Json config_of(const char* family, const Json& more = Json::object()) {
  Json config = {{"model_type", family},        {"vocab_size", 53},
                 {"hidden_size", 24},           {"num_hidden_layers", 2},
                 {"num_attention_heads", 4},    {"num_key_value_heads", 2},
                 {"intermediate_size", 19},     {"max_position_embeddings", 96},
                 {"tie_word_embeddings", false}};
  config.update(more);
  return config;
}

Json yarn(const Json& more = Json::object()) {
  Json scaling = {{"rope_type", "yarn"}, {"factor", 4.0}};
  scaling.update(more);
  return scaling;
}

TEST(HfRope, TheOlderKeyComesFirst) {
  Json config = config_of("llama", {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}},
                                    {"rope_parameters", {{"rope_theta", 70.0}}},
                                    {"rope_theta", 500.0}});
  EXPECT_EQ(read(config).rope_scaling.factor, 2.0f);
  EXPECT_EQ(read(config).rope_theta, 500.0f);
  config["rope_scaling"] = Json::object();  // which says nothing
  EXPECT_EQ(read(config).rope_theta, 70.0f);
}

TEST(HfRope, TheOriginalContextBesideTheObjectComesFirst) {
  const Json inside = yarn({{"original_max_position_embeddings", 32}});
  const auto original = [](const Json& config) {
    return read(config).rope_scaling.original_max_sequence_length;
  };
  EXPECT_EQ(original(config_of("mistral", {{"rope_scaling", inside}})), 32);
  EXPECT_EQ(original(config_of(
                "mistral", {{"rope_scaling", inside}, {"original_max_position_embeddings", 16}})),
            16);
  EXPECT_EQ(original(config_of("mistral", {{"rope_scaling", yarn()}})), 96);
}

TEST(HfRope, ABaseThatIsLeftOutIsTheFamilysOwn) {
  const Json without = {{"rope_parameters", {{"rope_type", "default"}}}};
  EXPECT_EQ(read(config_of("llama", without)).rope_theta, 1e4f);
  EXPECT_EQ(read(config_of("smollm3", without)).rope_theta, 2e6f);
  Json mixtral = config_of("mixtral", without);
  mixtral["num_local_experts"] = 2;
  EXPECT_EQ(read(mixtral).rope_theta, 1e6f);
}

// DeepSeek's constants: only both together change the length, and one of its own comes before.
TEST(HfRope, MscaleIsAFactorOfTheLength) {
  const auto factor = [](const Json& more) {
    return read(config_of("llama", {{"rope_scaling", yarn(more)}})).rope_scaling.attention_factor;
  };
  EXPECT_EQ(factor(Json::object()), 0.0f);
  EXPECT_EQ(factor({{"mscale", 0.7}}), 0.0f);
  EXPECT_EQ(factor({{"mscale", 1.0}, {"mscale_all_dim", 1.0}}), 1.0f);
  const double log = 0.1 * std::log(4.0);
  EXPECT_FLOAT_EQ(factor({{"mscale", 1.0}, {"mscale_all_dim", 0.5}}),
                  static_cast<float>((log + 1) / (log * 0.5 + 1)));
  EXPECT_EQ(factor({{"mscale", 1.0}, {"mscale_all_dim", 0.5}, {"attention_factor", 1.25}}), 1.25f);
}

TEST(HfSizes, HaveAGeneralNameToo) {
  Json config = {{"model_type", "gpt2"},
                 {"vocab_size", 53},
                 {"hidden_size", 24},
                 {"num_hidden_layers", 2},
                 {"n_head", 4},
                 {"n_positions", 64},
                 {"max_position_embeddings", 64},
                 {"resid_pdrop", 0},
                 {"embd_pdrop", 0},
                 {"attn_pdrop", 0}};
  EXPECT_EQ(read(config).hidden_size, 24);
  EXPECT_EQ(read(config).num_layers, 2);
  config["n_layer"] = 3;  // of two that differ, transformers takes one
  EXPECT_ERROR(read(config), "config.num_hidden_layers is 2", "n_layer says the same, and is 3");
}

TEST(HfWindows, SequencesAreShorterWhereTheyFollowNoPattern) {
  Json config = config_of("ministral", {{"sliding_window", 5},
                                        {"layer_types", {"full_attention", "sliding_attention"}}});
  const ModelSpec spec = read(config);
  EXPECT_EQ(spec.max_sequence_length, 5);
  EXPECT_EQ(spec.positions_text(),
            "5 positions: its description says 96, but its blocks without a window do not lie at "
            "equal distances, and the longest sequence is the window of the others, 5, up to which "
            "that makes no difference");
  config["sliding_window"] = 96;
  EXPECT_EQ(read(config).positions_text(), "96 positions");
  config = config_of(
      "qwen2", {{"sliding_window", 7}, {"use_sliding_window", true}, {"max_window_layers", 1}});
  EXPECT_TRUE(read(config).positions_text().starts_with("7 positions: "));
  EXPECT_FALSE(read(config).to_json().contains("shortened"));
}

// transformers has it in the families whose blocks are of two kinds alone.
TEST(HfWindows, KindsOfBlocksAreRefusedWhereTheyAreNotHeeded) {
  const Json kinds = {{"sliding_window", 5},
                      {"layer_types", {"full_attention", "sliding_attention"}}};
  for (const char* family : {"mistral", "phi3", "starcoder2"}) {
    Json config = config_of(family, kinds);
    EXPECT_ERROR(read(config), "config.layer_types", "every block of this family");
    config["sliding_window"] = nullptr;
    EXPECT_EQ(read(config).sliding_window, 0) << family;
    config["sliding_window"] = 5;
    config.erase("layer_types");
    EXPECT_EQ(read(config).sliding_window, 5) << family;
  }
  EXPECT_NO_THROW(read(config_of("ministral", kinds)));
}

// transformers keeps the key and does not cap.
TEST(HfGemma3, HasNoCapOfScores) {
  Json config = config_of(
      "gemma3_text",
      {{"sliding_window", 5}, {"sliding_window_pattern", 2}, {"attn_logit_softcapping", nullptr}});
  EXPECT_EQ(read(config).attention_soft_cap, 0.0f);
  config["attn_logit_softcapping"] = 2.0;
  EXPECT_ERROR(read(config), "config.attn_logit_softcapping is 2.0", "set it to null");
  ModelSpec spec = read(config_of("gemma3_text", {{"sliding_window_pattern", 2}}));
  spec.attention_soft_cap = 2;
  EXPECT_EQ(hf_obstacle(spec, HfFamily::gemma3), "attention_soft_cap is set");
}

// transformers cannot run a Ministral without.
TEST(HfFamilies, AMinistralIsWrittenWithAWindow) {
  const Json full = {"full_attention", "full_attention"};
  const ModelSpec spec =
      read(config_of("ministral", {{"sliding_window", 5}, {"layer_types", full}}));
  EXPECT_EQ(spec.sliding_window, 0);
  const Json written = hf_config_json(spec, HfFamily::ministral);
  EXPECT_EQ(written["sliding_window"], 96);
  EXPECT_EQ(written["layer_types"], full);
  EXPECT_EQ(read(written).to_json(), spec.to_json());
}

// What is read of a family can be written of it, or its weights could not be loaded.
TEST(HfFamilies, WhatIsReadCanBeWritten) {
  Json moe = config_of("qwen2_moe", {{"qkv_bias", false},
                                     {"num_experts", 4},
                                     {"moe_intermediate_size", 7},
                                     {"shared_expert_intermediate_size", 9}});
  for (const bool bias : {false, true}) {
    moe["qkv_bias"] = bias;
    const ModelSpec spec = read(moe);
    EXPECT_EQ(spec.qkv_bias, bias);
    EXPECT_EQ(hf_obstacle(spec, HfFamily::qwen2_moe), "");
    EXPECT_EQ(read(hf_config_json(spec, HfFamily::qwen2_moe)).to_json(), spec.to_json());
  }
  for (const auto& [name, family] :
       {std::pair{"gemma", HfFamily::gemma}, {"gemma2", HfFamily::gemma2}}) {
    const ModelSpec spec = read(config_of(name, {{"head_dim", 6}, {"rope_scaling", yarn()}}));
    EXPECT_EQ(hf_obstacle(spec, family), "");
    EXPECT_EQ(read(hf_config_json(spec, family)).to_json(), spec.to_json());
  }
}

}  // namespace
}  // namespace onefold
