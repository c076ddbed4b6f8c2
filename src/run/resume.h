// Going on with a run: which checkpoint, whether it is whole, and what has changed since.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "engine/engine.h"
#include "inspect/adapter.h"
#include "io/checkpoint_folder.h"

namespace onefold {

struct Resumed {
  int64_t step = 0;
  int64_t position = 0;  // samples trained on so far
  std::string path;      // of the checkpoint; "": there was none to use
  std::vector<CheckpointFolder::Entry> passed_over;
  std::vector<std::string> remarks;  // why they were
  int64_t bytes_read = 0;            // by this rank
};

// Loads the first of the candidates that is whole into the engine. All ranks call it together: they
// share out the checking, and each reads the slices that it holds. AgreedError if none is whole,
// or if it does not have the state of this engine's model and optimizer.
Resumed resume(Engine& engine, const std::vector<CheckpointFolder::Entry>& candidates);

// Whether the data of a manifest's run is that of now: by the hash of all tokens where both have
// one, else by the fingerprint of some.
bool same_data(const Json& saved_run, const std::string& hash, const std::string& fingerprint);

// Whether adapters go on over the weights that they were trained on.
bool same_base(const Json& saved_run, const std::optional<LoraRecord>& now);

// The differences between two configurations that make training another one: "optimizer.params.lr:
// 0.001, was 0.0003".
std::vector<std::string> changes_that_matter(const Json& saved, const Json& now);

}  // namespace onefold
