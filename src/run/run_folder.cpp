#include "run/run_folder.h"

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/gguf.h"
#include "base/json_text.h"
#include "data/hf_tokenizer.h"
#include "inspect/hf_export.h"
#include "inspect/saved_run.h"
#include "run/weights.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "config.json";
constexpr const char* kTensorBoard = "tensorboard";
constexpr const char* kReplaced = "replaced-";
constexpr const char* kOwnFiles[] = {kConfig,         kRunModel,  kRunWeights,
                                     "metrics.jsonl", "run.json", kRunLora};

// Of the tokenizer and the Hugging Face model that a run begins with.
std::vector<std::string> kept_names() {
  std::vector<std::string> names = {kHfConfigKept};
  for (const std::string_view name : hf_companion_names()) names.emplace_back(name);
  return names;
}

std::vector<std::string> file_names() {
  std::vector<std::string> names = kept_names();
  names.insert(names.end(), std::begin(kOwnFiles), std::end(kOwnFiles));
  return names;
}

std::map<std::string, std::string> kept_of(const Config& config) {
  const bool named =
      config.model_source.ends_with(".json") || GgufFile::is_named(config.model_source);
  return files_to_keep(config.data.tokenizer, named ? config.model_source : "");
}

std::string replaced_name(const std::string& name) {
  const fs::path path = name;
  return (path.parent_path() / (kReplaced + path.filename().string())).string();
}

}  // namespace

bool RunFolder::is_own_file(const std::string& name) {
  const std::vector<std::string> names = file_names();
  return std::find(names.begin(), names.end(), name) != names.end() || name == "README.md" ||
         name == "run.lock" || name.starts_with(kReplaced);
}

bool RunFolder::trained() const {
  return path_exists(file(kRunWeights)) || !checkpoints().list().empty();
}

bool RunFolder::begun(const std::string& path) {
  const RunFolder folder(path);
  return path_exists(folder.file(kRunModel)) || folder.trained();
}

void RunFolder::require_free(const std::string& path, bool overwrite) {
  const RunFolder folder(path);
  // No word of --overwrite: nobody is to lose a model by following a message.
  if (folder.trained() && !overwrite)
    user_error(
        "run.output: {} already holds a trained model; name another folder, or pass --resume to go "
        "on with it",
        path);
  if (path_exists(folder.file(kRunModel))) return;
  for (const char* name : {kConfig, kRunTokenizer})
    if (path_exists(folder.file(name)))
      user_error("run.output: {} holds a {} that no run has written; name another folder", path,
                 name);
}

std::vector<std::string> RunFolder::event_files() const {
  std::vector<std::string> names;
  for (const Files::Entry& entry : list_folder(file(kTensorBoard)))
    if (entry.name.starts_with("events.out.tfevents."))
      names.push_back(std::string(kTensorBoard) + "/" + entry.name);
  return names;
}

void RunFolder::set_aside(const std::string& name) const {
  if (path_exists(file(name))) rename_path(file(name), file(replaced_name(name)));
}

// The checkpoints last: until then the folder counts as one that holds a trained model.
void RunFolder::replace_old_run() const {
  for (const std::string& name : file_names()) set_aside(name);
  for (const std::string& name : event_files()) set_aside(name);
  checkpoints().replace_all();
}

std::vector<std::string> RunFolder::drop_replaced() const {
  std::vector<std::string> problems = checkpoints().drop_replaced();
  const auto drop = [&](const std::string& name) {
    if (std::string problem = try_remove_path(file(name)); !problem.empty())
      problems.push_back(std::move(problem));
  };
  for (const std::string& name : file_names()) drop(replaced_name(name));
  std::vector<Files::Entry> events;
  (void)files().list(file(kTensorBoard), events);
  for (const Files::Entry& entry : events)
    if (entry.name.starts_with(replaced_name("events.out.tfevents.")))
      drop(std::string(kTensorBoard) + "/" + entry.name);
  (void)files().remove(file(kTensorBoard));  // if it is empty now
  return problems;
}

RunFolder RunFolder::create(const std::string& path, const Config& config, const ModelSpec& spec,
                            const Tokenizer* tokenizer, bool overwrite) {
  require_free(path, overwrite);
  const RunFolder folder(path);
  make_folders(path);
  const KeptFiles kept = kept_of(config);  // before an older run's files are set aside
  if (folder.trained()) {
    folder.replace_old_run();
  } else {  // left by a run that saved nothing; what it had set aside stays
    for (const std::string& name : kept_names()) remove_path(folder.file(name));
    for (const std::string& name : folder.event_files()) remove_path(folder.file(name));
  }
  folder.checkpoints().discard_all();
  folder.describe(config, spec, tokenizer, kept);
  return folder;
}

RunFolder RunFolder::reopen(const std::string& path, const Config& config, const ModelSpec& spec,
                            const Tokenizer* tokenizer) {
  const RunFolder folder(path);
  make_folders(path);
  folder.describe(config, spec, tokenizer, kept_of(config));
  return folder;
}

void RunFolder::describe(const Config& config, const ModelSpec& spec, const Tokenizer* tokenizer,
                         const KeptFiles& kept) const {
  // The model first: it marks the folder as a run's.
  write_file(file(kRunModel), json_text(spec.to_json()) + "\n");
  write_file(file(kConfig), json_text(config.effective()) + "\n");
  if (spec.lora.enabled())
    write_file(file(kRunLora),
               json_text(lora_record(spec.lora, config.model_weights).to_json()) + "\n");
  else
    remove_path(file(kRunLora));
  for (const auto& [name, content] : kept) write_file(file(name), content);
  if (tokenizer && !kept.contains(kRunTokenizer)) tokenizer->save(file(kRunTokenizer));
}

CheckpointFolder RunFolder::checkpoints() const { return CheckpointFolder(file(kRunCheckpoints)); }

void RunFolder::save_weights(Engine& engine) const {
  onefold::save_weights(engine, file(kRunWeights));
}

void RunFolder::replace_weights() const { set_aside(kRunWeights); }

}  // namespace onefold
