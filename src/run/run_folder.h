// A run's folder: its configuration, model description, tokenizer, metrics and weights, all that `generate` needs.
// docs/formats.md lists the files.
#pragma once

#include <memory>
#include <string>

#include "config/config.h"
#include "data/tokenizer.h"
#include "engine/engine.h"

namespace onefold {

class RunFolder {
 public:
  // Creates the folder with config.json, model.json and tokenizer.json. A folder that holds a finished or stopped run is
  // refused unless `overwrite`: a run's results are never lost by starting another.
  static RunFolder create(const std::string& path, const Config& config, const ModelSpec& spec, const Tokenizer* tokenizer,
                          bool overwrite);
  // Opens an existing one; errors say which file is missing.
  static RunFolder open(const std::string& path);

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

  // weights.safetensors: every parameter by name, written whole or not at all.
  void save_weights(const Engine& engine) const;
  // Names, shapes and types must match the engine's exactly.
  void load_weights(Engine& engine) const;
  ModelSpec model() const;
  std::optional<Tokenizer> tokenizer() const;

 private:
  explicit RunFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace onefold
