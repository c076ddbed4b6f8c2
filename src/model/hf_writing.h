// What a family of Hugging Face's cannot express of a model, and config.json of one that it can,
// for the families of hf_families.cpp. Private to the writing of config.json.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "model/hf_config.h"

namespace onefold::hf {

// Fields of a spec that few families have.
enum Option : uint32_t {
  kWindow = 1u << 0,       // sliding_window, of all blocks
  kSomeWindows = 1u << 1,  // full_attention_every
  kLocalTheta = 1u << 2,
  kAttentionScale = 1u << 3,
  kAttentionCap = 1u << 4,
  kLogitsCap = 1u << 5,
  kLogitsScale = 1u << 6,
  kEmbeddingScale = 1u << 7,
  kResidualScale = 1u << 8,
  kNormPlace = 1u << 9,
  kParallel = 1u << 10,
  kNoNormBias = 1u << 11,
  kRotaryDim = 1u << 12,
  kPositionOffset = 1u << 13,
  kQkNormWhole = 1u << 14,
  kHeadBias = 1u << 15,
  kNormPlusOne = 1u << 16,
  kNoRope = 1u << 17,
  kYarn = 1u << 18,
  kLongRope = 1u << 19,
  kEmbeddingNorm = 1u << 20,
};

// The first option that the model has and a family with these alone does not; "" if there is none.
std::string option_obstacle(const ModelSpec& spec, uint32_t options);

std::string_view activation_name(Activation activation);
Json rope_scaling_json(const RopeScaling& scaling);
// What families with the names of GPT-2's sizes share, and those with rotary positions.
Json gpt2_json(const ModelSpec& spec, HfFamily family);
Json rope_model_json(const ModelSpec& spec, HfFamily family);
// "sliding_window", of all blocks that have one
Json window_json(const ModelSpec& spec);
// The share of a head that is turned, which times head_dim is no less than what is.
double rotary_part(const ModelSpec& spec);
double rotary_part(int64_t turned, int64_t head_dim);
// "layer_types"
Json layer_types_json(const ModelSpec& spec);

// As hf_obstacle and hf_config_json, of ministral and those behind it in HfFamily.
std::string family_obstacle(const ModelSpec& spec, HfFamily family);
Json family_json(const ModelSpec& spec, HfFamily family);

}  // namespace onefold::hf
