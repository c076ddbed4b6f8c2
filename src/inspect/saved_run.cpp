#include "inspect/saved_run.h"

#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "data/hf_tokenizer.h"
#include "inspect/checkpoint_source.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;

bool present(const std::string& path) {
  std::error_code ignored;  // what cannot be examined cannot be read either, and that says why
  return fs::exists(path, ignored);
}

}  // namespace

SavedRun::SavedRun(const std::string& path) : path_(path) {
  if (!present(path))
    user_error(
        "{}: there is no such folder. Name that of a run, or of a Hugging Face model that was "
        "downloaded before: nothing is fetched here",
        path);
  if (!fs::is_directory(path))
    user_error(
        "{} is a file; name its folder: that of a run (run.output of its configuration) or of a "
        "Hugging Face model",
        path);
  if (!present(file(kRunModel)))
    user_error(
        "{} is neither the folder of a run (it has no {}) nor of a Hugging Face model (it has no "
        "config.json with a model_type)",
        path, kRunModel);
  if (!present(file(kRunWeights)) && checkpoints().list().empty())
    user_error("{} has no weights yet: neither {} nor a checkpoint", path, kRunWeights);
}

ModelSpec SavedRun::model() const {
  const Json json = read_plain_json(file(kRunModel));
  try {
    return spec_from_json(json, "model");
  } catch (const UserError& error) {
    user_error("{}: {}", file(kRunModel), error.what());
  }
}

std::optional<LoraRecord> SavedRun::lora() const {
  if (!present(file(kRunLora))) return std::nullopt;
  return LoraRecord::from_json(read_plain_json(file(kRunLora)), file(kRunLora));
}

// What the run itself holds.
std::shared_ptr<const ParameterSource> SavedRun::kept(std::vector<std::string>* remarks) const {
  std::vector<std::string> unwanted;
  if (!present(file(kRunWeights)))
    return newest_whole(checkpoints(), remarks ? *remarks : unwanted);
  ModelSpec spec = model();
  if (const std::optional<LoraRecord> record = lora()) spec.lora = record->lora;
  return std::make_shared<RunSource>(spec, file(kRunWeights));
}

std::optional<AdapterWeights> SavedRun::adapter() const {
  const std::optional<LoraRecord> record = lora();
  if (!record) return std::nullopt;
  return adapter_of(*kept(nullptr), record->base);
}

std::shared_ptr<const ParameterSource> SavedRun::weights(std::vector<std::string>* remarks) const {
  std::shared_ptr<const ParameterSource> own = kept(remarks);
  if (const std::optional<LoraRecord> record = lora()) return adapted_model(*record, *own);
  return own;
}

std::optional<Tokenizer> SavedRun::tokenizer() const {
  if (!present(file(kRunTokenizer))) return std::nullopt;
  return load_tokenizer(file(kRunTokenizer));
}

std::string run_of_checkpoint(const std::string& checkpoint) {
  const fs::path whole = (fs::absolute(checkpoint) / "").parent_path();  // without the last slash
  return whole.parent_path().parent_path().string();
}

}  // namespace onefold
