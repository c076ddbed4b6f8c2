#include "model/hf_names.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "error_text.h"

namespace onefold {
namespace {

ModelSpec tiny(const std::string& preset) { return spec_from_preset(preset, "model"); }

ModelSpec qwen2() {
  ModelSpec spec = tiny("llama-tiny");
  spec.qkv_bias = true;
  return spec;
}

ModelSpec qwen2_moe() {
  ModelSpec spec = qwen2();
  spec.experts = {.count = 4,
                  .per_token = 3,
                  .intermediate_size = 7,
                  .shared_intermediate_size = 9,
                  .shared_gate = true,
                  .normalised = false,
                  .dense_blocks = {1}};
  return spec;
}

ModelSpec qwen3_moe() {
  ModelSpec spec = tiny("qwen3-tiny");
  spec.experts = {.count = 4, .intermediate_size = 7, .every = 2, .balance_loss = 0.5f};
  return spec;
}

// By name, where each tensor comes from.
std::map<std::string, std::pair<std::string, HfTensor>> tensors(const ModelSpec& spec,
                                                                HfFamily family) {
  std::map<std::string, std::pair<std::string, HfTensor>> all;
  for (const HfParameter& parameter : hf_parameters(spec, family))
    for (const HfTensor& tensor : parameter.tensors)
      EXPECT_TRUE(all.emplace(tensor.name, std::pair(parameter.param.name, tensor)).second)
          << tensor.name;
  return all;
}

TEST(HfNames, TensorsCoverEveryParameterOnce) {
  for (const auto& [spec, family] : {std::pair(tiny("gpt2-tiny"), HfFamily::gpt2),
                                     {tiny("llama-tiny"), HfFamily::llama},
                                     {tiny("llama-tiny"), HfFamily::mistral},
                                     {qwen2(), HfFamily::qwen2},
                                     {tiny("qwen3-tiny"), HfFamily::qwen3},
                                     {tiny("mixtral-tiny"), HfFamily::mixtral},
                                     {qwen2_moe(), HfFamily::qwen2_moe},
                                     {qwen3_moe(), HfFamily::qwen3_moe}}) {
    int64_t sum = 0;
    for (const HfParameter& parameter : hf_parameters(spec, family)) {
      int64_t next = 0;
      for (const HfTensor& tensor : parameter.tensors) {
        EXPECT_EQ(tensor.first, next) << tensor.name;
        next += tensor.elems();
      }
      EXPECT_EQ(next, parameter.param.elems()) << parameter.param.name;
      sum += next;
    }
    EXPECT_EQ(sum, spec.parameter_count()) << hf_model_type(family);
  }
}

TEST(HfNames, LlamaSplitsQueriesKeysValuesAndGateUp) {
  const ModelSpec spec = tiny("llama-tiny");  // 3 query heads of 14, 1 key head, hidden 42
  const auto all = tensors(spec, HfFamily::llama);
  const auto& [owner, values] = all.at("model.layers.2.self_attn.v_proj.weight");
  EXPECT_EQ(owner, "block.2.attention.qkv.weight");
  EXPECT_EQ(values.shape, (std::vector<int64_t>{14, 42}));
  EXPECT_EQ(values.first, (42 + 14) * 42);
  EXPECT_EQ(all.at("model.layers.0.mlp.gate_proj.weight").second.first, 0);
  EXPECT_EQ(all.at("model.layers.0.mlp.up_proj.weight").second.first, 103 * 42);
  EXPECT_EQ(all.at("lm_head.weight").first, "head.weight");
  EXPECT_EQ(
      tensors(qwen2(), HfFamily::qwen2).at("model.layers.1.self_attn.k_proj.bias").second.first,
      42);
}

TEST(HfNames, Gpt2TransposesTheLinearLayersOfBlocksAlone) {
  for (const auto& [name, place] : tensors(tiny("gpt2-tiny"), HfFamily::gpt2)) {
    const bool linear = name.find(".c_") != std::string::npos && name.ends_with(".weight");
    EXPECT_EQ(place.second.transposed, linear) << name;
  }
  const auto all = tensors(tiny("gpt2-tiny"), HfFamily::gpt2);
  EXPECT_EQ(all.at("transformer.h.0.attn.c_attn.weight").second.shape,
            (std::vector<int64_t>{39, 117}));
  EXPECT_FALSE(all.contains("lm_head.weight")) << "the head is tied";
}

TEST(HfNames, AMatrixOfOneRowIsStillAMatrix) {
  ModelSpec spec = tiny("gpt2-tiny");
  spec.intermediate_size = 1;
  spec.max_sequence_length = 1;
  const auto all = tensors(spec, HfFamily::gpt2);
  EXPECT_EQ(all.at("transformer.wpe.weight").second.shape, (std::vector<int64_t>{1, 39}));
  EXPECT_EQ(all.at("transformer.h.0.mlp.c_fc.weight").second.shape, (std::vector<int64_t>{39, 1}));
  EXPECT_EQ(all.at("transformer.h.0.mlp.c_fc.bias").second.shape, (std::vector<int64_t>{1}));
}

TEST(HfNames, BuffersOfOldFilesAreKnown) {
  EXPECT_TRUE(is_hf_buffer("h.0.attn.bias"));
  EXPECT_TRUE(is_hf_buffer("model.layers.0.self_attn.rotary_emb.inv_freq"));
  EXPECT_FALSE(is_hf_buffer("h.0.attn.c_attn.bias"));
  EXPECT_FALSE(is_hf_buffer("model.layers.0.self_attn.q_proj.bias"));
}

TEST(HfConfig, EveryFamilyReadsBackWhatItWrites) {
  ModelSpec scaled = tiny("llama-tiny");
  scaled.rope_scaling = {RopeScaling::Type::llama3, 8.0f, 1.0f, 4.0f, 16};
  scaled.activation = Activation::gelu;
  ModelSpec linear = tiny("qwen3-tiny");
  linear.rope_scaling = {RopeScaling::Type::linear, 2.5f};
  ModelSpec biased = tiny("llama-tiny");
  biased.qkv_bias = biased.attention_out_bias = biased.mlp_bias = true;
  ModelSpec dropped = tiny("gpt2-tiny");
  dropped.dropout = 0.1f;
  dropped.activation = Activation::relu;
  for (const auto& [spec, type] : {std::pair(tiny("gpt2-tiny"), "gpt2"),
                                   {dropped, "gpt2"},
                                   {tiny("llama-tiny"), "llama"},
                                   {tiny("llama-tiny"), "mistral"},
                                   {scaled, "llama"},
                                   {biased, "llama"},
                                   {qwen2(), "qwen2"},
                                   {tiny("qwen3-tiny"), "qwen3"},
                                   {linear, "qwen3"},
                                   {tiny("mixtral-tiny"), "mixtral"},
                                   {qwen2_moe(), "qwen2_moe"},
                                   {qwen3_moe(), "qwen3_moe"}}) {
    const Json config = hf_config_json(spec, hf_family_named(type, "family"));
    EXPECT_EQ(config["model_type"], type);
    EXPECT_EQ(spec_from_hf_config(config, "config").to_json(), spec.to_json()) << config.dump(2);
  }
}

TEST(HfConfig, TheFamilyFollowsFromTheModel) {
  EXPECT_EQ(hf_family_for(tiny("gpt2-tiny")), HfFamily::gpt2);
  EXPECT_EQ(hf_family_for(tiny("llama-tiny")), HfFamily::llama) << "mistral could too";
  EXPECT_EQ(hf_family_for(tiny("qwen3-tiny")), HfFamily::qwen3);
  EXPECT_EQ(hf_family_for(qwen2()), HfFamily::qwen2);
  for (const auto& [preset, family] : {std::pair("mistral-7b", HfFamily::mistral),
                                       {"gemma-2-2b", HfFamily::gemma2},
                                       {"gemma-3-1b", HfFamily::gemma3},
                                       {"olmo-2-1b", HfFamily::olmo2},
                                       {"granite-3.3-2b", HfFamily::granite},
                                       {"pythia-160m", HfFamily::gpt_neox},
                                       {"gpt-j-6b", HfFamily::gptj},
                                       {"opt-125m", HfFamily::opt},
                                       {"command-r", HfFamily::cohere},
                                       {"falcon-7b", HfFamily::falcon},
                                       {"bloom-560m", HfFamily::bloom},
                                       {"mpt-7b", HfFamily::mpt}}) {
    const ModelSpec spec = spec_from_preset(preset, "test");
    EXPECT_EQ(hf_family_for(spec), family) << preset;
    EXPECT_EQ(spec_from_hf_config(hf_config_json(spec, family), "config").to_json(), spec.to_json())
        << preset;
  }
}

TEST(HfConfig, AModelThatNoFamilyHasIsRefusedWithEveryReason) {
  ModelSpec spec = tiny("llama-tiny");
  spec.norm = Norm::layernorm;
  EXPECT_ERROR(hf_family_for(spec), "no supported Hugging Face architecture", "gpt2 (positions is",
               "llama (norm is layernorm)", "qwen3 (norm is layernorm)");
  const auto obstacle = [](HfFamily family, auto change) {
    ModelSpec model = tiny(family == HfFamily::gpt2 ? "gpt2-tiny" : "llama-tiny");
    change(model);
    return hf_obstacle(model, family);
  };
  using enum HfFamily;
  EXPECT_EQ(obstacle(gpt2, [](ModelSpec& m) { m.mlp_bias = false; }), "mlp_bias is false");
  EXPECT_EQ(obstacle(gpt2, [](ModelSpec& m) { m.num_kv_heads = 1; }),
            "num_kv_heads is not num_heads");
  EXPECT_EQ(obstacle(gpt2, [](ModelSpec& m) { m.gated = true; }), "the activation is gated");
  EXPECT_EQ(obstacle(llama, [](ModelSpec& m) { m.qk_norm = true; }), "qk_norm is true");
  EXPECT_EQ(obstacle(llama, [](ModelSpec& m) { m.gated = false; }), "the activation is not gated");
  EXPECT_EQ(obstacle(llama, [](ModelSpec& m) { m.qkv_bias = true; }),
            "qkv_bias is true and attention_out_bias false");
  EXPECT_EQ(obstacle(llama, [](ModelSpec& m) { m.hidden_size = 44; }),
            "hidden_size is not a multiple of num_heads");
  EXPECT_EQ(obstacle(mistral, [](ModelSpec& m) { m.hidden_size = 44; }), "");
  EXPECT_EQ(obstacle(mistral, [](ModelSpec& m) { m.qkv_bias = true; }), "qkv_bias is true");
  EXPECT_EQ(obstacle(qwen2, [](ModelSpec&) {}), "qkv_bias is false");
  EXPECT_EQ(obstacle(qwen3, [](ModelSpec&) {}), "qk_norm is false");
  EXPECT_EQ(obstacle(mistral, [](ModelSpec& m) { m.mlp_bias = true; }), "mlp_bias is true");
  EXPECT_ERROR(hf_family_named("bert", "--family"), "--family is \"bert\"", "gpt2, llama");
}

}  // namespace
}  // namespace onefold
