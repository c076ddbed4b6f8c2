// Where a model's weights come from: a run folder, a Hugging Face folder, an engine. A source hands
// out any range of elements of any parameter, so that a rank can take the slice it owns, and an
// export can go through a model that is larger than memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/hf_folder.h"
#include "model/unit.h"

namespace onefold {

// A parameter's shape in files: vectors have one dimension, as other tools expect.
std::vector<int64_t> file_shape(const ParamSpec& param);

class ParameterSource {
 public:
  virtual ~ParameterSource() = default;

  virtual const ModelSpec& model() const = 0;
  // The type that the values are stored in: F32, F16 or BF16; F32 if there are several.
  virtual std::string dtype() const = 0;
  // Elements [first, first + dst.size()) of a parameter of parameters_of(model()), as one row after
  // the other. Any number of threads may read at a time.
  virtual void read(const ParamSpec& param, int64_t first, std::span<float> dst) const = 0;
  // Says that a parameter is not needed for now: its memory can go.
  virtual void release(const ParamSpec&) const {}
};

// The same as a function, for filling memory: for any number of threads that read parts of one
// parameter at a time. What was read is released: mapped files would stay in memory beside it.
using ParameterReader =
    std::function<void(const ParamSpec& param, int64_t first, std::span<float> dst)>;
ParameterReader reader_of(std::shared_ptr<const ParameterSource> source);

// weights.safetensors of a run folder: what a run keeps (is_saved). Names, shapes and types must be
// the model's.
class RunSource final : public ParameterSource {
 public:
  RunSource(const ModelSpec& spec, const std::string& path);
  const ModelSpec& model() const override { return spec_; }
  std::string dtype() const override { return "F32"; }
  void read(const ParamSpec& param, int64_t first, std::span<float> dst) const override;
  void release(const ParamSpec& param) const override { tensors_.release(param.name); }

 private:
  ModelSpec spec_;
  TensorFiles tensors_;
};

}  // namespace onefold
