// PEFT's format of adapters: adapter_config.json and adapter_model.safetensors, whose tensors are
// base_model.model.<module>.lora_A.weight [rank, inputs] and lora_B.weight [outputs, rank].
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "inspect/adapter.h"
#include "inspect/hf_source.h"
#include "io/half.h"
#include "io/output_folder.h"

namespace onefold {
namespace {

constexpr const char* kPrefix = "base_model.model.";

std::string peft_name(const std::string& module, char matrix) {
  return fmt::format("{}{}.lora_{}.weight", kPrefix, module, matrix);
}

// Keys that change what an adapter computes, with the value that computes what is computed here.
void require_plain(const Json& config, const std::string& where) {
  const auto refuse = [&](const char* key) {
    user_error("{}: {} is {}, which is not computed here", where, key, brief_json(config[key]));
  };
  for (const char* key : {"use_dora", "lora_bias", "use_qalora"})
    if (config.value(key, Json(false)) == true) refuse(key);
  for (const char* key :
       {"rank_pattern", "alpha_pattern", "layer_replication", "modules_to_save",
        "trainable_token_indices", "target_parameters", "alora_invocation_tokens", "arrow_config",
        "kasa_config", "monteclora_config", "velora_config", "use_bdlora"})
    if (const Json value = config.value(key, Json()); !value.is_null() && !value.empty())
      refuse(key);
  if (config.value("bias", Json("none")) != "none") refuse("bias");
}

LoraSpec read_config(const std::string& folder, std::string& base) {
  const std::string where = folder + "/" + kPeftConfig;
  const Json config = read_plain_json(where);
  if (!config.is_object() || config.value("peft_type", Json()) != "LORA")
    user_error("{}: peft_type is {}; LORA is what can be read", where,
               config.is_object() ? brief_json(config.value("peft_type", Json())) : "missing");
  require_plain(config, where);
  JsonObject in(config, where);
  LoraSpec lora;
  lora.rank = in.at_least("r", 1, 8);
  lora.alpha = in.positive("lora_alpha", 8);
  // A scale of alpha / sqrt(rank).
  if (in.get<bool>("use_rslora", false)) lora.alpha *= std::sqrt(static_cast<double>(lora.rank));
  lora.dropout = static_cast<float>(in.fraction("lora_dropout", 0));
  base = in.get<std::string>("base_model_name_or_path", "");
  return lora;
}

void read_matrix(const TensorFiles& tensors, const std::string& name, int64_t rows, int64_t cols,
                 std::vector<float>& values) {
  const SafetensorsEntry& entry = tensors.entry(name);
  const std::vector<int64_t> shape{rows, cols};
  if (!is_float_dtype(entry.dtype))
    user_error("{}: tensor {} is {}; F64, F32, F16, BF16 and F8 can be read", tensors.path(), name,
               entry.dtype);
  if (entry.shape != shape)
    user_error("{}: tensor {} has the shape {}, the model needs {}", tensors.path(), name,
               shape_text(entry.shape), shape_text(shape));
  values.resize(static_cast<size_t>(rows * cols));
  tensors.read(name, 0, values);
}

// Rows of B are outputs, which the module may have in another order than the parameter.
std::vector<float> in_our_order(const std::vector<float>& theirs, const LoraModule& module,
                                int64_t rank) {
  if (module.order.empty()) return theirs;
  std::vector<float> ours(theirs.size());
  for (int64_t row = 0; row < module.rows; ++row)
    std::copy_n(theirs.begin() + module.order[static_cast<size_t>(row)] * rank, rank,
                ours.begin() + row * rank);
  return ours;
}
std::vector<float> in_their_order(const std::vector<float>& ours, const LoraModule& module,
                                  int64_t rank) {
  if (module.order.empty()) return ours;
  std::vector<float> theirs(ours.size());
  for (int64_t row = 0; row < module.rows; ++row)
    std::copy_n(ours.begin() + row * rank, rank,
                theirs.begin() + module.order[static_cast<size_t>(row)] * rank);
  return theirs;
}

// The family by whose names the file has most adapters: some names are those of several.
HfFamily family_of(const TensorFiles& tensors, const ModelSpec& base) {
  HfFamily best = hf_family_for(base);
  int most = 0;
  for (const HfFamily family : hf_families()) {
    if (!hf_obstacle(base, family).empty()) continue;
    int found = 0;
    for (const LoraModule& module : lora_modules(base, family))
      for (int block = 0; block < base.num_layers; ++block)
        found += tensors.contains(peft_name(lora_module_name(family, block, module), 'A'));
    if (found > most) most = found, best = family;
  }
  return best;
}

// An adapter of a module that is several of ours, as Phi-3's of queries, keys and values, is one of
// each: with the same A, and its rows of B. False if it is a part of one of ours.
bool share_out(const LoraModule& module, const std::vector<float>& a, const std::vector<float>& b,
               int block, const std::vector<LoraModule>& ours, AdapterWeights& adapter) {
  const int64_t rank = adapter.lora.rank;
  bool any = false;
  for (const LoraModule& part : ours) {
    const int64_t first = part.first_row - module.first_row;
    if (part.parameter != module.parameter || first < 0 || first + part.rows > module.rows)
      continue;
    const LoraNames names = lora_names(block, part);
    adapter.values[names.a] = a;
    adapter.values[names.b].assign(b.begin() + first * rank,
                                   b.begin() + (first + part.rows) * rank);
    adapter.lora.targets.push_back(lora_module_name(adapter.model, block, part));
    any = true;
  }
  return any;
}

bool is_peft_file(const std::string& name) { return name == kPeftConfig || name == kPeftWeights; }

// As PEFT understands a list: a module's whole name, or its end after a dot.
std::vector<std::string> target_modules(const AdapterWeights& adapter) {
  const ModelSpec& base = adapter.model;
  ModelSpec adapted = base;
  adapted.lora = adapter.lora;
  const bool plain = std::none_of(
      adapter.lora.targets.begin(), adapter.lora.targets.end(), [](const std::string& target) {
        return target.find('*') != std::string::npos || target == "all-linear";
      });
  if (plain) return adapter.lora.targets;
  std::vector<std::string> whole, leaves;
  bool everywhere = true;
  for (const LoraModule& module : lora_modules(base)) {
    for (int block = 0; block < base.num_layers; ++block)
      if (is_adapted(adapted, block, module))
        whole.push_back(lora_module_name(base, block, module));
      else
        everywhere = false;
    if (std::find(leaves.begin(), leaves.end(), module.leaf()) == leaves.end())
      leaves.push_back(module.leaf());
  }
  return everywhere ? leaves : whole;
}

// One module's adapter as PEFT has it.
struct Exported {
  LoraModule module;
  int block;
  int64_t rank;
  std::vector<float> a, b;
};

// The adapter of a module that is these of ours: B beside B, A below A, so that each part's outputs
// come of its own; one A if all have the same.
Exported joined(const LoraModule& module, int block, const std::vector<LoraModule>& parts,
                const AdapterWeights& adapter) {
  const int64_t rank = adapter.lora.rank;
  std::vector<const LoraModule*> adapted;
  for (const LoraModule& part : parts)
    if (adapter.values.contains(lora_names(block, part).a)) adapted.push_back(&part);
  const auto a_of = [&](const LoraModule* part) -> const std::vector<float>& {
    return adapter.values.at(lora_names(block, *part).a);
  };
  const bool same = std::ranges::all_of(
      adapted, [&](const LoraModule* part) { return a_of(part) == a_of(adapted[0]); });
  Exported result{module, block, same ? rank : rank * static_cast<int64_t>(adapted.size()), {}, {}};
  result.b.resize(static_cast<size_t>(module.rows * result.rank));
  int64_t column = 0;
  for (const LoraModule* part : adapted) {
    const std::vector<float>& b = adapter.values.at(lora_names(block, *part).b);
    const int64_t first = part->first_row - module.first_row;
    for (int64_t row = 0; row < part->rows; ++row)
      std::copy_n(b.begin() + row * rank, rank,
                  result.b.begin() + (first + row) * result.rank + column);
    if (part == adapted[0] || !same)
      result.a.insert(result.a.end(), a_of(part).begin(), a_of(part).end());
    if (!same) column += rank;
  }
  result.b = in_their_order(result.b, module, result.rank);
  return result;
}

// With zeros, which add nothing: PEFT's files have one rank.
void widen(Exported& adapter, int64_t rank) {
  adapter.a.resize(static_cast<size_t>(rank * adapter.module.cols));
  std::vector<float> b(static_cast<size_t>(adapter.module.rows * rank));
  for (int64_t row = 0; row < adapter.module.rows; ++row)
    std::copy_n(adapter.b.begin() + row * adapter.rank, adapter.rank, b.begin() + row * rank);
  adapter.b = std::move(b);
  adapter.rank = rank;
}

// By a family's modules; none if one of ours is not whole in one of them.
std::vector<Exported> exported(const AdapterWeights& adapter, HfFamily family) {
  const std::vector<LoraModule> ours = lora_modules(adapter.model);
  std::vector<Exported> all;
  size_t used = 0;
  for (int block = 0; block < adapter.model.num_layers; ++block)
    for (const LoraModule& module : lora_modules(adapter.model, family)) {
      std::vector<LoraModule> parts;
      for (const LoraModule& part : ours)
        if (part.parameter == module.parameter && part.first_row >= module.first_row &&
            part.first_row + part.rows <= module.first_row + module.rows &&
            adapter.values.contains(lora_names(block, part).a))
          parts.push_back(part);
      used += 2 * parts.size();  // A and B
      if (!parts.empty()) all.push_back(joined(module, block, parts, adapter));
    }
  if (used != adapter.values.size()) return {};
  int64_t rank = 0;
  for (const Exported& one : all) rank = std::max(rank, one.rank);
  for (Exported& one : all)
    if (one.rank < rank) widen(one, rank);
  return all;
}

// The ends of names where every block has the adapter, else whole names.
std::vector<std::string> target_modules(const std::vector<Exported>& all, HfFamily family,
                                        int64_t blocks) {
  std::map<std::string, std::vector<std::string>> names;
  for (const Exported& one : all)
    names[one.module.leaf()].push_back(lora_module_name(family, one.block, one.module));
  std::vector<std::string> targets;
  for (const auto& [leaf, whole] : names)
    if (static_cast<int64_t>(whole.size()) == blocks)
      targets.push_back(leaf);
    else
      targets.insert(targets.end(), whole.begin(), whole.end());
  return targets;
}

bool have_other_names(const ModelSpec& spec, HfFamily family) {
  const std::vector<LoraModule> ours = lora_modules(spec), theirs = lora_modules(spec, family);
  return !std::ranges::equal(ours, theirs, {}, &LoraModule::name, &LoraModule::name);
}

Json peft_config(const AdapterWeights& adapter, const PeftResult& result, HfFamily family) {
  const LoraSpec& lora = adapter.lora;
  // What is computed is alpha / rank times the product.
  const double alpha =
      lora.alpha * static_cast<double>(result.rank) / static_cast<double>(lora.rank);
  const auto whole = static_cast<int64_t>(alpha);
  const bool is_whole = static_cast<double>(whole) == alpha;
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", adapter.base.empty() ? Json() : Json(adapter.base)},
          {"r", result.rank},
          {"lora_alpha", is_whole ? Json(whole) : Json(alpha)},
          {"lora_dropout", shortest(lora.dropout)},
          {"target_modules", result.target_modules},
          // GPT-2's linear layers are Conv1D, which keep [in, out].
          {"fan_in_fan_out", family == HfFamily::gpt2},
          {"bias", "none"},
          {"modules_to_save", nullptr},
          {"init_lora_weights", true},
          {"inference_mode", true}};
}

}  // namespace

bool is_peft_folder(const std::string& folder) { return path_exists(folder + "/" + kPeftConfig); }

AdapterWeights read_peft(const std::string& folder, const ModelSpec& base) {
  AdapterWeights adapter;
  adapter.model = base;
  adapter.lora = read_config(folder, adapter.base);
  const int64_t rank = adapter.lora.rank;
  const TensorFiles tensors = TensorFiles::open_file(folder + "/" + kPeftWeights);
  std::set<std::string> unknown(tensors.names().begin(), tensors.names().end());
  const HfFamily family = family_of(tensors, base);
  const std::vector<LoraModule> ours = lora_modules(base);
  std::vector<float> inputs, outputs;
  for (const LoraModule& module : lora_modules(base, family))
    for (int block = 0; block < base.num_layers; ++block) {
      const std::string name = lora_module_name(family, block, module);
      const std::string a = peft_name(name, 'A'), b = peft_name(name, 'B');
      if (!tensors.contains(a) && !tensors.contains(b)) continue;
      read_matrix(tensors, a, rank, module.cols, inputs);
      read_matrix(tensors, b, module.rows, rank, outputs);
      if (!share_out(module, inputs, in_our_order(outputs, module, rank), block, ours, adapter))
        continue;
      unknown.erase(a);
      unknown.erase(b);
    }
  if (!unknown.empty())
    user_error(
        "{} has a tensor for which the model has no place: {}. It belongs to another model, "
        "or adapts what is not a linear layer of a block",
        tensors.path(), *unknown.begin());
  if (adapter.values.empty()) user_error("{} has no adapter", tensors.path());
  return adapter;
}

std::optional<HfFamily> family_of_base(const std::string& base) {
  if (!is_folder(base) || !path_exists(base + "/config.json")) return std::nullopt;
  try {
    return HfSource(base).family();
  } catch (const UserError&) {  // it may have been moved, or cut down to what trains
    return std::nullopt;
  }
}

PeftResult export_peft(const AdapterWeights& adapter, const std::string& folder,
                       const PeftExport& options) {
  const ModelSpec& base = adapter.model;
  HfFamily family = options.family.value_or(hf_family_for(base));
  std::vector<Exported> all;
  const bool other = hf_obstacle(base, family).empty() && have_other_names(base, family);
  if (other) all = exported(adapter, family);
  const bool renamed = !all.empty();
  if (!renamed) {
    family = hf_family_for(base);
    all = exported(adapter, family);
  }
  std::vector<SafetensorsEntry> entries;
  struct Matrix {
    std::string theirs;
    std::vector<float> values;
  };
  std::vector<Matrix> matrices;
  PeftResult result;
  const auto add = [&](const std::string& theirs, std::vector<float> values, int64_t rows,
                       int64_t cols) {
    entries.push_back({theirs, options.dtype, {rows, cols}, 0, 0});
    matrices.push_back({theirs, std::move(values)});
    result.parameters += rows * cols;
  };
  result.rank = all.empty() ? adapter.lora.rank : all[0].rank;
  result.target_modules =
      renamed ? target_modules(all, family, base.num_layers) : target_modules(adapter);
  for (Exported& one : all) {
    const std::string name = lora_module_name(family, one.block, one.module);
    add(peft_name(name, 'A'), std::move(one.a), one.rank, one.module.cols);
    add(peft_name(name, 'B'), std::move(one.b), one.module.rows, one.rank);
  }
  result.bytes = result.parameters * safetensors_dtype_bytes(options.dtype);

  OutputFolder output(folder, options.overwrite, is_peft_file);
  SafetensorsWriter writer(output.file(kPeftWeights), entries, {{"format", "pt"}});
  std::vector<std::byte> bytes;
  for (const Matrix& matrix : matrices) {
    bytes.resize(matrix.values.size() *
                 static_cast<size_t>(safetensors_dtype_bytes(options.dtype)));
    if (from_f32(options.dtype, matrix.values, bytes) > 0)
      user_error("{} has values that are too large for {}; export as bf16 or f32", matrix.theirs,
                 options.dtype);
    writer.write(matrix.theirs, bytes);
  }
  writer.commit();
  write_file(output.file(kPeftConfig), peft_config(adapter, result, family).dump(2) + "\n");
  output.commit();
  result.files = {kPeftWeights, kPeftConfig};
  return result;
}

}  // namespace onefold
