#include <array>

#include "base/error.h"
#include "base/text.h"
#include "model/hf_config.h"
#include "model/hf_sizes.h"
#include "model/hf_writing.h"

namespace onefold {
namespace {

using namespace hf;

struct Names {
  HfFamily family;
  std::string_view model_type, architecture;
};

// In order of preference where several can express a model: nearly every model of mistral's is a
// llama too, and that is the better known.
constexpr std::array<Names, 25> kNames = {{
    {HfFamily::gpt2, "gpt2", "GPT2LMHeadModel"},
    {HfFamily::llama, "llama", "LlamaForCausalLM"},
    {HfFamily::qwen2, "qwen2", "Qwen2ForCausalLM"},
    {HfFamily::qwen3, "qwen3", "Qwen3ForCausalLM"},
    {HfFamily::mistral, "mistral", "MistralForCausalLM"},
    {HfFamily::phi3, "phi3", "Phi3ForCausalLM"},
    {HfFamily::smollm3, "smollm3", "SmolLM3ForCausalLM"},
    {HfFamily::starcoder2, "starcoder2", "Starcoder2ForCausalLM"},
    {HfFamily::mixtral, "mixtral", "MixtralForCausalLM"},
    {HfFamily::qwen2_moe, "qwen2_moe", "Qwen2MoeForCausalLM"},
    {HfFamily::qwen3_moe, "qwen3_moe", "Qwen3MoeForCausalLM"},
    {HfFamily::ministral, "ministral", "MinistralForCausalLM"},
    {HfFamily::gemma, "gemma", "GemmaForCausalLM"},
    {HfFamily::gemma2, "gemma2", "Gemma2ForCausalLM"},
    {HfFamily::gemma3, "gemma3_text", "Gemma3ForCausalLM"},
    {HfFamily::olmo2, "olmo2", "Olmo2ForCausalLM"},
    {HfFamily::granite, "granite", "GraniteForCausalLM"},
    {HfFamily::cohere, "cohere", "CohereForCausalLM"},
    {HfFamily::cohere2, "cohere2", "Cohere2ForCausalLM"},
    {HfFamily::gpt_neox, "gpt_neox", "GPTNeoXForCausalLM"},
    {HfFamily::gptj, "gptj", "GPTJForCausalLM"},
    {HfFamily::opt, "opt", "OPTForCausalLM"},
    {HfFamily::falcon, "falcon", "FalconForCausalLM"},
    {HfFamily::bloom, "bloom", "BloomForCausalLM"},
    {HfFamily::mpt, "mpt", "MptForCausalLM"},
}};
constexpr std::array<HfFamily, kNames.size()> kFamilies = [] {
  std::array<HfFamily, kNames.size()> families{};
  for (size_t i = 0; i < kNames.size(); ++i) families[i] = kNames[i].family;
  return families;
}();

const Names& names_of(HfFamily family) {
  for (const Names& names : kNames)
    if (names.family == family) return names;
  internal_error("no names for family {}", static_cast<int>(family));
}

std::string_view yes_no(bool value) { return value ? "true" : "false"; }

// "" if the field has the value that the family needs.
std::string must_be(std::string_view field, bool value, bool needed) {
  return value == needed ? "" : fmt::format("{} is {}", field, yes_no(value));
}

std::string gpt2_obstacle(const ModelSpec& spec) {
  if (spec.norm != Norm::layernorm) return "norm is rmsnorm";
  if (spec.positions != Positions::learned) return "positions is not learned";
  if (const std::string option = option_obstacle(spec, 0); !option.empty()) return option;
  if (spec.gated) return "the activation is gated";
  if (spec.num_kv_heads != spec.num_heads) return "num_kv_heads is not num_heads";
  if (spec.query_size() != spec.hidden_size) return "head_dim is not hidden_size / num_heads";
  for (const auto& [field, value, needed] : {std::tuple{"qkv_bias", spec.qkv_bias, true},
                                             {"attention_out_bias", spec.attention_out_bias, true},
                                             {"mlp_bias", spec.mlp_bias, true},
                                             {"qk_norm", spec.qk_norm, false}})
    if (value != needed) return must_be(field, value, needed);
  return "";
}

// Neither has a key for head_dim.
std::string head_obstacle(const ModelSpec& spec) {
  return spec.query_size() == spec.hidden_size ? "" : "head_dim is not hidden_size / num_heads";
}

std::string phi3_obstacle(const ModelSpec& spec) {
  using Type = RopeScaling::Type;
  if (const Type type = spec.rope_scaling.type; type != Type::none && type != Type::longrope)
    return "rope_scaling is neither longrope nor none";
  if (spec.qkv_bias) return "qkv_bias is true";
  if (spec.attention_out_bias) return "attention_out_bias is true";
  return head_obstacle(spec);
}

std::string starcoder2_obstacle(const ModelSpec& spec) {
  if (spec.norm != Norm::layernorm) return "norm is rmsnorm";
  if (spec.positions != Positions::rope) return "positions is not rope";
  if (const std::string option = option_obstacle(spec, kWindow | kYarn | kLongRope);
      !option.empty())
    return option;
  if (spec.gated) return "the activation is gated";
  if (spec.qk_norm) return "qk_norm is true";
  if (spec.qkv_bias != spec.attention_out_bias || spec.qkv_bias != spec.mlp_bias)
    return "qkv_bias, attention_out_bias and mlp_bias are not equal";
  return head_obstacle(spec);
}

std::string llama_family_obstacle(const ModelSpec& spec, HfFamily family) {
  if (spec.norm == Norm::layernorm) return "norm is layernorm";
  if (spec.positions != Positions::rope) return "positions is not rope";
  if (!spec.gated) return "the activation is not gated";
  const bool qwen3 = family == HfFamily::qwen3, qwen2 = family == HfFamily::qwen2;
  const bool smollm3 = family == HfFamily::smollm3, phi3 = family == HfFamily::phi3;
  const uint32_t options = (family == HfFamily::llama ? 0u : uint32_t{kWindow}) |
                           (qwen2 || qwen3 || smollm3 ? uint32_t{kSomeWindows} : 0u) |
                           (smollm3 ? uint32_t{kNoRope} : 0u) |
                           uint32_t{phi3 ? kRotaryDim : kYarn} | uint32_t{kLongRope};
  if (const std::string option = option_obstacle(spec, options); !option.empty()) return option;
  if (spec.qk_norm != qwen3) return must_be("qk_norm", spec.qk_norm, qwen3);
  if (spec.mlp_bias && family != HfFamily::llama && !smollm3) return "mlp_bias is true";
  if (phi3) return phi3_obstacle(spec);
  // transformers checks this although head_dim has a key of its own.
  if (family == HfFamily::llama && spec.hidden_size % spec.num_heads != 0)
    return "hidden_size is not a multiple of num_heads";
  if (qwen2 || family == HfFamily::mistral) {
    // With experts, qkv_bias has a key of its own.
    if (spec.qkv_bias != qwen2 && !(qwen2 && spec.experts.enabled()))
      return must_be("qkv_bias", spec.qkv_bias, qwen2);
    return must_be("attention_out_bias", spec.attention_out_bias, false);
  }
  if (spec.qkv_bias != spec.attention_out_bias)
    return fmt::format("qkv_bias is {} and attention_out_bias {}", yes_no(spec.qkv_bias),
                       yes_no(spec.attention_out_bias));
  return "";
}

// The family whose attention, norms and dense MLPs these are; of a dense one, itself.
HfFamily dense_family(HfFamily family) {
  if (family == HfFamily::mixtral) return HfFamily::mistral;
  if (family == HfFamily::qwen2_moe) return HfFamily::qwen2;
  return family == HfFamily::qwen3_moe ? HfFamily::qwen3 : family;
}

std::string experts_obstacle(const ModelSpec& spec, HfFamily family) {
  const ExpertSpec& e = spec.experts;
  const bool mixture = dense_family(family) != family;
  if (e.enabled() != mixture) return mixture ? "it has no experts" : "it has experts";
  if (!mixture) return "";
  if (e.scores != RouterScores::softmax) return "experts.scores is sigmoid";
  if (family == HfFamily::mixtral) {
    if (!e.normalised) return "experts.normalise_weights is false";
    if (spec.expert_blocks() != spec.num_layers) return "some blocks have no experts";
  }
  if (family != HfFamily::qwen2_moe && e.shared_intermediate_size > 0)
    return "it has a shared expert";
  if (family == HfFamily::qwen2_moe && !e.shared_gate) return "it has no shared expert with a gate";
  return "";
}

Json experts_json(const ModelSpec& spec, HfFamily family) {
  const ExpertSpec& e = spec.experts;
  Json json;
  json["num_experts_per_tok"] = e.per_token;
  json["router_aux_loss_coef"] = shortest(e.balance_loss);
  json["output_router_logits"] = e.balance_loss > 0;
  if (family == HfFamily::mixtral) {
    json["num_local_experts"] = e.count;
    json["intermediate_size"] = e.intermediate_size;  // there are no other MLPs
    json["router_jitter_noise"] = 0.0;
    return json;
  }
  json["num_experts"] = e.count;
  json["moe_intermediate_size"] = e.intermediate_size;
  json["norm_topk_prob"] = e.normalised;
  json["decoder_sparse_step"] = e.every;
  json["mlp_only_layers"] = e.dense_blocks;
  if (family != HfFamily::qwen2_moe) return json;
  json["shared_expert_intermediate_size"] = e.shared_intermediate_size;
  json["qkv_bias"] = spec.qkv_bias;
  return json;
}

Json llama_family_json(const ModelSpec& spec, HfFamily family) {
  Json json = rope_model_json(spec, family);
  json["head_dim"] = spec.head_dim;
  const bool smollm3 = family == HfFamily::smollm3;
  if (family == HfFamily::llama || family == HfFamily::qwen3 || smollm3)
    json["attention_bias"] = spec.qkv_bias;
  if (family == HfFamily::llama || smollm3) json["mlp_bias"] = spec.mlp_bias;
  if (family == HfFamily::qwen2 || family == HfFamily::qwen3 || smollm3) {
    json["use_sliding_window"] = spec.sliding_window > 0;
    if (spec.sliding_window > 0) {
      json["max_window_layers"] = 0;
      json["layer_types"] = layer_types_json(spec);
    }
  }
  if (family != HfFamily::llama)  // mistral's default is 4096
    json["sliding_window"] = window_json(spec);
  if (smollm3) {
    Json layers = Json::array();
    for (int block = 0; block < spec.num_layers; ++block)
      layers.push_back(spec.rotates(block) ? 1 : 0);
    json["no_rope_layers"] = layers;
    if (spec.no_rope_every != 0) json["no_rope_layer_interval"] = spec.no_rope_every;
  }
  if (family == HfFamily::phi3) {
    json.erase("head_dim");  // its class has none
    if (!spec.rope_scaling.switches())
      json["original_max_position_embeddings"] = spec.max_sequence_length;
    if (spec.rotary_dim != 0) json["partial_rotary_factor"] = rotary_part(spec);
    for (const char* key : {"resid_pdrop", "embd_pdrop"}) json[key] = 0.0;
  }
  return json;
}

Json starcoder2_json(const ModelSpec& spec) {
  Json json = rope_model_json(spec, HfFamily::starcoder2);
  json["sliding_window"] = window_json(spec);
  json["use_bias"] = spec.qkv_bias;
  // Its name for the approximation by tanh is PyTorch's.
  if (spec.activation == Activation::gelu_tanh) json["hidden_act"] = "gelu_pytorch_tanh";
  for (const char* key : {"attention_dropout", "residual_dropout", "embedding_dropout"})
    json[key] = shortest(spec.dropout);
  return json;
}

Json json_of(const ModelSpec& spec, HfFamily family) {
  if (family == HfFamily::gpt2) return gpt2_json(spec, family);
  if (family == HfFamily::starcoder2) return starcoder2_json(spec);
  if (family >= HfFamily::ministral) return hf::family_json(spec, family);
  Json json = llama_family_json(spec, dense_family(family));
  if (spec.experts.enabled()) json.update(experts_json(spec, family));
  return json;
}

}  // namespace

std::string_view hf::activation_name(Activation activation) {
  switch (activation) {
    case Activation::relu:
      return "relu";
    case Activation::gelu:
      return "gelu";
    case Activation::gelu_tanh:
      return "gelu_new";
    case Activation::silu:
      return "silu";
    case Activation::sigmoid:
      return "sigmoid";
    case Activation::identity:
      return "linear";
  }
  internal_error("no name for activation {}", static_cast<int>(activation));
}

Json hf::gpt2_json(const ModelSpec& spec, HfFamily family) {
  Json json = sizes_json(spec, family);
  json["activation_function"] = activation_name(spec.activation);
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"})
    json[key] = shortest(spec.dropout);
  return json;
}

Json hf::rope_model_json(const ModelSpec& spec, HfFamily family) {
  Json json = sizes_json(spec, family);
  json["rope_theta"] = shortest(spec.rope_theta);
  json["rope_scaling"] = rope_scaling_json(spec.rope_scaling);
  // Where transformers 4 looks for it.
  if (spec.rope_scaling.switches())
    json["original_max_position_embeddings"] = spec.rope_scaling.original_max_sequence_length;
  json["hidden_act"] = activation_name(spec.activation);
  json["attention_dropout"] = 0.0;
  return json;
}

Json hf::window_json(const ModelSpec& spec) {
  return spec.sliding_window > 0 ? Json(spec.sliding_window) : Json(nullptr);
}

// The form of transformers 4, which 5 reads too.
Json hf::rope_scaling_json(const RopeScaling& scaling) {
  using Type = RopeScaling::Type;
  if (scaling.type == Type::none) return nullptr;
  Json json;
  // Ours have the same names.
  json["rope_type"] = scaling.to_json()["type"];
  json["factor"] = shortest(scaling.factor);
  if (scaling.type == Type::linear) return json;
  if (scaling.type == Type::llama3) {
    json["low_freq_factor"] = shortest(scaling.low_freq_factor);
    json["high_freq_factor"] = shortest(scaling.high_freq_factor);
  } else if (scaling.type == Type::yarn) {
    json["beta_fast"] = shortest(scaling.beta_fast);
    json["beta_slow"] = shortest(scaling.beta_slow);
  } else {
    json["type"] = json["rope_type"];  // the older name, which Phi-3's own code reads
    json["short_factor"] = scaling.short_factor;
    json["long_factor"] = scaling.long_factor;
  }
  if (scaling.attention_factor != 0) json["attention_factor"] = shortest(scaling.attention_factor);
  json["original_max_position_embeddings"] = scaling.original_max_sequence_length;
  return json;
}

std::span<const HfFamily> hf_families() { return kFamilies; }
std::string_view hf_model_type(HfFamily family) { return names_of(family).model_type; }
std::string_view hf_architecture(HfFamily family) { return names_of(family).architecture; }

HfFamily hf_family_named(const std::string& model_type, const std::string& where) {
  std::vector<std::string> known;
  for (const Names& names : kNames) {
    if (names.model_type == model_type) return names.family;
    known.emplace_back(names.model_type);
  }
  user_error("{} is \"{}\"; supported are {}", where, model_type, join(known, ", "));
}

std::string hf_obstacle(const ModelSpec& spec, HfFamily family) {
  if (const std::string why = experts_obstacle(spec, family); !why.empty()) return why;
  if (family == HfFamily::gpt2) return gpt2_obstacle(spec);
  if (family == HfFamily::starcoder2) return starcoder2_obstacle(spec);
  return family >= HfFamily::ministral ? hf::family_obstacle(spec, family)
                                       : llama_family_obstacle(spec, dense_family(family));
}

HfFamily hf_family_for(const ModelSpec& spec) {
  std::vector<std::string> obstacles;
  for (const HfFamily family : kFamilies) {
    const std::string obstacle = hf_obstacle(spec, family);
    if (obstacle.empty()) return family;
    obstacles.push_back(fmt::format("{} ({})", hf_model_type(family), obstacle));
  }
  user_error("no supported Hugging Face architecture can express this model: not {}",
             join(obstacles, ", "));
}

Json hf_config_json(const ModelSpec& spec, HfFamily family) {
  const std::string obstacle = hf_obstacle(spec, family);
  require(obstacle.empty(), "{} for {}", obstacle, hf_model_type(family));
  Json json;
  json["architectures"] = {hf_architecture(family)};
  json["model_type"] = hf_model_type(family);
  json.update(json_of(spec, family));
  json["tie_word_embeddings"] = spec.tie_embeddings;
  json["initializer_range"] = shortest(spec.init_std);
  return json;
}

}  // namespace onefold
