#include "inspect/adapter.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "inspect/hf_source.h"
#include "inspect/saved_run.h"
#include "io/checksum.h"

namespace onefold {

Json LoraRecord::to_json() const {
  Json json = lora_json(lora);
  json["base"] = {{"path", base}, {"fingerprint", fingerprint}};
  return json;
}

LoraRecord LoraRecord::from_json(const Json& json, const std::string& where) {
  JsonObject in(json, where);
  LoraRecord record;
  record.lora.rank = in.require<int64_t>("rank");
  record.lora.alpha = in.require<double>("alpha");
  record.lora.dropout = in.require<float>("dropout");
  record.lora.targets = in.require<std::vector<std::string>>("targets");
  JsonObject base = in.object("base");
  record.base = base.require<std::string>("path");
  record.fingerprint = base.require<std::string>("fingerprint");
  base.finish();
  in.finish();
  if (record.lora.rank < 1) user_error("{}: rank is {}", where, record.lora.rank);
  return record;
}

LoraRecord lora_record(const LoraSpec& lora, const std::string& base) {
  // An adapter names its base, and who loads it (PEFT) knows no run.
  if (path_exists(base + "/" + kRunModel))
    user_error(
        "lora: the base {0} is the folder of a run; export it, onefold export {0} FOLDER, and name "
        "that folder as the model",
        base);
  return {lora, std::filesystem::absolute(base).lexically_normal().string(),
          base_fingerprint(base)};
}

std::string base_fingerprint(const std::string& folder) {
  constexpr size_t kBlocks = 16, kBlockBytes = 4096;
  const TensorFiles tensors = TensorFiles::open_hf_folder(folder);
  std::vector<std::string> names = tensors.names();
  std::sort(names.begin(), names.end());  // however they are spread over files
  Checksum checksum;
  for (const std::string& name : names) {
    const SafetensorsEntry& entry = tensors.entry(name);
    const std::string what = fmt::format("{} {} {}\n", name, entry.dtype, shape_text(entry.shape));
    checksum.add(std::as_bytes(std::span(what)));
    const std::span<const std::byte> bytes = tensors.bytes(name);
    if (bytes.size() <= kBlocks * kBlockBytes) {
      checksum.add(bytes);
    } else {
      for (size_t block = 0; block < kBlocks; ++block)
        checksum.add(
            bytes.subspan((bytes.size() - kBlockBytes) / (kBlocks - 1) * block, kBlockBytes));
    }
    tensors.release(name);
  }
  return checksum.text();
}

void require_same_base(const LoraRecord& record, const std::string& folder) {
  if (base_fingerprint(folder) == record.fingerprint) return;
  user_error(
      "the model in {} is not the one that the adapters were trained on: its tensors have changed "
      "since. Name the folder of the original (model, or model.weights)",
      folder);
}

AdapterWeights adapter_of(const ParameterSource& source, const std::string& base) {
  AdapterWeights adapter{source.model().base(), source.model().lora, base, {}};
  for (const ParamSpec& param : parameters_of(source.model())) {
    if (!param.adapter) continue;
    std::vector<float>& values = adapter.values[param.name];
    values.resize(static_cast<size_t>(param.elems()));
    source.read(param, 0, values);
  }
  return adapter;
}

MergedSource::MergedSource(std::shared_ptr<const ParameterSource> base, AdapterWeights adapter)
    : base_(std::move(base)), adapter_(std::move(adapter)) {
  for (int block = 0; block < model().num_layers; ++block)
    for (const LoraModule& module : lora_modules(model())) {
      const LoraNames names = lora_names(block, module);
      if (!adapter_.values.contains(names.a)) continue;
      const auto elems = [&](const std::string& name) {
        return static_cast<int64_t>(adapter_.values.at(name).size());
      };
      if (elems(names.a) != adapter_.lora.rank * module.cols ||
          elems(names.b) != adapter_.lora.rank * module.rows)
        user_error("the adapter of {} does not fit the model: it was trained for another one",
                   lora_module_name(model(), block, module));
      parts_[fmt::format("block.{}.{}", block, module.parameter)].push_back(
          {module.first_row, module.rows, module.cols, &adapter_.values.at(names.a),
           &adapter_.values.at(names.b)});
    }
}

void MergedSource::read(const ParamSpec& param, int64_t first, std::span<float> dst) const {
  base_->read(param, first, dst);
  const auto found = parts_.find(param.name);
  if (found == parts_.end()) return;
  for (const Part& part : found->second) add(part, first, dst);
}

// Row by row of the parameter, as far as they lie in [first, first + dst.size()).
void MergedSource::add(const Part& part, int64_t first, std::span<float> dst) const {
  const int64_t rank = adapter_.lora.rank, cols = part.cols;
  const float scale = adapter_.lora.scale();
  const int64_t begin = std::max(first, part.first * cols);
  const int64_t end =
      std::min(first + static_cast<int64_t>(dst.size()), (part.first + part.rows) * cols);
  std::vector<float> sums;
  for (int64_t at = begin; at < end;) {
    const int64_t row = at / cols - part.first, col = at % cols;
    const int64_t count = std::min(cols - col, end - at);
    sums.assign(static_cast<size_t>(count), 0.0f);
    for (int64_t k = 0; k < rank; ++k) {
      const float b = (*part.b)[static_cast<size_t>(row * rank + k)];
      const float* a = part.a->data() + k * cols + col;
      for (int64_t c = 0; c < count; ++c) sums[static_cast<size_t>(c)] += b * a[c];
    }
    float* to = dst.data() + (at - first);
    for (int64_t c = 0; c < count; ++c) to[c] += scale * sums[static_cast<size_t>(c)];
    at += count;
  }
}

std::shared_ptr<const ParameterSource> adapted_model(const LoraRecord& record,
                                                     const ParameterSource& adapters) {
  if (!TensorFiles::in_folder(record.base))
    user_error(
        "the base model of the adapters is not in {} any more; name its new folder, and the run "
        "as what adapts it: onefold generate BASE --adapter RUN, or onefold export BASE FOLDER "
        "--adapter RUN",
        record.base);
  require_same_base(record, record.base);
  auto base = std::make_shared<HfSource>(record.base, adapters.model());
  return std::make_shared<MergedSource>(std::move(base), adapter_of(adapters, record.base));
}

}  // namespace onefold
