// Which linear layers have adapters, by Hugging Face's names, and what parameters those are.
#include "model/lora.h"

#include <gtest/gtest.h>

#include <set>

#include "error_text.h"
#include "model/hf_names.h"
#include "model/unit.h"

namespace onefold {
namespace {

ModelSpec adapted(const std::string& preset, std::vector<std::string> targets, int64_t rank = 2) {
  ModelSpec spec = spec_from_preset(preset, "test");
  spec.lora = {.rank = rank, .alpha = 4, .dropout = 0, .targets = std::move(targets)};
  return spec;
}

std::vector<std::string> names_of(const ModelSpec& spec) {
  std::vector<std::string> names;
  for (int block = 0; block < spec.num_layers; ++block)
    for (const LoraModule& module : lora_modules(spec))
      if (is_adapted(spec, block, module)) names.push_back(lora_module_name(spec, block, module));
  return names;
}

TEST(LoraTargets, AreNamesOfModulesOrTheirEnds) {
  using Names = std::vector<std::string>;
  ModelSpec llama = adapted("llama-tiny", {"q_proj"});
  llama.num_layers = 2;
  const auto with = [&](Names targets) {
    llama.lora.targets = std::move(targets);
    return names_of(llama);
  };
  const std::string first = "model.layers.0.", second = "model.layers.1.";
  EXPECT_EQ(with({"q_proj"}), (Names{first + "self_attn.q_proj", second + "self_attn.q_proj"}));
  EXPECT_EQ(with({"layers.1.self_attn.v_proj"}), (Names{second + "self_attn.v_proj"}));
  EXPECT_EQ(with({second + "mlp.up_proj"}), (Names{second + "mlp.up_proj"}));
  EXPECT_EQ(with({"layers.0.self_attn.*"}),
            (Names{first + "self_attn.q_proj", first + "self_attn.k_proj",
                   first + "self_attn.v_proj", first + "self_attn.o_proj"}));
  EXPECT_EQ(with({"1.mlp.*_proj"}).size(), 3u);
  EXPECT_EQ(with({"all-linear"}).size(), 14u);
  EXPECT_TRUE(with({"proj"}).empty()) << "an end begins after a dot";
  // GPT-2 has two layers of this name in a block, as with PEFT.
  EXPECT_EQ(names_of(adapted("gpt2", {"c_proj"})).size(), 24u);
  EXPECT_EQ(names_of(adapted("gpt2", {"mlp.c_proj"})).size(), 12u);
}

TEST(LoraTargets, UnknownOnesAreAnsweredWithThoseThereAre) {
  EXPECT_ERROR(check_lora_targets(adapted("llama-tiny", {"q_proj", "c_attn"}), "lora.targets"),
               "lora.targets", "no linear layer \"c_attn\"", "q_proj, k_proj, v_proj, o_proj, ",
               "gate_proj, up_proj, down_proj", "all-linear", "model.layers.0.self_attn.q_proj");
  EXPECT_ERROR(check_lora_targets(adapted("gpt2-tiny", {"c_atn"}), "lora.targets"),
               "did you mean \"c_attn\"", "c_attn, c_proj, c_fc");
  EXPECT_ERROR(check_lora_targets(adapted("gptj-tiny", {"o_proj"}), "lora.targets"),
               "q_proj, k_proj, v_proj, out_proj, fc_in, fc_out", "transformer.h.0.attn.q_proj");
  EXPECT_ERROR(check_lora_targets(adapted("neox-tiny", {"q_proj"}), "lora.targets"),
               "query_key_value, dense, dense_h_to_4h", "gpt_neox.layers.0.attention");
  EXPECT_ERROR(check_lora_targets(adapted("gpt2-tiny", {}), "lora.targets"), "is empty");
  EXPECT_ERROR(check_lora_targets(adapted("llama-tiny", {"lm_head"}), "lora.targets"), "lm_head");
  ModelSpec neither = adapted("gpt2-tiny", {"c_attn"});
  neither.positions = Positions::rope;
  EXPECT_NE(error_text([&] { check_lora_targets(neither, "lora.targets"); }), "");
}

// The modules are the tensors of Hugging Face's files, cut where those are.
TEST(LoraModules, CoverEveryLinearLayerOfABlock) {
  for (const char* preset :
       {"gpt2-tiny", "llama-tiny", "qwen3-tiny", "qwen2-0.5b", "neox-tiny", "gptj-tiny", "opt-125m",
        "falcon-7b", "command-r", "bloom-560m", "mpt-7b"}) {
    const ModelSpec spec = spec_from_preset(preset, "test");
    std::map<std::string, LoraModule> modules;
    for (const LoraModule& module : lora_modules(spec))
      modules[lora_module_name(spec, 0, module) + ".weight"] = module;
    size_t found = 0;
    for (const HfParameter& parameter : hf_parameters(spec, hf_family_for(spec)))
      for (const HfTensor& tensor : parameter.tensors) {
        if (!parameter.param.name.starts_with("block.0.") || tensor.shape.size() != 2) continue;
        ASSERT_TRUE(modules.contains(tensor.name)) << tensor.name;
        const LoraModule& module = modules[tensor.name];
        EXPECT_EQ("block.0." + module.parameter, parameter.param.name);
        EXPECT_EQ(module.first_row * module.cols, tensor.first);
        EXPECT_EQ(module.rows * module.cols, tensor.elems());
        EXPECT_EQ(module.cols, parameter.param.cols);
        EXPECT_EQ(module.order, tensor.order);
        ++found;
      }
    EXPECT_EQ(found, modules.size()) << preset;
  }
}

TEST(LoraTargets, DefaultToThoseOfPeft) {
  for (const auto& [preset, targets] :
       {std::pair<const char*, std::vector<std::string>>{"gpt2-tiny", {"c_attn"}},
        {"llama-tiny", {"q_proj", "v_proj"}},
        {"gptj-tiny", {"q_proj", "v_proj"}},
        {"opt-125m", {"q_proj", "v_proj"}},
        {"neox-tiny", {"query_key_value"}},
        {"falcon-7b", {"query_key_value"}},
        {"bloom-560m", {"query_key_value"}},
        {"mpt-7b", {"Wqkv"}}})
    EXPECT_EQ(default_lora_targets(spec_from_preset(preset, "test")), targets) << preset;
}

TEST(LoraParameters, ComeAfterTheOthersAndLeaveTheirRandomNumbersAlone) {
  for (const char* preset : {"gpt2-tiny", "llama-tiny", "neox-tiny", "gptj-tiny"}) {
    const ModelSpec spec = adapted(preset, {"all-linear"}, 3);
    std::map<std::string, ParamSpec> plain;
    for (const ParamSpec& param : parameters_of(spec.base())) plain[param.name] = param;
    std::set<std::pair<uint32_t, uint32_t>> keys;
    int64_t adapters = 0;
    for (const ParamSpec& param : parameters_of(spec)) {
      EXPECT_TRUE(keys.insert({param.layer_key, param.place_key}).second) << param.name;
      EXPECT_EQ(is_saved(spec, param), param.adapter) << param.name;
      if (param.adapter) {
        adapters += param.elems();
        EXPECT_EQ(param.name.ends_with("lora_A") ? param.rows : param.cols, 3) << param.name;
        continue;
      }
      EXPECT_EQ(param.place_key, plain.at(param.name).place_key) << param.name;
      EXPECT_EQ(param.layer_key, plain.at(param.name).layer_key) << param.name;
      plain.erase(param.name);
    }
    EXPECT_TRUE(plain.empty());
    EXPECT_EQ(adapters, lora_parameter_count(spec));
    EXPECT_EQ(spec.parameter_count(), spec.base().parameter_count());
  }
}

TEST(LoraParameters, FrozenWeightsCostTwoProductsOfThree) {
  const ModelSpec plain = spec_from_preset("llama-tiny", "test");
  const ModelSpec spec = adapted("llama-tiny", {"q_proj", "v_proj"});
  const double matrices = (plain.flops_per_token(1) -
                           6.0 * static_cast<double>(plain.num_layers * plain.query_size())) /
                          6;
  EXPECT_DOUBLE_EQ(spec.flops_per_token(1),
                   plain.flops_per_token(1) - 2 * matrices +
                       6.0 * static_cast<double>(lora_parameter_count(spec)));
}

}  // namespace
}  // namespace onefold
