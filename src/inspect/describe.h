// What lies at a path: a run folder, a checkpoint, a Hugging Face folder, a safetensors or a GGUF
// file; its tensors, what their values are like, and how two of them differ. Files are mapped and
// gone through in blocks, so the memory this takes does not grow with the model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "inspect/checkpoint_source.h"
#include "io/hf_folder.h"
#include "model/spec.h"

namespace onefold {

enum class PathKind : uint8_t { run, checkpoint, hf, gguf, file };

struct Located {
  PathKind kind = PathKind::file;
  std::optional<TensorFiles> tensors;                  // of all but a checkpoint
  std::shared_ptr<const CheckpointSource> checkpoint;  // its parameters, from all ranks' files
  std::optional<ModelSpec> model;
  std::string model_type;  // of a Hugging Face folder, if it has a config.json
  std::string remark;      // why there is no model although there is a description of one
};
// UserError that says what was looked for if there is nothing to describe.
Located locate(const std::string& path);

struct TensorStats {
  std::string name, dtype;
  std::vector<int64_t> shape;
  int64_t elems = 0, bytes = 0;
  bool has_values = false;  // whether they were looked at: not all types are known
  // Of the values that are finite; NaN if there are others only.
  double norm = 0, min = 0, max = 0, mean = 0;
  int64_t nans = 0, infinities = 0;
};

// What a checkpoint has beside parameters.
struct CheckpointSummary {
  int64_t step = 0, ranks = 0, stage = -1;  // the stage: -1 if it is not said
  std::vector<std::string> states;          // of the optimizer
  int64_t state_elems = 0, state_bytes = 0;
};

struct Description {
  std::string path;
  PathKind kind = PathKind::file;
  std::optional<ModelSpec> model;
  std::string model_type, remark;
  std::vector<std::string> files;
  std::vector<TensorStats> tensors;
  std::optional<CheckpointSummary> checkpoint;
  bool has_values = true;  // whether the values were looked at

  int64_t elems() const;
  int64_t bytes() const;
  int64_t not_finite() const;
};

// With `values` false only the headers are read.
Description describe(const std::string& path, bool values, ThreadPool& pool);
Json description_json(const Description& description);
// A tree: the tensors of a block together, one on a line.
std::string description_text(const Description& description);

struct TensorDifference {
  std::string name, dtype_a, dtype_b;
  std::vector<int64_t> shape_a, shape_b;
  // Of tensors of one shape: how many values have other bits, and by how much at most. A relative
  // difference is |a - b| / max(|a|, |b|). Both are infinite where one value is not finite.
  int64_t unequal = 0;
  double max_absolute = 0, max_relative = 0;

  bool same_shape() const { return shape_a == shape_b; }
  bool equal() const { return same_shape() && dtype_a == dtype_b && unequal == 0; }
};

struct Difference {
  std::string a, b;
  // A run folder and a Hugging Face folder have other tensors for the same parameters, and a
  // checkpoint has them in pieces: then parameters are compared, under Onefold's names, as F32.
  bool as_parameters = false;
  std::vector<std::string> only_a, only_b;
  std::vector<TensorDifference> common;  // in the order of a

  bool equal() const;
};

Difference compare(const std::string& a, const std::string& b, ThreadPool& pool);
Json difference_json(const Difference& difference);
std::string difference_text(const Difference& difference);

}  // namespace onefold
