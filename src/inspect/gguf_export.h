// A model as one file that llama.cpp loads: GGUF (base/gguf.h). It is written in blocks of rows, so
// that the memory it takes does not grow with the model, and appears whole or not at all.
#pragma once

#include <optional>
#include <string>

#include "inspect/hf_export.h"

namespace onefold {

struct GgufOptions {
  // F32, F16, BF16, Q8_0 or Q4_K, of matrices; "": the source's. Vectors and learned positions are
  // F32. With Q4_K the token table and the head are Q8_0; a matrix whose rows are not whole blocks
  // takes the next wider type: Q4_K, Q8_0, F16.
  std::string type;
  std::optional<HfFamily> family;  // none: the source's, else the first that can express the model
  bool overwrite = false;
};

// `path` ends in .gguf. UserError if llama.cpp does not know the model, or a value cannot be held.
ExportResult export_gguf(const ParameterSource& source, const ModelExtras& extras,
                         const std::string& path, const GgufOptions& options);

}  // namespace onefold
