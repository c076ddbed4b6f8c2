// llama.cpp's architectures, and which family of Hugging Face's each is. Private to gguf_*.cpp.
#pragma once

#include <span>
#include <string_view>

#include "model/hf_config.h"

namespace onefold {

// How rows of queries and keys lie in a file: as in Hugging Face's; ours; or turned in pairs of
// neighbours, where Hugging Face turns those half a head apart.
enum class GgufRows : uint8_t { theirs, ours, pairs };

struct GgufArchitecture {
  HfFamily family;
  std::string_view name;
  GgufRows rows = GgufRows::theirs;
  std::span<const std::string_view> keys = {};  // beside those that all may have
};

// The first of a name is what a file of it becomes.
std::span<const GgufArchitecture> gguf_architectures();
const GgufArchitecture* gguf_architecture_of(HfFamily family);  // null: llama.cpp has none

// Every so many blocks one has no window where a file does not say it; 0: the architecture has no
// windows.
int64_t gguf_window_period(HfFamily family);
// query_pre_attn_scalar of Gemma's, which follows from the sizes.
int64_t gguf_query_scalar(HfFamily family, int64_t layers, int64_t hidden, int64_t heads,
                          int64_t head_dim);

}  // namespace onefold
