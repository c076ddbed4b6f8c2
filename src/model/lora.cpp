#include "model/lora.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "model/hf_config.h"

namespace onefold {
namespace {

constexpr std::string_view kAllLinear = "all-linear";

bool is_starcoder2(const ModelSpec& spec) { return hf_family_for(spec) == HfFamily::starcoder2; }
bool is_gpt2(const ModelSpec& spec) { return hf_family_for(spec) == HfFamily::gpt2; }

// Those whose linear layers have the names of lora_modules().
bool takes_adapters(HfFamily family) {
  switch (family) {
    case HfFamily::gpt_neox:
    case HfFamily::gptj:
    case HfFamily::opt:
    case HfFamily::cohere:
    case HfFamily::cohere2:
    case HfFamily::falcon:
      return false;
    default:
      return true;
  }
}

bool matches(std::string_view text, std::string_view pattern) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return text == pattern;
  if (!text.starts_with(pattern.substr(0, star))) return false;
  for (size_t begin = star; begin <= text.size(); ++begin)
    if (matches(text.substr(begin), pattern.substr(star + 1))) return true;
  return false;
}

bool is_target(const std::string& name, const std::string& target) {
  return target == kAllLinear || matches(name, target) || matches(name, "*." + target);
}

}  // namespace

std::vector<LoraModule> lora_modules(const ModelSpec& spec) {
  const int64_t d = spec.hidden_size, q = spec.query_size(), kv = spec.kv_size(),
                n = spec.intermediate_size;
  constexpr const char *kQkv = "attention.qkv.weight", *kOut = "attention.out.weight",
                       *kUp = "mlp.up.weight", *kDown = "mlp.down.weight";
  if (is_gpt2(spec))
    return {{"attn.c_attn", kQkv, 0, spec.qkv_size(), d, 0},
            {"attn.c_proj", kOut, 0, d, q, 1},
            {"mlp.c_fc", kUp, 0, n, d, 2},
            {"mlp.c_proj", kDown, 0, d, n, 3}};
  if (is_starcoder2(spec))
    return {{"self_attn.q_proj", kQkv, 0, q, d, 0},
            {"self_attn.k_proj", kQkv, q, kv, d, 1},
            {"self_attn.v_proj", kQkv, q + kv, kv, d, 2},
            {"self_attn.o_proj", kOut, 0, d, q, 3},
            {"mlp.c_fc", kUp, 0, n, d, 4},
            {"mlp.c_proj", kDown, 0, d, n, 5}};
  if (spec.experts.enabled())  // experts are frozen: adapters are beside attention alone
    return {{"self_attn.q_proj", kQkv, 0, q, d, 0},
            {"self_attn.k_proj", kQkv, q, kv, d, 1},
            {"self_attn.v_proj", kQkv, q + kv, kv, d, 2},
            {"self_attn.o_proj", kOut, 0, d, q, 3}};
  return {{"self_attn.q_proj", kQkv, 0, q, d, 0},       {"self_attn.k_proj", kQkv, q, kv, d, 1},
          {"self_attn.v_proj", kQkv, q + kv, kv, d, 2}, {"self_attn.o_proj", kOut, 0, d, q, 3},
          {"mlp.gate_proj", kUp, 0, n, d, 4},           {"mlp.up_proj", kUp, n, n, d, 5},
          {"mlp.down_proj", kDown, 0, d, n, 6}};
}

std::string lora_module_name(const ModelSpec& spec, int block, const LoraModule& module) {
  return fmt::format("{}.{}.{}", is_gpt2(spec) ? "transformer.h" : "model.layers", block,
                     module.name);
}

bool is_adapted(const ModelSpec& spec, int block, const LoraModule& module) {
  if (!spec.lora.enabled()) return false;
  const std::string name = lora_module_name(spec, block, module);
  return std::any_of(spec.lora.targets.begin(), spec.lora.targets.end(),
                     [&](const std::string& target) { return is_target(name, target); });
}

void check_lora_targets(const ModelSpec& spec, const std::string& where) {
  if (const HfFamily family = hf_family_for(spec); !takes_adapters(family))
    user_error("{}: models like {} take no adapters yet", where, hf_model_type(family));
  std::vector<std::string> leaves, all;
  const std::vector<LoraModule> modules = lora_modules(spec);
  for (const LoraModule& module : modules) {
    if (std::find(leaves.begin(), leaves.end(), module.leaf()) == leaves.end())
      leaves.push_back(module.leaf());
    for (int block = 0; block < spec.num_layers; ++block)
      all.push_back(lora_module_name(spec, block, module));
  }
  if (spec.lora.targets.empty()) user_error("{} is empty: nothing would be trained", where);
  for (const std::string& target : spec.lora.targets)
    if (std::none_of(all.begin(), all.end(),
                     [&](const std::string& name) { return is_target(name, target); }))
      user_error(
          "{}: the model has no linear layer \"{}\"{}; there are {}, and all-linear for all of "
          "them. One of a block has a longer name, like {}; * stands for anything",
          where, target, did_you_mean(target, leaves), join(leaves, ", "), all.front());
}

std::vector<std::string> default_lora_targets(const ModelSpec& spec) {
  if (is_gpt2(spec)) return {"c_attn"};
  return {"q_proj", "v_proj"};
}

LoraNames lora_names(int block, const LoraModule& module) {
  const std::string part = module.parameter.substr(0, module.parameter.find('.'));
  const std::string name = fmt::format("block.{}.{}.{}", block, part, module.leaf());
  return {name + ".lora_A", name + ".lora_B"};
}

int64_t lora_parameter_count(const ModelSpec& spec) {
  if (!spec.lora.enabled()) return 0;
  int64_t count = 0;
  for (const LoraModule& module : lora_modules(spec))
    for (int block = 0; block < spec.num_layers; ++block)
      if (is_adapted(spec, block, module)) count += spec.lora.rank * (module.rows + module.cols);
  return count;
}

Json lora_json(const LoraSpec& lora) {
  return {{"rank", lora.rank},
          {"alpha", lora.alpha},
          {"dropout", shortest(lora.dropout)},
          {"targets", lora.targets}};
}

}  // namespace onefold
