// PEFT's format of adapters: adapter_config.json and adapter_model.safetensors, whose tensors are
// base_model.model.<module>.lora_A.weight [rank, inputs] and lora_B.weight [outputs, rank].
#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "inspect/adapter.h"
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

Json peft_config(const AdapterWeights& adapter, const std::vector<std::string>& targets) {
  const LoraSpec& lora = adapter.lora;
  const auto whole = static_cast<int64_t>(lora.alpha);
  const bool is_whole = static_cast<double>(whole) == lora.alpha;
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", adapter.base.empty() ? Json() : Json(adapter.base)},
          {"r", lora.rank},
          {"lora_alpha", is_whole ? Json(whole) : Json(lora.alpha)},
          {"lora_dropout", shortest(lora.dropout)},
          {"target_modules", targets},
          // GPT-2's linear layers are Conv1D, which keep [in, out].
          {"fan_in_fan_out", hf_family_for(adapter.model) == HfFamily::gpt2},
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

PeftResult export_peft(const AdapterWeights& adapter, const std::string& folder,
                       const PeftExport& options) {
  const ModelSpec& base = adapter.model;
  struct Matrix {
    std::string theirs;
    std::vector<float> values;
  };
  std::vector<SafetensorsEntry> entries;
  std::vector<Matrix> matrices;
  PeftResult result;
  const auto add = [&](const std::string& theirs, std::vector<float> values, int64_t rows,
                       int64_t cols) {
    entries.push_back({theirs, options.dtype, {rows, cols}, 0, 0});
    matrices.push_back({theirs, std::move(values)});
    result.parameters += rows * cols;
  };
  for (int block = 0; block < base.num_layers; ++block)
    for (const LoraModule& module : lora_modules(base)) {
      const LoraNames ours = lora_names(block, module);
      if (!adapter.values.contains(ours.a)) continue;
      const std::string name = lora_module_name(base, block, module);
      const int64_t rank = adapter.lora.rank;
      add(peft_name(name, 'A'), adapter.values.at(ours.a), rank, module.cols);
      add(peft_name(name, 'B'), in_their_order(adapter.values.at(ours.b), module, rank),
          module.rows, rank);
    }
  result.target_modules = target_modules(adapter);
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
  write_file(output.file(kPeftConfig), peft_config(adapter, result.target_modules).dump(2) + "\n");
  output.commit();
  result.files = {kPeftWeights, kPeftConfig};
  return result;
}

}  // namespace onefold
