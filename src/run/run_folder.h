// A run's folder, to be written: its configuration, model description, tokenizer, metrics, weights
// and checkpoints. docs/formats.md lists the files; inspect/saved_run.h reads them.
#pragma once

#include <string>

#include "config/config.h"
#include "data/tokenizer.h"
#include "engine/engine.h"
#include "io/checkpoint_folder.h"

namespace onefold {

class RunFolder {
 public:
  // Throws UserError if a new run must not be written to `path`: it holds the weights of a finished
  // or stopped run (unless `overwrite`: a run's results are never lost by starting another), or a
  // config.json or tokenizer.json that no run wrote, like those of a Hugging Face model.
  static void require_free(const std::string& path, bool overwrite);
  // Creates the folder, if it is free, with config.json, model.json and tokenizer.json. What an
  // earlier run has left goes, so that the files in a folder always belong together.
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
  void drop_weights() const;

 private:
  explicit RunFolder(std::string path) : path_(std::move(path)) {}
  void describe(const Config& config, const ModelSpec& spec, const Tokenizer* tokenizer) const;
  void remove_old_run() const;  // its weights, tokenizer and event files; other files stay
  std::string path_;
};

}  // namespace onefold
