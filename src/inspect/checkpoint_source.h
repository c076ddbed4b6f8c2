// The weights of a checkpoint, for those who need no optimizer state.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "inspect/adapter.h"
#include "inspect/parameter_source.h"
#include "io/checkpoint.h"
#include "io/checkpoint_folder.h"

namespace onefold {

class CheckpointSource final : public ParameterSource {
 public:
  explicit CheckpointSource(const std::string& folder);
  const ModelSpec& model() const override { return spec_; }
  std::string dtype() const override { return dtype_; }
  void read(const ParamSpec& param, int64_t first, std::span<float> dst) const override {
    checkpoint_.read(kParameters, param.name, first, dst);
  }
  void release(const ParamSpec& param) const override { checkpoint_.release(param.name); }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  // Of a run with adapters: then they alone are here, and model() has them.
  const std::optional<LoraRecord>& lora() const { return lora_; }
  // Throws UserError if a file's bytes are not those that were written.
  void verify() const;

 private:
  Checkpoint checkpoint_;
  ModelSpec spec_;
  std::optional<LoraRecord> lora_;
  std::string dtype_;
};

// The weights of the model that was saved: the checkpoint's own, or, of a run with adapters, those
// of its base with the adapters merged in.
std::shared_ptr<const ParameterSource> model_of(std::shared_ptr<const CheckpointSource> source);

// The newest checkpoint that is whole, every file of it checked; UserError if there is none.
// `remarks` says why newer ones were passed over.
std::shared_ptr<CheckpointSource> newest_whole(const CheckpointFolder& folder,
                                               std::vector<std::string>& remarks);

}  // namespace onefold
