#include "run/run_folder.h"

#include <filesystem>

#include "base/file.h"
#include "run/json_text.h"
#include "run/resume.h"
#include "run/weights.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";
constexpr const char* kModel = "model.json";
constexpr const char* kTokenizer = "tokenizer.json";
constexpr const char* kWeights = "weights.safetensors";
constexpr const char* kTensorBoard = "tensorboard";

}  // namespace

void RunFolder::require_free(const std::string& path, bool overwrite) {
  const RunFolder folder(path);
  const bool trained = path_exists(folder.file(kWeights)) || !folder.checkpoints().list().empty();
  if (trained && !overwrite)
    user_error(
        "run.output: {} already holds a trained model; name another folder, or pass --resume to go "
        "on with it, or --overwrite to replace it",
        path);
  if (path_exists(folder.file(kModel))) return;
  for (const char* name : {kConfig, kTokenizer})
    if (path_exists(folder.file(name)))
      user_error("run.output: {} holds a {} that no run has written; name another folder", path,
                 name);
}

void RunFolder::remove_old_run() const {
  for (const char* name : {kWeights, kTokenizer}) remove_path(file(name));
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
  write_file(file(kModel), json_text(spec.to_json()) + "\n");
  write_file(file(kConfig), json_text(config.effective()) + "\n");
  if (tokenizer) tokenizer->save(file(kTokenizer));
}

RunFolder RunFolder::open(const std::string& path) {
  if (!path_exists(path)) user_error("{} is not a run folder: there is no such folder", path);
  if (!is_folder(path))
    user_error("{} is a file; name the folder of a run (run.output of its configuration)", path);
  const RunFolder folder(path);
  if (!path_exists(folder.file(kModel)))
    user_error("{} is not the folder of a run: it has no {}", path, kModel);
  if (!path_exists(folder.file(kWeights)) && folder.checkpoints().list().empty())
    user_error("{} has no weights yet: neither {} nor a checkpoint", path, kWeights);
  return folder;
}

void RunFolder::save_weights(Engine& engine) const {
  onefold::save_weights(engine, file(kWeights));
}

void RunFolder::drop_weights() const { remove_path(file(kWeights)); }

std::shared_ptr<const ParameterSource> RunFolder::weights() const {
  if (path_exists(file(kWeights))) return std::make_shared<RunSource>(model(), file(kWeights));
  std::vector<std::string> remarks;
  return newest_whole(checkpoints(), remarks);
}

void RunFolder::load_weights(Engine& engine) const {
  if (path_exists(file(kWeights))) return onefold::load_weights(engine, file(kWeights));
  engine.state().write_parameters(reader_of(weights()));
}

std::string run_of_checkpoint(const std::string& checkpoint) {
  const fs::path whole = (fs::absolute(checkpoint) / "").parent_path();  // without the last slash
  return whole.parent_path().parent_path().string();
}

ModelSpec RunFolder::model() const {
  const Json json = read_json(file(kModel));
  try {
    return spec_from_json(json, "model");
  } catch (const UserError& error) {
    user_error("{}: {}", file(kModel), error.what());
  }
}

std::optional<Tokenizer> RunFolder::tokenizer() const {
  if (!path_exists(file(kTokenizer))) return std::nullopt;
  return Tokenizer::load(file(kTokenizer));
}

}  // namespace onefold
