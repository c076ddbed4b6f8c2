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

}  // namespace

void RunFolder::require_free(const std::string& path, bool overwrite) {
  const RunFolder folder(path);
  const bool trained =
      path_exists(folder.file(kRunWeights)) || !folder.checkpoints().list().empty();
  if (trained && !overwrite)
    user_error(
        "run.output: {} already holds a trained model; name another folder, or pass --resume to go "
        "on with it, or --overwrite to replace it",
        path);
  if (path_exists(folder.file(kRunModel))) return;
  for (const char* name : {kConfig, kRunTokenizer})
    if (path_exists(folder.file(name)))
      user_error("run.output: {} holds a {} that no run has written; name another folder", path,
                 name);
}

void RunFolder::remove_old_run() const {
  for (const char* name : {kRunWeights, kRunTokenizer}) remove_path(file(name));
  for (const CheckpointFolder::Entry& entry : checkpoints().list()) remove_path(entry.path);
  checkpoints().discard_all();
  for (const Files::Entry& entry : list_folder(file(kTensorBoard)))
    if (entry.name.starts_with("events.out.tfevents."))
      remove_path(file(kTensorBoard) + "/" + entry.name);
  (void)files().remove(file(kTensorBoard));  // if it is empty now
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

void RunFolder::drop_weights() const { remove_path(file(kRunWeights)); }

}  // namespace onefold
