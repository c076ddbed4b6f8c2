// What readers of config.json share (hf_config.cpp), and the readers of families that are less like
// Llama or GPT-2 (hf_families.cpp). Private to the reading of config.json.
#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "model/hf_config.h"

namespace onefold::hf {

// The keys that may be null mean "default" then.
template <typename T>
T optional(JsonObject& in, std::string_view key, T fallback) {
  const auto found = in.value().find(key);
  if (found != in.value().end() && found->is_null()) return fallback;
  return in.get<T>(key, fallback);
}

Activation activation(JsonObject& in, std::string_view key, std::string_view fallback);
// Of layers without a gate, which have no name for some (spec.cpp).
Activation plain_activation(JsonObject& in, std::string_view key, std::string_view fallback);
void refuse_if(JsonObject& in, std::string_view key, bool refused, std::string_view why);

// Rotary positions: the base, scaled frequencies, and how much of a head is turned.
void read_rope(JsonObject& in, ModelSpec& spec, float default_theta = 10000.0f,
               double default_part = 1.0);
// Of {"rope_type": ...}, which is the object under `key`.
RopeScaling read_rope_scaling(JsonObject& in, std::string_view key, JsonObject& rope,
                              const ModelSpec& spec);

// The window of the blocks that have one: `slides` says which. Where the spec has no such pattern,
// sequences are limited to the window, up to which it makes no difference.
void set_windows(JsonObject& in, ModelSpec& spec, int64_t window, const std::vector<bool>& slides);
// By sliding_window and layer_types; without the latter every `full_every`-th block has no window.
void read_windows(JsonObject& in, ModelSpec& spec, int64_t default_window, int64_t full_every);

// Of a family whose blocks all have the window, if there is one.
void read_one_window(JsonObject& in, ModelSpec& spec, int64_t default_window);

// What the families that are near Llama share; `tied` where tie_word_embeddings is missing.
ModelSpec read_llama_family(JsonObject& in, HfFamily family, bool tied = false,
                            float default_theta = 10000.0f);
// The rate, which must be that of the other keys too; `missing` where one is not there.
void read_dropout(JsonObject& in, ModelSpec& spec, std::string_view key, float missing,
                  std::initializer_list<std::string_view> others);
void refuse_attention_dropout(JsonObject& in);

ModelSpec read_gemma(JsonObject& in);
ModelSpec read_gemma2(JsonObject& in);
ModelSpec read_gemma3(JsonObject& in);
ModelSpec read_olmo2(JsonObject& in);
ModelSpec read_granite(JsonObject& in);
ModelSpec read_cohere(JsonObject& in);
ModelSpec read_cohere2(JsonObject& in);
ModelSpec read_gpt_neox(JsonObject& in);
ModelSpec read_gptj(JsonObject& in);
ModelSpec read_opt(JsonObject& in);
ModelSpec read_falcon(JsonObject& in);
ModelSpec read_bloom(JsonObject& in);
ModelSpec read_mpt(JsonObject& in);

}  // namespace onefold::hf
