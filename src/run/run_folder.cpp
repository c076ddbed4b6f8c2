#include "run/run_folder.h"

#include <filesystem>

#include "base/file.h"
#include "run/weights.h"

namespace onefold {
namespace {

constexpr const char* kWeights = "weights.safetensors";
constexpr const char* kModel = "model.json";
constexpr const char* kTokenizer = "tokenizer.json";

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

void RunFolder::save_weights(const Engine& engine) const { onefold::save_weights(engine, file(kWeights)); }

void RunFolder::load_weights(Engine& engine) const { onefold::load_weights(engine, file(kWeights)); }

ModelSpec RunFolder::model() const { return spec_from_json(read_json(file(kModel)), file(kModel)); }

std::optional<Tokenizer> RunFolder::tokenizer() const {
  if (!std::filesystem::exists(file(kTokenizer))) return std::nullopt;
  return Tokenizer::load(file(kTokenizer));
}

}  // namespace onefold
