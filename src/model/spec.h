// A model's architecture as data. One block, configured: a new architecture is a new spec, not a
// new engine. The JSON form has exactly these field names; docs/config.md lists them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "kernels/kernels.h"

namespace onefold {

enum class Positions : uint8_t { learned, rope };

// How rotary frequencies are stretched for contexts longer than those of pre-training. linear
// divides all of them by `factor`; llama3 (Llama 3.1 and later) divides the slow ones, leaves the
// fast ones, and goes from one to the other in between.
struct RopeScaling {
  enum class Type : uint8_t { none, linear, llama3 };
  Type type = Type::none;
  float factor = 1.0f;
  // llama3 only. A frequency is slow if a turn takes more than original_max_sequence_length /
  // low_freq_factor tokens, and fast if it takes fewer than those / high_freq_factor.
  float low_freq_factor = 1.0f;
  float high_freq_factor = 4.0f;
  int64_t original_max_sequence_length = 8192;

  double scaled(double frequency) const;  // in radians for each position
  Json to_json() const;                   // of a type that is not none
};

// Adapters beside projections (lora.h), which are then all that is trained.
struct LoraSpec {
  int64_t rank = 0;  // 0: no adapters
  double alpha = 8;
  float dropout = 0;                 // of the adapters' input
  std::vector<std::string> targets;  // names of linear layers

  bool enabled() const { return rank > 0; }
  float scale() const { return static_cast<float>(alpha / static_cast<double>(rank)); }
  bool operator==(const LoraSpec&) const = default;
};

struct ModelSpec {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;       // default: num_heads
  int64_t head_dim = 0;           // default: hidden_size / num_heads
  int64_t intermediate_size = 0;  // default: 4 * hidden_size
  int64_t max_sequence_length = 1024;
  Norm norm = Norm::layernorm;
  float norm_eps = 1e-5f;
  Positions positions = Positions::learned;
  float rope_theta = 10000.0f;
  RopeScaling rope_scaling;
  int64_t no_rope_every = 0;  // every so many blocks one whose heads are not turned; 0: none
  bool qkv_bias = false;
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;
  Activation activation = Activation::gelu_tanh;
  bool gated = false;  // JSON: "activation" is one of relu gelu gelu_tanh silu, or (gated) reglu
                       // geglu swiglu
  bool tie_embeddings = true;
  float dropout = 0.0f;
  float init_std = 0.02f;
  LoraSpec lora;  // no part of the architecture and its JSON: "lora" of a configuration

  // Whether queries and keys of this block are turned by their positions.
  bool rotates(int block) const {
    return positions == Positions::rope && (no_rope_every == 0 || (block + 1) % no_rope_every != 0);
  }
  int64_t query_size() const { return num_heads * head_dim; }
  int64_t kv_size() const { return num_kv_heads * head_dim; }
  int64_t qkv_size() const { return query_size() + 2 * kv_size(); }

  // Fills defaults and throws UserError, naming `where` and the field, if the sizes make no model.
  void complete(const std::string& where);
  // Distinct parameters (a tied head counts once), without adapters.
  int64_t parameter_count() const;
  // Model FLOPs of one trained token (forward and backward) at this sequence length: 6 for each
  // parameter that takes part in a matrix product (so not positions; the token table once, as the
  // head; 4 where it is frozen below adapters), plus attention over the causal half.
  double flops_per_token(int64_t sequence_length) const;

  // The same model without adapters.
  ModelSpec base() const {
    ModelSpec spec = *this;
    spec.lora = {};
    return spec;
  }

  Json to_json() const;
};

// An inline spec ("model": {...}): strict; `where` is its JSON path.
ModelSpec spec_from_json(const Json& json, const std::string& where);
// A Hugging Face config.json of a family that hf_config.h names, which writes them too.
ModelSpec spec_from_hf_config(const Json& json, const std::string& where);
// A named preset; throws UserError with the nearest name.
ModelSpec spec_from_preset(const std::string& name, const std::string& where);
std::vector<std::string> preset_names();

// JSON numbers are doubles: 1e-5f would be printed as 9.999999747378752e-06. The shortest decimal
// that reads back as the same float is what the user wrote.
double shortest(float value);

}  // namespace onefold
