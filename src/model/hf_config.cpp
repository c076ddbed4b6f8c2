// Hugging Face config.json. Such a file has many keys that say nothing about the arithmetic (token
// ids, versions, generation settings), so unknown keys pass; what would change the arithmetic and
// is not supported is refused by name.
#include "model/hf_config.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "model/hf_reading.h"
#include "model/hf_sizes.h"
#include "model/spec_limits.h"

namespace onefold {
namespace hf {

Activation activation(JsonObject& in, std::string_view key, std::string_view fallback) {
  const std::string name = in.get<std::string>(key, std::string(fallback));
  if (name == "relu") return Activation::relu;
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast")
    return Activation::gelu_tanh;
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "sigmoid") return Activation::sigmoid;
  if (name == "linear") return Activation::identity;
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

Activation plain_activation(JsonObject& in, std::string_view key, std::string_view fallback) {
  const Activation act = activation(in, key, fallback);
  refuse_if(in, key, act == Activation::sigmoid || act == Activation::identity,
            "only gated layers take it");
  return act;
}

namespace {

// The context before it was stretched: beside the object, which comes first as in transformers, or
// in it.
int64_t original_length(JsonObject& in, JsonObject& rope, const ModelSpec& spec) {
  constexpr std::string_view kOriginal = "original_max_position_embeddings";
  const int64_t length = optional<int64_t>(
      in, kOriginal, optional<int64_t>(rope, kOriginal, spec.max_sequence_length));
  refuse_if(in, kOriginal, length < 2, "must be at least 2");
  return length;
}

// 0 where a file leaves it to the factor.
float attention_factor(JsonObject& in, std::string_view key, JsonObject& rope) {
  const float factor = optional<float>(rope, "attention_factor", 0);
  refuse_if(in, key, rope.has("attention_factor") && !(factor > 0),
            "attention_factor must be greater than 0");
  return factor;
}

// What is missing follows from the two contexts.
RopeScaling read_longrope(JsonObject& in, std::string_view key, JsonObject& rope,
                          const ModelSpec& spec) {
  RopeScaling scaling;
  scaling.type = RopeScaling::Type::longrope;
  scaling.short_factor = rope.require<std::vector<double>>("short_factor");
  scaling.long_factor = rope.require<std::vector<double>>("long_factor");
  scaling.original_max_sequence_length = original_length(in, rope, spec);
  const double stretched = static_cast<double>(spec.max_sequence_length) /
                           static_cast<double>(scaling.original_max_sequence_length);
  scaling.factor = std::max(1.0f, optional<float>(rope, "factor", static_cast<float>(stretched)));
  scaling.attention_factor = attention_factor(in, key, rope);
  return scaling;
}

// What YaRN multiplies queries and keys with where two files' constants say so: the length that one
// gives, over that of the other.
float yarn_ratio(double factor, double mscale, double mscale_all_dim) {
  const auto length = [&](double scale) {
    return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1;
  };
  return static_cast<float>(length(mscale) / length(mscale_all_dim));
}

}  // namespace

RopeScaling read_rope_scaling(JsonObject& in, std::string_view key, JsonObject& rope,
                              const ModelSpec& spec) {
  RopeScaling scaling;
  std::string type = rope.get<std::string>("type", "default");
  type = rope.get<std::string>("rope_type", type);
  if (type == "default") return scaling;
  // They change where sequences are longer than the context, and those are refused.
  if (type == "dynamic") return scaling;
  // "su" is Phi-3's first name for it, and so was "yarn".
  if (type == "longrope" || type == "su" || (type == "yarn" && rope.has("long_factor")))
    return read_longrope(in, key, rope, spec);
  // Scaled frequencies differ from the first position on, so an unknown kind cannot pass.
  refuse_if(in, key, type != "linear" && type != "llama3" && type != "yarn",
            fmt::format("rotary frequencies of type {} are not supported, and plain ones would be "
                        "wrong; linear, dynamic, llama3, yarn and longrope are",
                        type));
  scaling.factor = rope.require<float>("factor");
  scaling.type = type == "linear" ? RopeScaling::Type::linear
                 : type == "yarn" ? RopeScaling::Type::yarn
                                  : RopeScaling::Type::llama3;
  if (type == "linear") return scaling;
  if (type == "llama3") {
    scaling.low_freq_factor = rope.require<float>("low_freq_factor");
    scaling.high_freq_factor = rope.require<float>("high_freq_factor");
  } else {
    scaling.beta_fast = optional<float>(rope, "beta_fast", 32);
    scaling.beta_slow = optional<float>(rope, "beta_slow", 1);
    scaling.attention_factor = attention_factor(in, key, rope);
    // Only both together say something.
    const double mscale = optional<double>(rope, "mscale", 0),
                 all_dim = optional<double>(rope, "mscale_all_dim", 0);
    if (scaling.attention_factor == 0 && mscale != 0 && all_dim != 0)
      scaling.attention_factor = yarn_ratio(scaling.factor, mscale, all_dim);
    refuse_if(in, key, !optional<bool>(rope, "truncate", true), "truncate must be true");
  }
  scaling.original_max_sequence_length = original_length(in, rope, spec);
  return scaling;
}

// Transformers 5 writes {"rope_parameters": {"rope_theta": ..., "rope_type": ...}}, earlier
// versions "rope_theta" and "rope_scaling".
void read_rope(JsonObject& in, ModelSpec& spec, float default_theta, double default_part) {
  spec.positions = Positions::rope;
  spec.rope_theta = optional<float>(in, "rope_theta", default_theta);
  double part = optional<double>(in, "partial_rotary_factor", default_part);
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    const auto found = in.value().find(key);
    if (found == in.value().end() || found->is_null() || found->empty()) continue;
    JsonObject rope = in.object(key);
    spec.rope_scaling = read_rope_scaling(in, key, rope, spec);
    spec.rope_theta = rope.get<float>("rope_theta", spec.rope_theta);
    part = optional<double>(rope, "partial_rotary_factor", part);
    break;  // of two that say something, transformers takes the older
  }
  if (part == 1.0) return;
  const int64_t head_dim =
      spec.head_dim != 0 || spec.num_heads < 1 ? spec.head_dim : spec.hidden_size / spec.num_heads;
  const std::string_view key = in.has("rotary_pct") ? "rotary_pct" : "partial_rotary_factor";
  refuse_if(in, key, !(part > 0 && part < 1), "it is a share of a head");
  // As transformers rounds; what is left must be pairs.
  spec.rotary_dim = static_cast<int64_t>(static_cast<double>(head_dim) * part);
  refuse_if(in, key, spec.rotary_dim < 2 || spec.rotary_dim % 2 != 0,
            fmt::format("{} of {} elements of a head would be turned, and pairs are needed",
                        spec.rotary_dim, head_dim));
}

// Up to the window's length it makes no difference which blocks have it.
void shorten_to(int64_t window, ModelSpec& spec) {
  if (window >= spec.max_sequence_length) return;
  spec.shortened = fmt::format(
      "its description says {}, but its blocks without a window do not lie at equal distances, and "
      "the longest sequence is the window of the others, {}, up to which that makes no difference",
      spec.max_sequence_length, window);
  spec.max_sequence_length = window;
}

void set_windows(JsonObject& in, ModelSpec& spec, int64_t window, const std::vector<bool>& slides) {
  refuse_if(in, "sliding_window", window < 1, "a window holds a token at least");
  const auto full = std::find(slides.begin(), slides.end(), false) - slides.begin();
  ModelSpec with = spec;
  with.sliding_window = window;
  with.full_attention_every = full < std::ssize(slides) ? full + 1 : 0;
  bool fits = true;
  for (size_t block = 0; block < slides.size(); ++block)
    fits &= (with.window_of(static_cast<int>(block)) > 0) == slides[block];
  if (fits)
    spec = with;
  else
    shorten_to(window, spec);
}

void read_windows(JsonObject& in, ModelSpec& spec, int64_t default_window, int64_t full_every) {
  refuse_if(in, "num_hidden_layers", spec.num_layers < 1 || spec.num_layers > kMostLayers,
            "there must be layers, and not so many");
  // A key that is missing means the default; one that is null, no window.
  const auto found = in.value().find("sliding_window");
  const bool given = found != in.value().end() && !found->is_null();
  const int64_t missing = found == in.value().end() ? default_window : 0;
  const int64_t window = given ? in.get<int64_t>("sliding_window", 0) : missing;
  std::vector<bool> slides;
  for (int64_t block = 0; block < spec.num_layers; ++block)
    slides.push_back(full_every <= 0 || (block + 1) % full_every != 0);
  if (const auto layers = optional<std::vector<std::string>>(in, "layer_types", {});
      !layers.empty()) {
    refuse_if(in, "layer_types", std::ssize(layers) != spec.num_layers,
              "it must have an entry for each layer");
    slides.clear();
    for (const std::string& layer : layers) {
      refuse_if(in, "layer_types", layer != "full_attention" && layer != "sliding_attention",
                "only full_attention and sliding_attention are supported");
      slides.push_back(layer == "sliding_attention");
    }
  }
  // Where no block has a window, files may say 0.
  if (std::find(slides.begin(), slides.end(), true) == slides.end()) return;
  refuse_if(in, "sliding_window", given && window < 1, "a window holds a token at least");
  if (window > 0) set_windows(in, spec, window, slides);
}

void read_one_window(JsonObject& in, ModelSpec& spec, int64_t default_window) {
  const auto layers = optional<std::vector<std::string>>(in, "layer_types", {});
  const bool full = std::find(layers.begin(), layers.end(), "full_attention") != layers.end();
  const bool none =
      in.value().contains("sliding_window") ? !in.has("sliding_window") : default_window == 0;
  refuse_if(
      in, "layer_types", full && !none,
      "transformers gives every block of this family the window, whatever it says; remove it, "
      "or set sliding_window to null");
  read_windows(in, spec, default_window, 0);
}

ModelSpec read_llama_family(JsonObject& in, HfFamily family, bool tied, float default_theta) {
  ModelSpec spec = read_sizes(in, family, tied);
  spec.head_dim = optional<int64_t>(in, "head_dim", 0);
  spec.norm = Norm::rmsnorm;
  spec.activation = activation(in, "hidden_act", "silu");
  spec.gated = true;
  read_rope(in, spec, default_theta);
  refuse_attention_dropout(in);
  return spec;
}

void read_dropout(JsonObject& in, ModelSpec& spec, std::string_view key, float missing,
                  std::initializer_list<std::string_view> others) {
  spec.dropout = in.get<float>(key, missing);
  for (const std::string_view other : others)
    refuse_if(in, other, in.get<float>(other, missing) != spec.dropout,
              fmt::format("one dropout rate is used everywhere; set it equal to {}", key));
}

void refuse_attention_dropout(JsonObject& in) {
  refuse_if(in, "attention_dropout", in.get<double>("attention_dropout", 0.0) != 0.0,
            "dropout in attention alone is not supported; set it to 0");
}

}  // namespace hf

namespace {

using namespace hf;

ModelSpec read_gpt2(JsonObject& in) {
  ModelSpec spec = read_sizes(in, HfFamily::gpt2, true);
  spec.activation = plain_activation(in, "activation_function", "gelu_new");
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = true;
  read_dropout(in, spec, "resid_pdrop", 0.1f, {"embd_pdrop", "attn_pdrop"});
  refuse_if(in, "scale_attn_weights", !in.get<bool>("scale_attn_weights", true),
            "attention scores are always scaled by 1/sqrt(head_dim)");
  refuse_if(in, "scale_attn_by_inverse_layer_idx",
            in.get<bool>("scale_attn_by_inverse_layer_idx", false), "not supported");
  refuse_if(in, "add_cross_attention", in.get<bool>("add_cross_attention", false),
            "only decoders without cross-attention are supported");
  return spec;
}

ModelSpec read_llama(JsonObject& in) {
  ModelSpec spec = read_llama_family(in, HfFamily::llama);
  spec.qkv_bias = spec.attention_out_bias = in.get<bool>("attention_bias", false);
  spec.mlp_bias = in.get<bool>("mlp_bias", false);
  return spec;
}

ModelSpec read_mistral(JsonObject& in) {
  ModelSpec spec = read_llama_family(in, HfFamily::mistral);
  read_one_window(in, spec, 4096);
  return spec;
}

// The same, but that its blocks may be of two kinds.
ModelSpec read_ministral(JsonObject& in) {
  ModelSpec spec = read_llama_family(in, HfFamily::mistral);
  read_windows(in, spec, 4096, 0);
  return spec;
}

// Layers from max_window_layers on have the window; layer_types comes before.
void read_qwen_windows(JsonObject& in, ModelSpec& spec) {
  const bool listed = !optional<std::vector<std::string>>(in, "layer_types", {}).empty();
  const bool uses = in.get<bool>("use_sliding_window", false);
  const int64_t first = in.get<int64_t>("max_window_layers", 28);
  if (listed) return read_windows(in, spec, spec.max_sequence_length, 0);
  if (!uses || first >= spec.num_layers) return;
  const int64_t window = optional<int64_t>(in, "sliding_window", spec.max_sequence_length);
  refuse_if(in, "sliding_window", window < 1, "a window holds a token at least");
  if (first <= 0)
    spec.sliding_window = window;
  else
    shorten_to(window, spec);
}

ModelSpec read_qwen2(JsonObject& in) {
  ModelSpec spec = read_llama_family(in, HfFamily::qwen2);
  spec.qkv_bias = true;
  read_qwen_windows(in, spec);
  return spec;
}

ModelSpec read_qwen3(JsonObject& in) {
  ModelSpec spec = read_llama_family(in, HfFamily::qwen3);
  if (spec.head_dim == 0) spec.head_dim = 128;  // the class's default, not hidden / heads
  spec.qkv_bias = spec.attention_out_bias = in.get<bool>("attention_bias", false);
  spec.qk_norm = true;
  read_qwen_windows(in, spec);
  return spec;
}

// What all families with experts share. transformers adds the loss of balance to a model's loss if
// its router's logits are asked for.
void read_experts(JsonObject& in, std::string_view count_key, int64_t default_per_token,
                  ModelSpec& spec) {
  ExpertSpec& e = spec.experts;
  e.count = in.require<int64_t>(count_key);
  refuse_if(in, count_key, e.count < 1, "a model of this type has an expert at least");
  e.per_token = in.get<int64_t>("num_experts_per_tok", default_per_token);
  const auto coefficient = in.get<float>("router_aux_loss_coef", 0.001f);
  if (in.get<bool>("output_router_logits", false)) e.balance_loss = coefficient;
}

ModelSpec read_mixtral(JsonObject& in) {
  ModelSpec spec = read_llama_family(in, HfFamily::mixtral, false, 1e6f);
  read_one_window(in, spec, 0);
  read_experts(in, "num_local_experts", 2, spec);
  refuse_if(in, "router_jitter_noise", in.get<double>("router_jitter_noise", 0.0) != 0,
            "it is noise on what experts compute with too; set it to 0, and model.experts.jitter");
  return spec;
}

// Layers of a mixture among dense ones, for both generations.
void read_qwen_experts(JsonObject& in, int64_t default_per_token, ModelSpec& spec) {
  // Which of the two names is written depends on the version.
  const bool local = !in.has("num_experts") && in.has("num_local_experts");
  read_experts(in, local ? "num_local_experts" : "num_experts", default_per_token, spec);
  ExpertSpec& e = spec.experts;
  e.intermediate_size = in.require<int64_t>("moe_intermediate_size");
  e.normalised = in.get<bool>("norm_topk_prob", false);
  e.every = in.get<int64_t>("decoder_sparse_step", 1);
  refuse_if(in, "decoder_sparse_step", e.every < 1, "must be at least 1");
  e.dense_blocks = optional<std::vector<int64_t>>(in, "mlp_only_layers", {});
  std::sort(e.dense_blocks.begin(), e.dense_blocks.end());
}

ModelSpec read_qwen2_moe(JsonObject& in) {
  ModelSpec spec = read_qwen2(in);
  spec.qkv_bias = in.get<bool>("qkv_bias", true);
  read_qwen_experts(in, 4, spec);
  spec.experts.shared_intermediate_size = in.require<int64_t>("shared_expert_intermediate_size");
  refuse_if(in, "shared_expert_intermediate_size", spec.experts.shared_intermediate_size < 1,
            "must be at least 1");
  spec.experts.shared_gate = true;
  return spec;
}

ModelSpec read_qwen3_moe(JsonObject& in) {
  ModelSpec spec = read_qwen3(in);
  read_qwen_experts(in, 8, spec);
  return spec;
}

ModelSpec read_phi3(JsonObject& in) {
  ModelSpec spec = read_llama_family(in, HfFamily::phi3);
  for (const std::string_view key : {"resid_pdrop", "embd_pdrop"})
    refuse_if(in, key, in.get<float>(key, 0.0f) != 0, "set it to 0");
  refuse_if(in, "attention_bias", in.get<bool>("attention_bias", false), "not supported");
  read_one_window(in, spec, 0);
  return spec;
}

ModelSpec read_smollm3(JsonObject& in) {
  ModelSpec spec = read_llama_family(in, HfFamily::smollm3, true, 2e6f);
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
  read_qwen_windows(in, spec);
  return spec;
}

ModelSpec read_starcoder2(JsonObject& in) {
  ModelSpec spec = read_sizes(in, HfFamily::starcoder2, true);
  spec.activation = plain_activation(in, "hidden_act", "gelu_pytorch_tanh");
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = in.get<bool>("use_bias", true);
  spec.init_std = in.get<float>("initializer_range", 0.018042f);
  read_dropout(in, spec, "residual_dropout", 0.0f, {"attention_dropout", "embedding_dropout"});
  read_rope(in, spec);
  read_one_window(in, spec, 0);
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
    case HfFamily::mixtral:
      return read_mixtral(in);
    case HfFamily::qwen2_moe:
      return read_qwen2_moe(in);
    case HfFamily::qwen3_moe:
      return read_qwen3_moe(in);
    case HfFamily::ministral:
      return read_ministral(in);
    case HfFamily::gemma:
      return read_gemma(in);
    case HfFamily::gemma2:
      return read_gemma2(in);
    case HfFamily::gemma3:
      return read_gemma3(in);
    case HfFamily::olmo2:
      return read_olmo2(in);
    case HfFamily::granite:
      return read_granite(in);
    case HfFamily::cohere:
      return read_cohere(in);
    case HfFamily::cohere2:
      return read_cohere2(in);
    case HfFamily::gpt_neox:
      return read_gpt_neox(in);
    case HfFamily::gptj:
      return read_gptj(in);
    case HfFamily::opt:
      return read_opt(in);
    case HfFamily::falcon:
      return read_falcon(in);
    case HfFamily::bloom:
      return read_bloom(in);
    case HfFamily::mpt:
      return read_mpt(in);
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
  // transformers heeds it in every family.
  refuse_if(in, "is_causal", in.value().contains("is_causal") && in.value()["is_causal"] != true,
            "attention is causal");
  ModelSpec spec = read_family(in, hf_family_named(type, in.path("model_type")));
  spec.complete(where);
  return spec;
}

}  // namespace onefold
