// The folder of a run, to be read: its model, weights, checkpoints and tokenizer. docs/formats.md
// lists the files; run/run_folder.h writes them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "inspect/adapter.h"
#include "inspect/parameter_source.h"
#include "io/checkpoint_folder.h"

namespace onefold {

inline constexpr const char* kRunModel = "model.json";
inline constexpr const char* kRunTokenizer = "tokenizer.json";
inline constexpr const char* kRunWeights = "weights.safetensors";
inline constexpr const char* kRunCheckpoints = "checkpoints";
inline constexpr const char* kRunLora = "lora.json";  // of a run with adapters alone

class SavedRun {
 public:
  // UserError that names what is missing if there is no such folder, or it has no model or no
  // weights.
  explicit SavedRun(const std::string& path);

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  CheckpointFolder checkpoints() const { return CheckpointFolder(file(kRunCheckpoints)); }

  ModelSpec model() const;  // without adapters
  std::optional<LoraRecord> lora() const;
  // The adapters of a run that has trained some; nothing of any other.
  std::optional<AdapterWeights> adapter() const;
  // Those of the run's end; of a run that is under way or was killed, those of its newest whole
  // checkpoint; with adapters, its base with them merged in. Names, shapes and types must be the
  // model's. `remarks`, if given, gets why newer checkpoints were passed over.
  std::shared_ptr<const ParameterSource> weights(std::vector<std::string>* remarks = nullptr) const;
  std::optional<Tokenizer> tokenizer() const;

 private:
  std::shared_ptr<const ParameterSource> kept(std::vector<std::string>* remarks) const;

  std::string path_;
};

// The folder of the run that has written RUN/checkpoints/step-00000050.
std::string run_of_checkpoint(const std::string& checkpoint);

}  // namespace onefold
