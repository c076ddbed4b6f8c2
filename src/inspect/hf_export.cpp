#include "inspect/hf_export.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "data/hf_tokenizer.h"
#include "inspect/checkpoint_source.h"
#include "inspect/export_family.h"
#include "inspect/hf_source.h"
#include "inspect/saved_run.h"
#include "io/half.h"
#include "io/output_folder.h"
#include "model/hf_names.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kReadElems = int64_t{1} << 20;  // of one read: 4 MiB, and as much for the result
constexpr int64_t kBlocksKept = 16;  // of a parameter, before its mapped pages are let go
constexpr std::array<const char*, 3> kTokenIds = {"bos_token_id", "eos_token_id", "pad_token_id"};

bool is_exported_file(const std::string& name) {
  return name == "config.json" || name == kHfIndex || name == kHfWeights ||
         (name.starts_with("model-") && name.ends_with(".safetensors")) ||
         std::ranges::find(hf_companion_names(), std::string_view(name)) !=
             hf_companion_names().end();
}

std::string pretty(const Json& json) { return json.dump(2) + "\n"; }

const char* torch_dtype(const std::string& dtype) {
  if (dtype == "F16") return "float16";
  return dtype == "BF16" ? "bfloat16" : "float32";
}

// Of config.json: an id, a list of ids, or null.
Json token_ids_of(const Json& config) {
  Json ids = Json::object();
  for (const char* key : kTokenIds)
    if (config.is_object() && config.contains(key)) ids[key] = config[key];
  return ids;
}

std::string tokenizer_config(const Tokenizer& tokenizer, const ModelSpec& spec) {
  Json json;
  json["tokenizer_class"] = "PreTrainedTokenizerFast";
  json["model_max_length"] = spec.max_sequence_length;
  json["clean_up_tokenization_spaces"] = false;  // it would change the text
  if (tokenizer.end_of_text() >= 0)
    for (const char* key : {"bos_token", "eos_token"})
      json[key] = tokenizer.token_text(tokenizer.end_of_text());
  return pretty(json);
}

// What a run has kept of the Hugging Face model and tokenizer that it began with.
ModelExtras run_extras(const SavedRun& run, const ModelSpec& spec) {
  ModelExtras extras;
  Json kept = Json::object();
  if (path_exists(run.file(kHfConfigKept))) kept = read_plain_json(run.file(kHfConfigKept));
  if (kept.is_object() && kept.contains("model_type") && kept["model_type"].is_string()) {
    const HfFamily family =
        hf_family_named(kept["model_type"].get<std::string>(), run.file(kHfConfigKept));
    // Fields of the configuration may have made another model of it.
    if (hf_obstacle(spec, family).empty()) extras.family = family;
  }
  extras.token_ids = token_ids_of(kept);
  const std::optional<Tokenizer> tokenizer = run.tokenizer();
  if (!tokenizer) return extras;
  for (const std::string_view name : hf_companion_names()) {
    const std::string path = run.file(std::string(name));
    if (path_exists(path)) extras.files[std::string(name)] = read_plain_file(path);
  }
  if (!extras.files.contains("tokenizer_config.json"))
    extras.files["tokenizer_config.json"] = tokenizer_config(*tokenizer, spec);
  // The end of one document is also where the next begins: what `onefold generate` starts with.
  if (extras.token_ids.empty() && tokenizer->end_of_text() >= 0)
    for (const char* key : {"bos_token_id", "eos_token_id"})
      extras.token_ids[key] = tokenizer->end_of_text();
  return extras;
}

// The tokenizer is the run's. A checkpoint that was moved has none.
ModelExtras checkpoint_extras(const std::string& path, const ModelSpec& spec) {
  const std::string run = run_of_checkpoint(path);
  if (!path_exists(run + "/" + kRunModel)) return {};
  return run_extras(SavedRun(run), spec);
}

ModelExtras hf_extras(const std::string& folder, HfFamily family) {
  ModelExtras extras;
  extras.family = family;
  extras.token_ids = token_ids_of(read_model_config(folder));
  if (GgufFile::is_named(folder)) {
    try {
      extras.files = tokenizer_companions(folder);
    } catch (const UserError& error) {
      extras.remarks.emplace_back(error.what());
    }
    return extras;
  }
  for (const std::string_view name : hf_companion_names()) {
    const std::string path = fmt::format("{}/{}", folder, name);
    if (path_exists(path)) extras.files[std::string(name)] = read_plain_file(path);
  }
  if (!extras.files.contains("tokenizer.json")) extras.tokenizer = tokenizer_in_folder(folder);
  return extras;
}

ModelExtras base_extras(const std::string& folder) {
  return hf_extras(folder, HfSource(folder).family());
}

struct Placed {
  const HfParameter* parameter;
  const HfTensor* tensor;
};
using Shard = std::vector<Placed>;

// In order, a new file whenever the next tensor would make the last one too large; a tensor that is
// too large by itself is alone.
std::vector<Shard> make_shards(const std::vector<HfParameter>& parameters, int64_t width,
                               int64_t max_bytes) {
  std::vector<Shard> shards(1);
  int64_t bytes = 0;
  for (const HfParameter& parameter : parameters) {
    for (const HfTensor& tensor : parameter.tensors) {
      if (!shards.back().empty() && bytes + tensor.elems() * width > max_bytes) {
        shards.emplace_back();
        bytes = 0;
      }
      shards.back().push_back({&parameter, &tensor});
      bytes += tensor.elems() * width;
    }
  }
  return shards;
}

// Writes the tensors of one file, a block at a time.
class ShardWriter {
 public:
  ShardWriter(const ParameterSource& source, const std::string& path, const Shard& shard,
              std::string dtype)
      : source_(source),
        dtype_(std::move(dtype)),
        width_(safetensors_dtype_bytes(dtype_)),
        writer_(path, entries(shard, dtype_), {{"format", "pt"}}) {}

  void write(const Placed& placed) {
    if (placed.tensor->transposed)
      write_transposed(placed.parameter->param, *placed.tensor);
    else if (!placed.tensor->order.empty())
      write_ordered(placed.parameter->param, *placed.tensor);
    else
      write_plain(placed.parameter->param, *placed.tensor);
  }
  void commit() { writer_.commit(); }

 private:
  static std::vector<SafetensorsEntry> entries(const Shard& shard, const std::string& dtype) {
    std::vector<SafetensorsEntry> entries;
    for (const Placed& placed : shard)
      entries.push_back({placed.tensor->name, dtype, placed.tensor->shape, 0, 0});
    return entries;
  }

  void write_plain(const ParamSpec& param, const HfTensor& tensor) {
    for (int64_t done = 0; done < tensor.elems(); done += kReadElems) {
      values_.resize(static_cast<size_t>(std::min(kReadElems, tensor.elems() - done)));
      source_.read(param, tensor.first + done, values_);
      put(param, tensor);
      // A token table alone can be larger than memory.
      if (done / kReadElems % kBlocksKept == kBlocksKept - 1) source_.release(param);
    }
  }

  // Row after row of the file, wherever it is in the parameter.
  void write_ordered(const ParamSpec& param, const HfTensor& tensor) {
    const int64_t cols = tensor.row_elems(), rows = std::ssize(tensor.order);
    const std::vector<int64_t> ours = tensor.rows_in_parameter();
    const int64_t step = std::max<int64_t>(1, kReadElems / cols);
    for (int64_t first = 0; first < rows; first += step) {
      const int64_t count = std::min(step, rows - first);
      values_.resize(static_cast<size_t>(count * cols));
      for (int64_t row = 0; row < count; ++row)
        source_.read(
            param, tensor.first + ours[static_cast<size_t>(first + row)] * cols,
            std::span(values_).subspan(static_cast<size_t>(row * cols), static_cast<size_t>(cols)));
      put(param, tensor);
    }
  }

  // A row of the file is a column of the parameter, [out, in]: of each of its rows, as many columns
  // as make a block.
  void write_transposed(const ParamSpec& param, const HfTensor& tensor) {
    const int64_t in = tensor.shape[0], out = tensor.shape[1];
    const int64_t step = std::max<int64_t>(1, kReadElems / out);
    std::vector<float> piece;
    for (int64_t col = 0; col < in; col += step) {
      const int64_t cols = std::min(step, in - col);
      piece.resize(static_cast<size_t>(cols));
      values_.resize(static_cast<size_t>(cols * out));
      for (int64_t row = 0; row < out; ++row) {
        source_.read(param, tensor.first + row * in + col, piece);
        for (int64_t c = 0; c < cols; ++c)
          values_[static_cast<size_t>(c * out + row)] = piece[static_cast<size_t>(c)];
      }
      put(param, tensor);
    }
  }

  void put(const ParamSpec& param, const HfTensor& tensor) {
    bytes_.resize(values_.size() * static_cast<size_t>(width_));
    const int64_t overflows = from_f32(dtype_, values_, bytes_);
    if (overflows > 0)
      user_error("{} has values that are too large for {}, as {} of {}; export as {}", param.name,
                 dtype_ == "F16" ? "f16" : "bf16", overflows, values_.size(),
                 dtype_ == "F16" ? "bf16 or f32" : "f32");
    writer_.write(tensor.name, bytes_);
  }

  const ParameterSource& source_;
  const std::string dtype_;
  const int64_t width_;
  SafetensorsWriter writer_;
  std::vector<float> values_;
  std::vector<std::byte> bytes_;
};

std::string shard_name(size_t shard, size_t count) {
  if (count == 1) return kHfWeights;
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, count);
}

void write_weights(const ParameterSource& source, const std::vector<HfParameter>& parameters,
                   const OutputFolder& folder, int64_t max_shard_bytes, ExportResult& result) {
  const std::vector<Shard> shards =
      make_shards(parameters, safetensors_dtype_bytes(result.dtype), max_shard_bytes);
  Json weight_map = Json::object();
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string name = shard_name(s, shards.size());
    ShardWriter writer(source, folder.file(name), shards[s], result.dtype);
    for (const Placed& placed : shards[s]) {
      writer.write(placed);
      if (placed.tensor == &placed.parameter->tensors.back())
        source.release(placed.parameter->param);
      // push_back, not operator[]: the object is searched linearly, and the names are distinct.
      weight_map.get_ref<Json::object_t&>().push_back({placed.tensor->name, name});
    }
    writer.commit();
    result.files.push_back(name);
  }
  if (shards.size() == 1) return;
  Json index;
  index["metadata"] = {{"total_parameters", result.parameters}, {"total_size", result.bytes}};
  index["weight_map"] = std::move(weight_map);
  write_file(folder.file(kHfIndex), pretty(index));
  result.files.emplace_back(kHfIndex);
}

void write_descriptions(const ModelSpec& spec, const ModelExtras& extras,
                        const OutputFolder& folder, ExportResult& result) {
  Json config = hf_config_json(spec, result.family);
  Json generation = {{"_from_model_config", true}};
  // Without these, the class's defaults would be in force: ids of another vocabulary.
  for (const char* key : kTokenIds) {
    config[key] = extras.token_ids.contains(key) ? extras.token_ids[key] : Json(nullptr);
    if (!config[key].is_null()) generation[key] = config[key];
  }
  config["torch_dtype"] = torch_dtype(result.dtype);
  std::map<std::string, std::string> files = extras.files;
  files.emplace(kHfGeneration, pretty(generation));  // unless the source has one
  files.emplace("config.json", pretty(config));
  for (const auto& [name, content] : files) {
    write_file(folder.file(name), content);
    result.files.push_back(name);
  }
}

}  // namespace

HfFamily export_family(const ModelSpec& spec, const ModelExtras& extras,
                       std::optional<HfFamily> wanted) {
  if (!wanted && !extras.family) return hf_family_for(spec);
  const HfFamily family = wanted ? *wanted : *extras.family;
  const std::string obstacle = hf_obstacle(spec, family);
  if (!obstacle.empty())
    user_error("{} cannot express this model: {}", hf_model_type(family), obstacle);
  return family;
}

void require_export_space(const std::string& path, int64_t bytes) {
  fs::path at = fs::absolute(path);
  while (!fs::exists(at) && at.has_relative_path()) at = at.parent_path();
  std::error_code unknown;
  const fs::space_info space = fs::space(at, unknown);
  if (!unknown && space.available < static_cast<uintmax_t>(bytes))
    user_error("{}: the export takes {}, and {} is free", path, format_bytes(bytes),
               format_bytes(static_cast<int64_t>(space.available)));
}

std::optional<AdapterWeights> open_adapter(const std::string& path) {
  if (path_exists(path + "/" + kManifest)) {
    const CheckpointSource source(path);
    source.verify();
    if (!source.lora()) return std::nullopt;
    return adapter_of(source, source.lora()->base);
  }
  if (!path_exists(path + "/" + kRunLora)) return std::nullopt;
  return SavedRun(path).adapter();
}

AdapterWeights open_adapter(const std::string& path, const ModelSpec& base) {
  if (is_peft_folder(path)) return read_peft(path, base);
  std::optional<AdapterWeights> adapter = open_adapter(path);
  if (adapter) return std::move(*adapter);
  user_error("{} holds no adapters: name a folder with {}, or a run that was trained with lora",
             path, kPeftConfig);
}

std::shared_ptr<const ParameterSource> with_adapter(std::shared_ptr<const ParameterSource> base,
                                                    const std::string& path) {
  AdapterWeights adapter = open_adapter(path, base->model());
  return std::make_shared<MergedSource>(std::move(base), std::move(adapter));
}

std::map<std::string, std::string> files_to_keep(const std::string& tokenizer,
                                                 const std::string& model_config) {
  std::map<std::string, std::string> kept = tokenizer_companions(tokenizer);
  // A config.json beside a tokenizer may be anything.
  const auto config_of = [](const std::string& path) {
    try {
      if (path_exists(path) && GgufFile::is_named(path)) return read_model_config(path);
      Json config = is_plain_file(path) ? read_plain_json(path) : Json();
      if (config.is_object() && config.contains("model_type")) return config;
    } catch (const UserError&) {
    }
    return Json(Json::object());
  };
  const bool named = !tokenizer.empty() && tokenizer != "bytes";
  std::string of_tokenizer = named ? folder_of_tokenizer(tokenizer) + "/config.json" : "";
  if (GgufFile::is_named(tokenizer)) of_tokenizer = tokenizer;
  const bool together = tokenizer.empty() || is_same_file(of_tokenizer, model_config);
  Json config = model_config.empty() ? Json::object() : config_of(model_config);
  // Token ids are those of the tokenizer that the run has.
  if (!together) {
    for (const char* key : kTokenIds) config.erase(key);
    if (named) config.update(token_ids_of(config_of(of_tokenizer)));
  }
  if (!config.empty()) kept[kHfConfigKept] = pretty(config);
  return kept;
}

ModelOnDisk open_model(const std::string& path) {
  if (!path_exists(path))
    user_error("{} is neither a run folder nor a model's: it is not there", path);
  const bool hf =
      is_folder(path) && !path_exists(path + "/model.json") && path_exists(path + "/config.json");
  if (hf || GgufFile::is_named(path)) {
    auto source = std::make_shared<HfSource>(path);
    const HfFamily family = source->family();
    return {std::move(source), hf_extras(path, family)};
  }
  if (path_exists(path + "/" + kManifest)) {
    auto source = std::make_shared<CheckpointSource>(path);
    source->verify();
    if (source->lora()) return {model_of(source), base_extras(source->lora()->base)};
    return {source, checkpoint_extras(path, source->model())};
  }
  const SavedRun run(path);
  std::vector<std::string> passed_over;
  auto weights = run.weights(&passed_over);
  const std::optional<LoraRecord> record = run.lora();
  return {std::move(weights), record ? base_extras(record->base) : run_extras(run, run.model()),
          std::move(passed_over)};
}

ExportResult export_hf(const ParameterSource& source, const ModelExtras& extras,
                       const std::string& folder, const ExportOptions& options) {
  const ModelSpec& spec = source.model();
  ExportResult result;
  result.family = export_family(spec, extras, options.family);
  result.remarks = extras.remarks;
  result.dtype = options.dtype.empty() ? source.dtype() : options.dtype;
  result.parameters = spec.parameter_count();
  result.bytes = result.parameters * safetensors_dtype_bytes(result.dtype);
  if (spec.dropout != 0 && result.family != HfFamily::gpt2)
    result.remarks.push_back(
        fmt::format("dropout {} is not written: a {} model has no place for it", spec.dropout,
                    hf_model_type(result.family)));
  OutputFolder output(folder, options.overwrite, is_exported_file);
  require_export_space(folder, result.bytes);
  write_weights(source, hf_parameters(spec, result.family), output, options.max_shard_bytes,
                result);
  write_descriptions(spec, extras, output, result);
  output.commit();
  return result;
}

}  // namespace onefold
