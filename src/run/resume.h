// Going on with a run: which checkpoint, whether it is whole, and what has changed since.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "engine/engine.h"
#include "run/checkpoints.h"
#include "run/parameter_source.h"

namespace onefold {

struct Resumed {
  int64_t step = 0;
  int64_t position = 0;              // samples trained on so far
  std::string path;                  // of the checkpoint; "": there was none to use
  std::vector<std::string> remarks;  // checkpoints that were passed over, and why
  int64_t bytes_read = 0;            // by this rank
};

// Loads the first of the candidates that is whole into the engine. All ranks call it together: they
// share out the checking, and each reads the slices that it holds. AgreedError if none is whole,
// or if it does not have the state of this engine's model and optimizer.
Resumed resume(Engine& engine, const std::vector<CheckpointFolder::Entry>& candidates);

// The differences between two configurations that make training another one: "optimizer.params.lr:
// 0.001, was 0.0003".
std::vector<std::string> changes_that_matter(const Json& saved, const Json& now);

// The weights of a checkpoint, for those who need no optimizer state.
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
  // Throws UserError if a file's bytes are not those that were written.
  void verify() const;

 private:
  Checkpoint checkpoint_;
  ModelSpec spec_;
  std::string dtype_;
};

// The newest checkpoint that is whole, every file of it checked; UserError if there is none.
std::shared_ptr<CheckpointSource> newest_whole(const CheckpointFolder& folder,
                                               std::vector<std::string>& remarks);

}  // namespace onefold
