// Hugging Face config.json. Such a file has many keys that say nothing about the arithmetic (token
// ids, versions, generation settings), so unknown keys pass; what would change the arithmetic and
// is not supported is refused by name.
#include "model/hf_config.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace onefold {
namespace {

// The keys that may be null mean "default" then.
template <typename T>
T optional(JsonObject& in, std::string_view key, T fallback) {
  const auto found = in.value().find(key);
  if (found != in.value().end() && found->is_null()) return fallback;
  return in.get<T>(key, fallback);
}

Activation activation(JsonObject& in, std::string_view key, std::string_view fallback) {
  const std::string name = in.get<std::string>(key, std::string(fallback));
  if (name == "relu") return Activation::relu;
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast")
    return Activation::gelu_tanh;
  if (name == "silu" || name == "swish") return Activation::silu;
  in.fail(key, fmt::format("is \"{}\"; supported are relu, gelu, gelu_new, gelu_pytorch_tanh and "
                           "silu",
                           name));
}

void refuse_if(JsonObject& in, std::string_view key, bool refused, std::string_view why) {
  if (!refused) return;
  const auto found = in.value().find(key);
  const bool given = found != in.value().end();
  in.fail(key, fmt::format("is {}: {}", given ? brief_json(*found) : "left to its default", why));
}

ModelSpec read_gpt2(JsonObject& in) {
  ModelSpec spec;
  spec.vocab_size = in.require<int64_t>("vocab_size");
  spec.hidden_size = in.require<int64_t>("n_embd");
  spec.num_layers = in.require<int64_t>("n_layer");
  spec.num_heads = in.require<int64_t>("n_head");
  spec.intermediate_size = optional<int64_t>(in, "n_inner", 0);
  spec.max_sequence_length = in.get<int64_t>("n_positions", 1024);
  spec.norm_eps = in.get<float>("layer_norm_epsilon", 1e-5f);
  spec.activation = activation(in, "activation_function", "gelu_new");
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = true;
  spec.tie_embeddings = in.get<bool>("tie_word_embeddings", true);
  spec.init_std = in.get<float>("initializer_range", 0.02f);

  spec.dropout = in.get<float>("resid_pdrop", 0.1f);
  for (const std::string_view key : {"embd_pdrop", "attn_pdrop"})
    refuse_if(in, key, in.get<float>(key, 0.1f) != spec.dropout,
              "one dropout rate is used everywhere; set it equal to resid_pdrop");
  refuse_if(in, "scale_attn_weights", !in.get<bool>("scale_attn_weights", true),
            "attention scores are always scaled by 1/sqrt(head_dim)");
  refuse_if(in, "scale_attn_by_inverse_layer_idx",
            in.get<bool>("scale_attn_by_inverse_layer_idx", false), "not supported");
  refuse_if(in, "add_cross_attention", in.get<bool>("add_cross_attention", false),
            "only decoders without cross-attention are supported");
  return spec;
}

RopeScaling read_rope_scaling(JsonObject& in, std::string_view key, JsonObject& rope,
                              const ModelSpec& spec) {
  RopeScaling scaling;
  std::string type = rope.get<std::string>("type", "default");
  type = rope.get<std::string>("rope_type", type);
  if (type == "default") return scaling;
  // Scaled frequencies differ from the first position on, so an unknown kind cannot pass.
  refuse_if(in, key, type != "linear" && type != "llama3",
            fmt::format("rotary frequencies of type {} are not supported, and plain ones would be "
                        "wrong; linear and llama3 are",
                        type));
  scaling.factor = rope.require<float>("factor");
  scaling.type = type == "linear" ? RopeScaling::Type::linear : RopeScaling::Type::llama3;
  if (type == "linear") return scaling;
  scaling.low_freq_factor = rope.require<float>("low_freq_factor");
  scaling.high_freq_factor = rope.require<float>("high_freq_factor");
  scaling.original_max_sequence_length =
      optional<int64_t>(rope, "original_max_position_embeddings", spec.max_sequence_length);
  return scaling;
}

// Transformers 5 writes {"rope_parameters": {"rope_theta": ..., "rope_type": ...}}, earlier
// versions "rope_theta" and "rope_scaling".
void read_rope(JsonObject& in, ModelSpec& spec) {
  spec.positions = Positions::rope;
  spec.rope_theta = optional<float>(in, "rope_theta", 10000.0f);
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    const auto found = in.value().find(key);
    if (found == in.value().end() || found->is_null()) continue;
    JsonObject rope = in.object(key);
    spec.rope_scaling = read_rope_scaling(in, key, rope, spec);
    spec.rope_theta = rope.get<float>("rope_theta", spec.rope_theta);
    refuse_if(in, key, rope.get<double>("partial_rotary_factor", 1.0) != 1.0,
              "rope turns whole heads only");
  }
  refuse_if(in, "partial_rotary_factor", in.get<double>("partial_rotary_factor", 1.0) != 1.0,
            "rope turns whole heads only");
}

// Sequences no longer than the window do not meet it, and longer ones are refused as those beyond
// the context are.
void limit_to_window(JsonObject& in, ModelSpec& spec) {
  const int64_t window = optional<int64_t>(in, "sliding_window", spec.max_sequence_length);
  refuse_if(in, "sliding_window", window < 1, "a window holds a token at least");
  spec.max_sequence_length = std::min(spec.max_sequence_length, window);
}

void limit_to_window_of_layers(JsonObject& in, ModelSpec& spec) {
  bool slides = false;
  for (const std::string& layer : optional<std::vector<std::string>>(in, "layer_types", {})) {
    refuse_if(in, "layer_types", layer != "full_attention" && layer != "sliding_attention",
              "only full_attention and sliding_attention are supported");
    slides |= layer == "sliding_attention";
  }
  // Layers from max_window_layers on have the window.
  slides |= in.get<bool>("use_sliding_window", false) &&
            in.get<int64_t>("max_window_layers", 28) < spec.num_layers;
  if (slides) limit_to_window(in, spec);
}

// What all but gpt2 and starcoder2 share.
ModelSpec read_llama_family(JsonObject& in, int64_t default_kv_heads) {
  ModelSpec spec;
  spec.vocab_size = in.require<int64_t>("vocab_size");
  spec.hidden_size = in.require<int64_t>("hidden_size");
  spec.num_layers = in.require<int64_t>("num_hidden_layers");
  spec.num_heads = in.require<int64_t>("num_attention_heads");
  spec.num_kv_heads = optional<int64_t>(in, "num_key_value_heads", default_kv_heads);
  spec.head_dim = optional<int64_t>(in, "head_dim", 0);
  spec.intermediate_size = in.require<int64_t>("intermediate_size");
  spec.max_sequence_length = in.require<int64_t>("max_position_embeddings");
  spec.norm = Norm::rmsnorm;
  spec.norm_eps = in.get<float>("rms_norm_eps", 1e-6f);
  spec.activation = activation(in, "hidden_act", "silu");
  // Our spec has no name for a gate through the tanh approximation, and no model of these families
  // uses it.
  refuse_if(in, "hidden_act", spec.activation == Activation::gelu_tanh,
            "gated layers take relu, gelu or silu");
  spec.gated = true;
  spec.tie_embeddings = in.get<bool>("tie_word_embeddings", false);
  spec.init_std = in.get<float>("initializer_range", 0.02f);
  read_rope(in, spec);
  refuse_if(in, "attention_dropout", in.get<double>("attention_dropout", 0.0) != 0.0,
            "dropout in attention alone is not supported; set it to 0");
  return spec;
}

ModelSpec read_llama(JsonObject& in) {
  ModelSpec spec = read_llama_family(in, 0);
  spec.qkv_bias = spec.attention_out_bias = in.get<bool>("attention_bias", false);
  spec.mlp_bias = in.get<bool>("mlp_bias", false);
  return spec;
}

ModelSpec read_mistral(JsonObject& in) {
  ModelSpec spec = read_llama_family(in, 8);
  limit_to_window(in, spec);
  // A key that is missing means this; one that is null, no window.
  if (!in.value().contains("sliding_window"))
    spec.max_sequence_length = std::min<int64_t>(spec.max_sequence_length, 4096);
  return spec;
}

ModelSpec read_qwen2(JsonObject& in) {
  ModelSpec spec = read_llama_family(in, 0);
  spec.qkv_bias = true;
  limit_to_window_of_layers(in, spec);
  return spec;
}

ModelSpec read_qwen3(JsonObject& in) {
  ModelSpec spec = read_llama_family(in, 0);
  if (spec.head_dim == 0) spec.head_dim = 128;  // the class's default, not hidden / heads
  spec.qkv_bias = spec.attention_out_bias = in.get<bool>("attention_bias", false);
  spec.qk_norm = true;
  limit_to_window_of_layers(in, spec);
  return spec;
}

ModelSpec read_phi3(JsonObject& in) {
  ModelSpec spec = read_llama_family(in, 0);
  spec.norm_eps = in.get<float>("rms_norm_eps", 1e-5f);
  for (const std::string_view key : {"resid_pdrop", "embd_pdrop"})
    refuse_if(in, key, in.get<float>(key, 0.0f) != 0, "set it to 0");
  refuse_if(in, "attention_bias", in.get<bool>("attention_bias", false), "not supported");
  limit_to_window(in, spec);
  return spec;
}

ModelSpec read_smollm3(JsonObject& in) {
  ModelSpec spec = read_llama_family(in, 4);
  spec.tie_embeddings = in.get<bool>("tie_word_embeddings", true);
  if (!in.has("rope_theta") && !in.has("rope_parameters")) spec.rope_theta = 2e6f;
  spec.qkv_bias = spec.attention_out_bias = in.get<bool>("attention_bias", false);
  spec.mlp_bias = in.get<bool>("mlp_bias", false);
  spec.no_rope_every = in.get<int64_t>("no_rope_layer_interval", 4);
  refuse_if(in, "no_rope_layer_interval", spec.no_rope_every < 1, "must be at least 1");
  std::vector<bool> layers;
  if (const auto found = in.value().find("no_rope_layers"); found != in.value().end())
    for (const Json& layer : *found) layers.push_back(layer != Json(0));
  if (!layers.empty()) {  // 1 is a layer with rotary positions; the list comes before the interval
    const auto first = std::find(layers.begin(), layers.end(), false);
    spec.no_rope_every = first == layers.end() ? 0 : first - layers.begin() + 1;
    refuse_if(in, "no_rope_layers", static_cast<int64_t>(layers.size()) != spec.num_layers,
              "it must have an entry for each layer");
    for (int block = 0; block < spec.num_layers; ++block)
      refuse_if(in, "no_rope_layers", spec.rotates(block) != layers[static_cast<size_t>(block)],
                "layers without rotary positions must follow each other at equal distances");
  }
  limit_to_window_of_layers(in, spec);
  return spec;
}

ModelSpec read_starcoder2(JsonObject& in) {
  ModelSpec spec;
  spec.vocab_size = in.require<int64_t>("vocab_size");
  spec.hidden_size = in.require<int64_t>("hidden_size");
  spec.num_layers = in.require<int64_t>("num_hidden_layers");
  spec.num_heads = in.require<int64_t>("num_attention_heads");
  spec.num_kv_heads = optional<int64_t>(in, "num_key_value_heads", 2);
  spec.intermediate_size = in.require<int64_t>("intermediate_size");
  spec.max_sequence_length = in.require<int64_t>("max_position_embeddings");
  spec.norm_eps = in.get<float>("norm_epsilon", 1e-5f);
  spec.activation = activation(in, "hidden_act", "gelu_pytorch_tanh");
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = in.get<bool>("use_bias", true);
  spec.tie_embeddings = in.get<bool>("tie_word_embeddings", true);
  spec.init_std = in.get<float>("initializer_range", 0.018042f);
  spec.dropout = in.get<float>("residual_dropout", 0.0f);
  for (const std::string_view key : {"attention_dropout", "embedding_dropout"})
    refuse_if(in, key, in.get<float>(key, 0.0f) != spec.dropout,
              "one dropout rate is used everywhere; set it equal to residual_dropout");
  read_rope(in, spec);
  limit_to_window(in, spec);
  return spec;
}

ModelSpec read_family(JsonObject& in, HfFamily family) {
  switch (family) {
    case HfFamily::gpt2:
      return read_gpt2(in);
    case HfFamily::llama:
      return read_llama(in);
    case HfFamily::mistral:
      return read_mistral(in);
    case HfFamily::qwen2:
      return read_qwen2(in);
    case HfFamily::qwen3:
      return read_qwen3(in);
    case HfFamily::phi3:
      return read_phi3(in);
    case HfFamily::smollm3:
      return read_smollm3(in);
    case HfFamily::starcoder2:
      return read_starcoder2(in);
  }
  internal_error("no reader for family {}", static_cast<int>(family));
}

}  // namespace

ModelSpec spec_from_hf_config(const Json& json, const std::string& where) {
  JsonObject in(json, where);
  if (!in.has("model_type"))
    user_error("{} has no model_type: it is not a Hugging Face model configuration", where);
  const std::string type = in.require<std::string>("model_type");
  refuse_if(in, "quantization_config",
            in.has("quantization_config") && !json["quantization_config"].is_null(),
            "quantized checkpoints are not supported; start from the unquantized one");
  ModelSpec spec = read_family(in, hf_family_named(type, in.path("model_type")));
  spec.complete(where);
  return spec;
}

}  // namespace onefold
