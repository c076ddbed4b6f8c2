#include "run/run_folder.h"

#include <filesystem>

#include "base/file.h"
#include "io/safetensors.h"

namespace onefold {
namespace {

constexpr const char* kWeights = "weights.safetensors";
constexpr const char* kModel = "model.json";
constexpr const char* kTokenizer = "tokenizer.json";

// Vectors are written with one dimension, as other tools expect.
std::vector<int64_t> file_shape(const ParamSpec& param) {
  if (param.rows == 1) return {param.cols};
  return {param.rows, param.cols};
}

}  // namespace

RunFolder RunFolder::create(const std::string& path, const Config& config, const ModelSpec& spec, const Tokenizer* tokenizer,
                            bool overwrite) {
  RunFolder folder(path);
  if (std::filesystem::exists(folder.file(kWeights)) && !overwrite)
    user_error("run.output: {} already holds a trained model; name another folder, or pass --overwrite to replace it", path);
  make_folders(path);
  write_file(folder.file("config.json"), config.effective().dump(2) + "\n");
  write_file(folder.file(kModel), spec.to_json().dump(2) + "\n");
  if (tokenizer) tokenizer->save(folder.file(kTokenizer));
  return folder;
}

RunFolder RunFolder::open(const std::string& path) {
  RunFolder folder(path);
  if (!std::filesystem::is_directory(path)) user_error("{} is not a run folder: there is no such folder", path);
  for (const char* name : {kModel, kWeights})
    if (!std::filesystem::exists(folder.file(name)))
      user_error("{} is not a finished run folder: it has no {}", path, name);
  return folder;
}

void RunFolder::save_weights(const Engine& engine) const {
  std::vector<SafetensorsEntry> entries;
  engine.for_each_parameter([&](const ParamSpec& param, Tensor) {
    SafetensorsEntry entry;
    entry.name = param.name;
    entry.shape = file_shape(param);
    entries.push_back(std::move(entry));
  });
  SafetensorsWriter writer(file(kWeights), std::move(entries),
                           {{"format", "onefold"}, {"step", std::to_string(engine.steps_done())}});
  engine.for_each_parameter([&](const ParamSpec& param, Tensor tensor) {
    writer.write(param.name, std::span<const float>(tensor.f32(), static_cast<size_t>(tensor.elems())));
  });
  writer.commit();
}

void RunFolder::load_weights(Engine& engine) const {
  const SafetensorsFile weights(file(kWeights));
  size_t wanted = 0;
  engine.for_each_parameter([&](const ParamSpec& param, Tensor tensor) {
    const SafetensorsEntry& entry = weights.entry(param.name);
    if (entry.shape != file_shape(param))
      user_error("{}: tensor {} has shape [{}], the model needs [{}]", weights.path(), param.name,
                 fmt::join(entry.shape, ", "), fmt::join(file_shape(param), ", "));
    weights.read(param.name, std::span<float>(tensor.f32(), static_cast<size_t>(tensor.elems())));
    ++wanted;
  });
  if (wanted != weights.entries().size())
    user_error("{} holds {} tensors, the model has {}: {} belongs to another model", weights.path(),
               weights.entries().size(), wanted, kWeights);
}

ModelSpec RunFolder::model() const { return spec_from_json(read_json(file(kModel)), file(kModel)); }

std::optional<Tokenizer> RunFolder::tokenizer() const {
  if (!std::filesystem::exists(file(kTokenizer))) return std::nullopt;
  return Tokenizer::load(file(kTokenizer));
}

}  // namespace onefold
