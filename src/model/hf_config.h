// Which Hugging Face architecture a model is, and its config.json. Reading one is
// spec_from_hf_config (spec.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "model/spec.h"

namespace onefold {

enum class HfFamily : uint8_t {
  gpt2,
  llama,
  mistral,
  qwen2,
  qwen3,
  phi3,
  smollm3,
  starcoder2,
  mixtral,
  qwen2_moe,
  qwen3_moe,
  ministral,
  gemma,
  gemma2,
  gemma3,
  olmo2,
  granite,
  cohere,
  cohere2,
  gpt_neox,
  gptj,
  opt,
  falcon,
  bloom,
  mpt
};

std::span<const HfFamily> hf_families();
std::string_view hf_model_type(HfFamily family);    // "llama"
std::string_view hf_architecture(HfFamily family);  // "LlamaForCausalLM"
// By the name that config.json has under model_type. UserError naming `where` and those there are.
HfFamily hf_family_named(const std::string& model_type, const std::string& where);

// Why this family cannot express the model, as half a sentence ("qk_norm is true"); "" if it can.
std::string hf_obstacle(const ModelSpec& spec, HfFamily family);
// The first family that can; UserError with every family's obstacle if none can.
HfFamily hf_family_for(const ModelSpec& spec);

// config.json of a model that the family can express, without the keys that are not the model's:
// types, token ids, versions. Reads back to the same spec, but for dropout, which only gpt2 has.
Json hf_config_json(const ModelSpec& spec, HfFamily family);

}  // namespace onefold
