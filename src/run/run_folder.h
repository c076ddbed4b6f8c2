// A run's folder, to be written: its configuration, model description, tokenizer, metrics, weights
// and checkpoints. docs/formats.md lists the files; inspect/saved_run.h reads them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/tokenizer.h"
#include "engine/engine.h"
#include "io/checkpoint_folder.h"

namespace onefold {

class RunFolder {
 public:
  // Whether a run writes a file of this name into its folder.
  static bool is_own_file(const std::string& name);
  // Throws UserError if a new run must not be written to `path`: it holds the weights of a finished
  // or stopped run (unless `overwrite`: a run's results are never lost by starting another), or a
  // config.json or tokenizer.json that no run wrote, like those of a Hugging Face model.
  static void require_free(const std::string& path, bool overwrite);
  // Whether a run has written to `path`, if only its description.
  static bool begun(const std::string& path);
  // Creates the folder, if it is free, with config.json, model.json, tokenizer.json and what is
  // kept of a Hugging Face model, so that the files in a folder always belong together. What an
  // earlier run has trained is set aside under names that begin with "replaced-", until
  // drop_replaced().
  static RunFolder create(const std::string& path, const Config& config, const ModelSpec& spec,
                          const Tokenizer* tokenizer, bool overwrite);
  // The folder of a run that goes on: what describes it is written anew, its results stay.
  static RunFolder reopen(const std::string& path, const Config& config, const ModelSpec& spec,
                          const Tokenizer* tokenizer);

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  CheckpointFolder checkpoints() const;

  // weights.safetensors: every parameter by name, written whole or not at all.
  void save_weights(Engine& engine) const;
  // A run that goes on: its checkpoints will be ahead of the weights that its earlier end has left,
  // which are set aside until drop_replaced().
  void replace_weights() const;
  // Once the run has saved something of its own: removes what was set aside for it. Returns why
  // some could not be removed.
  std::vector<std::string> drop_replaced() const;

 private:
  explicit RunFolder(std::string path) : path_(std::move(path)) {}
  using KeptFiles = std::map<std::string, std::string>;  // files_to_keep
  void describe(const Config& config, const ModelSpec& spec, const Tokenizer* tokenizer,
                const KeptFiles& kept) const;
  bool trained() const;
  void set_aside(const std::string& name) const;
  void replace_old_run() const;  // what files() lists, and checkpoints; other files stay
  std::vector<std::string> event_files() const;
  std::string path_;
};

}  // namespace onefold
