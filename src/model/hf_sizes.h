// What each family calls the sizes of a model in config.json: one table, which reading and writing
// share. Private to hf_*.cpp.
#pragma once

#include <string_view>

#include "base/json.h"
#include "model/hf_config.h"

namespace onefold::hf {

struct SizeKeys {
  std::string_view hidden = "hidden_size", layers = "num_hidden_layers",
                   heads = "num_attention_heads";
  std::string_view kv_heads = "num_key_value_heads";    // "": none, or read apart
  std::string_view intermediate = "intermediate_size";  // "": four times the hidden size
  std::string_view positions = "max_position_embeddings";
  std::string_view norm_eps = "layer_norm_eps";  // "": always the spec's default
  // What a missing key means; 0: it must be there, or, of heads of keys, as many as of queries.
  int64_t default_kv_heads = 0, default_positions = 0;
  float default_norm_eps = 1e-5f;
  bool intermediate_missing = false;  // may be: then it is four times the hidden size
};
const SizeKeys& size_keys(HfFamily family);

// A spec with the sizes, tie_word_embeddings (`tied` where it is missing) and initializer_range.
ModelSpec read_sizes(JsonObject& in, const SizeKeys& keys, bool tied);
inline ModelSpec read_sizes(JsonObject& in, HfFamily family, bool tied) {
  return read_sizes(in, size_keys(family), tied);
}
// The sizes alone.
Json sizes_json(const ModelSpec& spec, HfFamily family);

}  // namespace onefold::hf
