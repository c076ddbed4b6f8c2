// A model as a folder that transformers' from_pretrained loads: config.json, safetensors (in shards
// with an index if they are large), generation_config.json, and the tokenizer if there is one. It
// is written in blocks of rows, so that the memory it takes does not grow with the model, and
// appears whole or not at all.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "inspect/adapter.h"
#include "inspect/parameter_source.h"
#include "model/hf_config.h"

namespace onefold {

struct ExportOptions {
  std::string dtype;  // F32, F16 or BF16; "": the source's
  int64_t max_shard_bytes = 5'000'000'000;
  std::optional<HfFamily> family;  // none: the source's, else the first that can express the model
  bool overwrite = false;
};

// What goes with the weights.
struct ModelExtras {
  std::optional<HfFamily> family;
  Json token_ids = Json::object();           // bos_token_id, ... of config.json
  std::map<std::string, std::string> files;  // name and content: the tokenizer's files
  std::string tokenizer;                     // its path, if there is no tokenizer.json among them
  std::vector<std::string> remarks;          // what could not be taken along, as sentences
};

// A run folder, a Hugging Face folder or a GGUF file, ready to be read. UserError if `path` is
// none. Adapters of a run are merged into their base.
struct ModelOnDisk {
  std::shared_ptr<const ParameterSource> source;
  ModelExtras extras;
  std::vector<std::string> passed_over = {};  // newer checkpoints of a run, and why
};
ModelOnDisk open_model(const std::string& path);

// The adapters that a run or a checkpoint holds; nothing if it holds a whole model.
std::optional<AdapterWeights> open_adapter(const std::string& path);
// Those, or a folder's of PEFT's for this base. UserError if there are none.
AdapterWeights open_adapter(const std::string& path, const ModelSpec& base);
// The same model with the adapters of another folder merged in.
std::shared_ptr<const ParameterSource> with_adapter(std::shared_ptr<const ParameterSource> base,
                                                    const std::string& path);
// Name and content of the files that a run keeps of what it began with, so that an export gives
// them back: those beside its tokenizer (chat template, end-of-text, ...), and the Hugging Face
// model's config.json as hf_config.json, for its family and token ids. `tokenizer` as
// data.tokenizer has it; `model_config` is the path of a config.json, or "".
std::map<std::string, std::string> files_to_keep(const std::string& tokenizer,
                                                 const std::string& model_config);

struct ExportResult {
  HfFamily family = HfFamily::gpt2;
  std::string dtype;
  int64_t parameters = 0;
  int64_t bytes = 0;                 // of all tensors
  std::vector<std::string> files;    // names, in order
  std::vector<std::string> remarks;  // what the architecture has no place for, as sentences
};

ExportResult export_hf(const ParameterSource& source, const ModelExtras& extras,
                       const std::string& folder, const ExportOptions& options);

}  // namespace onefold
