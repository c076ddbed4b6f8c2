// LoRA adapters on disk: those of a run, of a checkpoint, or a folder of PEFT's; and a base model
// with an adapter merged into it, which is how everything but training sees one.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "inspect/parameter_source.h"
#include "model/hf_config.h"
#include "model/lora.h"

namespace onefold {

inline constexpr const char* kPeftConfig = "adapter_config.json";
inline constexpr const char* kPeftWeights = "adapter_model.safetensors";

// What a run with adapters says of them, in lora.json and in the manifests of its checkpoints.
struct LoraRecord {
  LoraSpec lora;
  std::string base;         // the folder of the model that they adapt
  std::string fingerprint;  // of its tensors

  Json to_json() const;
  static LoraRecord from_json(const Json& json, const std::string& where);
};
// With the folder's absolute path and its fingerprint as it is now.
LoraRecord lora_record(const LoraSpec& lora, const std::string& base);

// Of names, types and shapes, and of some bytes of every tensor: a model that was trained further
// has another.
std::string base_fingerprint(const std::string& folder);
// UserError if the model in `folder` is not the one that was adapted.
void require_same_base(const LoraRecord& record, const std::string& folder);

struct AdapterWeights {
  ModelSpec model;  // that it adapts
  LoraSpec lora;
  std::string base;                                  // a folder, or what PEFT names; "": unknown
  std::map<std::string, std::vector<float>> values;  // by our names of parameters
};

// Of a source whose model has adapters: a run's weights, a checkpoint.
AdapterWeights adapter_of(const ParameterSource& source, const std::string& base);
// A folder of PEFT's for this base. UserError that names what it has and is not computed here.
AdapterWeights read_peft(const std::string& folder, const ModelSpec& base);
bool is_peft_folder(const std::string& folder);

// The base's parameters with scale · B · A added. The sum is taken in fp32.
class MergedSource final : public ParameterSource {
 public:
  MergedSource(std::shared_ptr<const ParameterSource> base, AdapterWeights adapter);
  const ModelSpec& model() const override { return base_->model(); }
  std::string dtype() const override { return base_->dtype(); }
  void read(const ParamSpec& param, int64_t first, std::span<float> dst) const override;
  void release(const ParamSpec& param) const override { base_->release(param); }

 private:
  struct Part {
    int64_t first, rows, cols;  // rows of the parameter
    const std::vector<float>*a, *b;
  };
  void add(const Part& part, int64_t first, std::span<float> dst) const;

  std::shared_ptr<const ParameterSource> base_;
  const AdapterWeights adapter_;
  std::map<std::string, std::vector<Part>> parts_;  // by parameter
};

// The base that a record names, with the adapters of a run's weights or checkpoint merged in.
// UserError if the base is gone, or another.
std::shared_ptr<const ParameterSource> adapted_model(const LoraRecord& record,
                                                     const ParameterSource& adapters);

struct PeftExport {
  std::string dtype = "F32";  // F32, F16 or BF16
  bool overwrite = false;
  // Of the base's own folder, whose modules PEFT adapts; none: that by which our modules are named.
  // A module that is several of ours (a Phi-3's queries, keys and values) gets an adapter with the
  // ranks of theirs together, unless they have the same A.
  std::optional<HfFamily> family = std::nullopt;
};
struct PeftResult {
  int64_t parameters = 0, bytes = 0;
  int64_t rank = 0;  // of every adapter
  std::vector<std::string> files, target_modules;
};
// Of a folder with a Hugging Face model; none if that cannot be told.
std::optional<HfFamily> family_of_base(const std::string& base);
// Writes adapter_model.safetensors and adapter_config.json, which PEFT loads.
PeftResult export_peft(const AdapterWeights& adapter, const std::string& folder,
                       const PeftExport& options);

}  // namespace onefold
