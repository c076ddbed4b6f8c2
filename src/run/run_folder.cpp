#include "run/run_folder.h"

#include <filesystem>

#include "base/file.h"
#include "base/json_text.h"
#include "inspect/saved_run.h"
#include "run/weights.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";
constexpr const char* kTensorBoard = "tensorboard";

bool present(const std::string& path) {
  std::error_code ignored;  // what cannot be examined cannot be written either, and that says why
  return fs::exists(path, ignored);
}

}  // namespace

void RunFolder::require_free(const std::string& path, bool overwrite) {
  const RunFolder folder(path);
  const bool trained = present(folder.file(kRunWeights)) || !folder.checkpoints().list().empty();
  if (trained && !overwrite)
    user_error(
        "run.output: {} already holds a trained model; name another folder, or pass --resume to go "
        "on with it, or --overwrite to replace it",
        path);
  if (present(folder.file(kRunModel))) return;
  for (const char* name : {kConfig, kRunTokenizer})
    if (present(folder.file(name)))
      user_error("run.output: {} holds a {} that no run has written; name another folder", path,
                 name);
}

void RunFolder::remove_old_run() const {
  std::error_code ignored;
  for (const char* name : {kRunWeights, kRunTokenizer}) fs::remove(file(name), ignored);
  for (const CheckpointFolder::Entry& entry : checkpoints().list())
    fs::remove_all(entry.path, ignored);
  checkpoints().discard_all();
  for (const auto& entry : fs::directory_iterator(file(kTensorBoard), ignored))
    if (entry.path().filename().string().starts_with("events.out.tfevents."))
      fs::remove(entry.path(), ignored);
  fs::remove(file(kTensorBoard), ignored);  // if it is empty now
}

RunFolder RunFolder::create(const std::string& path, const Config& config, const ModelSpec& spec,
                            const Tokenizer* tokenizer, bool overwrite) {
  require_free(path, overwrite);
  const RunFolder folder(path);
  folder.remove_old_run();
  make_folders(path);
  folder.describe(config, spec, tokenizer);
  return folder;
}

RunFolder RunFolder::reopen(const std::string& path, const Config& config, const ModelSpec& spec,
                            const Tokenizer* tokenizer) {
  const RunFolder folder(path);
  make_folders(path);
  folder.describe(config, spec, tokenizer);
  return folder;
}

void RunFolder::describe(const Config& config, const ModelSpec& spec,
                         const Tokenizer* tokenizer) const {
  // The model first: it marks the folder as a run's.
  write_file(file(kRunModel), json_text(spec.to_json()) + "\n");
  write_file(file(kConfig), json_text(config.effective()) + "\n");
  if (tokenizer) tokenizer->save(file(kRunTokenizer));
}

CheckpointFolder RunFolder::checkpoints() const { return CheckpointFolder(file(kRunCheckpoints)); }

void RunFolder::save_weights(Engine& engine) const {
  onefold::save_weights(engine, file(kRunWeights));
}

void RunFolder::drop_weights() const {
  std::error_code ignored;
  fs::remove(file(kRunWeights), ignored);
}

}  // namespace onefold
