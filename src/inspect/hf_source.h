// The weights of a Hugging Face folder or a GGUF file, as our parameters. Files are mapped: reading
// a slice touches the pages it is on, and nothing else of the model.
#pragma once

#include <atomic>
#include <map>
#include <string>
#include <vector>

#include "base/gguf.h"
#include "inspect/parameter_source.h"
#include "model/hf_names.h"

namespace onefold {

class HfSource final : public ParameterSource {
 public:
  // The model is what config.json says, or the values of a GGUF file.
  explicit HfSource(const std::string& path);
  // The model is the caller's, for which config.json may have been changed in what is not a shape
  // (dropout, the length of rotary positions, adapters); the architecture is config.json's.
  // UserError that names the tensor if one is missing, has another shape or type, or has no place
  // in the model.
  HfSource(const std::string& path, const ModelSpec& spec);

  const ModelSpec& model() const override { return spec_; }
  std::string dtype() const override { return dtype_; }
  void read(const ParamSpec& param, int64_t first, std::span<float> dst) const override;
  void release(const ParamSpec& param) const override;

  HfFamily family() const { return family_; }
  const TensorFiles& tensors() const { return tensors_; }
  // Tensors of the files that are not read: masks, rotary frequencies, the copy of a tied head.
  const std::vector<std::string>& ignored() const { return ignored_; }
  int64_t bytes_read() const { return bytes_read_; }  // of the files, so far

 private:
  HfSource(const std::string& path, const Json& config, const ModelSpec* spec);
  void find_tensors();
  void refuse_other_head() const;
  const HfParameter& parameter(const ParamSpec& param) const;
  void read_ordered(const HfTensor& tensor, int64_t first, std::span<float> dst) const;
  void read_transposed(const HfTensor& tensor, int64_t first, std::span<float> dst) const;

  std::string path_;
  HfFamily family_;
  ModelSpec spec_;
  TensorFiles tensors_;
  std::map<std::string, HfParameter> parameters_;  // by our name; tensors by their name in the file
  std::vector<std::string> ignored_;
  std::string dtype_;
  mutable std::atomic<int64_t> bytes_read_ = 0;
};

// config.json of a folder, or what it would be for a GGUF file.
Json read_model_config(const std::string& path);

}  // namespace onefold
