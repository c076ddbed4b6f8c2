#include "model/lora.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "model/hf_names.h"

namespace onefold {
namespace {

constexpr std::string_view kAllLinear = "all-linear";

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
  return lora_modules(spec, hf_family_for(spec));
}

std::vector<LoraModule> lora_modules(const ModelSpec& spec, HfFamily family) {
  struct Matrix {
    const char* name;
    int64_t rows, cols;
  };
  const int64_t d = spec.hidden_size, q = spec.query_size(), n = spec.intermediate_size;
  std::vector<Matrix> matrices = {{"attention.qkv.weight", spec.qkv_size(), d},
                                  {"attention.out.weight", d, q}};
  // Experts are frozen: adapters are beside attention alone.
  if (!spec.experts.enabled()) {
    matrices.push_back({"mlp.up.weight", spec.gated ? 2 * n : n, d});
    matrices.push_back({"mlp.down.weight", d, n});
  }
  std::vector<LoraModule> modules;
  for (const Matrix& matrix : matrices) {
    int64_t first = 0;
    for (HfPart& part : hf_block_parts(spec, family, matrix.name, matrix.rows)) {
      const std::string name = part.name.substr(0, part.name.rfind('.'));  // without ".weight"
      modules.push_back({name, matrix.name, first, part.rows, matrix.cols,
                         static_cast<uint32_t>(modules.size()), std::move(part.order)});
      first += part.rows;
    }
  }
  return modules;
}

std::string lora_module_name(const ModelSpec& spec, int block, const LoraModule& module) {
  return lora_module_name(hf_family_for(spec), block, module);
}

std::string lora_module_name(HfFamily family, int block, const LoraModule& module) {
  return fmt::format("{}.{}.{}", hf_layers(family), block, module.name);
}

bool is_adapted(const ModelSpec& spec, int block, const LoraModule& module) {
  if (!spec.lora.enabled()) return false;
  const std::string name = lora_module_name(spec, block, module);
  return std::any_of(spec.lora.targets.begin(), spec.lora.targets.end(),
                     [&](const std::string& target) { return is_target(name, target); });
}

void check_lora_targets(const ModelSpec& spec, const std::string& where) {
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
  const std::vector<LoraModule> modules = lora_modules(spec);
  if (modules.front().rows == spec.qkv_size()) return {modules.front().leaf()};
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
