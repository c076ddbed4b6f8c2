#include <cmath>

#include "base/error.h"
#include "model/hf_sizes.h"
#include "model/hf_writing.h"

namespace onefold::hf {
namespace {

std::string_view is(bool value) { return value ? "is true" : "is false"; }

// "" or the first that is not empty.
template <class... Texts>
std::string first_of(const Texts&... texts) {
  std::string found;
  (void)((found = texts, !found.empty()) || ...);
  return found;
}

std::string unless(bool holds, std::string obstacle) {
  return holds ? std::string() : std::move(obstacle);
}

// "head_dim" has no key of its own.
std::string plain_heads(const ModelSpec& spec) {
  return unless(spec.query_size() == spec.hidden_size, "head_dim is not hidden_size / num_heads");
}

std::string equal_biases(const ModelSpec& spec, bool mlp_too) {
  if (spec.qkv_bias != spec.attention_out_bias)
    return fmt::format("qkv_bias {} and attention_out_bias {}", is(spec.qkv_bias),
                       is(spec.attention_out_bias));
  return unless(!mlp_too || spec.mlp_bias == spec.qkv_bias,
                "qkv_bias, attention_out_bias and mlp_bias are not equal");
}

// A family with rotary positions and a gated MLP, like Llama's.
std::string gated_rope(const ModelSpec& spec, Norm norm) {
  return first_of(unless(spec.norm == norm, "norm is another"),
                  unless(spec.positions == Positions::rope, "positions is not rope"),
                  unless(spec.gated, "the activation is not gated"));
}

// A family with LayerNorm and a plain MLP.
std::string plain_layernorm(const ModelSpec& spec, Positions positions) {
  return first_of(unless(spec.norm == Norm::layernorm, "norm is not layernorm"),
                  unless(spec.positions == positions, "positions is another"),
                  unless(!spec.gated, "the activation is gated"),
                  unless(!spec.qk_norm, "qk_norm is true"), plain_heads(spec));
}

// What query_pre_attn_scalar says.
int64_t scalar_of(const ModelSpec& spec) {
  if (spec.attention_scale == 0) return spec.head_dim;
  const double scale = spec.attention_scale;
  return std::llround(1 / (scale * scale));
}

std::string gemma_obstacle(const ModelSpec& spec, HfFamily family) {
  const bool first = family == HfFamily::gemma, third = family == HfFamily::gemma3;
  uint32_t options = kNormPlusOne | kEmbeddingScale | kYarn | kLongRope;
  if (!first) options |= kNormPlace | kWindow | kSomeWindows | kAttentionScale | kLogitsCap;
  if (!first) options |= third ? kLocalTheta : kAttentionCap;
  const auto length = static_cast<float>(std::sqrt(static_cast<double>(spec.hidden_size)));
  return first_of(
      gated_rope(spec, Norm::rmsnorm1p), option_obstacle(spec, options),
      unless(spec.embedding_scale == length, "embedding_scale is not sqrt(hidden_size)"),
      unless(spec.norm_place == (first ? NormPlace::before : NormPlace::both),
             "norm_place is another"),
      unless(spec.qk_norm == third, fmt::format("qk_norm {}", is(spec.qk_norm))),
      unless(!third || spec.local_rope_theta > 0, "there is no local_rope_theta"),
      unless(spec.attention_scale == 0 ||
                 static_cast<float>(1 / std::sqrt(static_cast<double>(scalar_of(spec)))) ==
                     spec.attention_scale,
             "attention_scale is not one over the root of a whole number"),
      unless(spec.hidden_size % spec.num_heads == 0, "hidden_size is not a multiple of num_heads"),
      unless(!spec.mlp_bias, "mlp_bias is true"), equal_biases(spec, false));
}

std::string cohere_obstacle(const ModelSpec& spec, HfFamily family) {
  const bool second = family == HfFamily::cohere2;
  const uint32_t options = kParallel | kNoNormBias | kLogitsScale | kYarn | kLongRope |
                           (second ? kWindow | kSomeWindows | kNoRope : 0);
  return first_of(
      gated_rope(spec, Norm::layernorm), option_obstacle(spec, options),
      unless(!spec.norm_bias, "norm_bias is true"),
      unless(spec.parallel == Parallel::one_norm, "parallel is not one_norm"),
      unless(!spec.qk_norm, "qk_norm is true"), unless(!spec.mlp_bias, "mlp_bias is true"),
      unless(
          !second || (spec.sliding_window > 0 && spec.no_rope_every == spec.full_attention_every),
          "blocks without a window are not those without rotary positions"),
      plain_heads(spec), equal_biases(spec, false));
}

std::string neox_obstacle(const ModelSpec& spec) {
  return first_of(plain_layernorm(spec, Positions::rope),
                  option_obstacle(spec, kParallel | kRotaryDim | kYarn | kLongRope),
                  unless(spec.parallel != Parallel::one_norm, "parallel is one_norm"),
                  unless(spec.num_kv_heads == spec.num_heads, "num_kv_heads is not num_heads"),
                  unless(spec.mlp_bias, "mlp_bias is false"), equal_biases(spec, false));
}

std::string gptj_obstacle(const ModelSpec& spec) {
  return first_of(plain_layernorm(spec, Positions::rope),
                  option_obstacle(spec, kParallel | kRotaryDim | kHeadBias),
                  unless(spec.parallel == Parallel::one_norm, "parallel is not one_norm"),
                  unless(spec.head_bias && !spec.tie_embeddings, "the head has no bias of its own"),
                  unless(spec.num_kv_heads == spec.num_heads, "num_kv_heads is not num_heads"),
                  unless(spec.rope_theta == 10000, "rope_theta is not 10000"),
                  unless(spec.rope_scaling.type == RopeScaling::Type::none, "rope_scaling is set"),
                  unless(!spec.qkv_bias && !spec.attention_out_bias, "attention has biases"),
                  unless(spec.mlp_bias, "mlp_bias is false"));
}

std::string opt_obstacle(const ModelSpec& spec) {
  return first_of(plain_layernorm(spec, Positions::learned), option_obstacle(spec, kPositionOffset),
                  unless(spec.position_offset == 2, "position_offset is not 2"),
                  unless(spec.norm_eps == 1e-5f, "norm_eps is not 1e-5"),
                  unless(spec.num_kv_heads == spec.num_heads, "num_kv_heads is not num_heads"),
                  equal_biases(spec, true));
}

// The layouts of queries, keys and values are the same in both of its architectures.
bool is_new_falcon(const ModelSpec& spec) {
  return spec.parallel == Parallel::two_norms ||
         (spec.num_kv_heads != 1 && spec.num_kv_heads != spec.num_heads);
}

std::string falcon_obstacle(const ModelSpec& spec) {
  const bool alibi = spec.positions == Positions::alibi;
  const auto scaled = static_cast<float>(1 / std::sqrt(static_cast<double>(spec.head_dim)));
  return first_of(
      plain_layernorm(spec, alibi ? Positions::alibi : Positions::rope),
      option_obstacle(spec, kParallel | kYarn | kLongRope),
      unless(!alibi || spec.alibi_scale == scaled, "alibi_scale is not 1 / sqrt(head_dim)"),
      unless(spec.parallel != Parallel::no || !is_new_falcon(spec),
             "num_kv_heads is neither 1 nor num_heads"),
      equal_biases(spec, true));
}

// A family whose MLPs are four times as wide as the model, and every head has keys of its own.
std::string plain_sizes(const ModelSpec& spec) {
  return first_of(unless(spec.intermediate_size == 4 * spec.hidden_size,
                         "intermediate_size is not 4 * hidden_size"),
                  unless(spec.num_kv_heads == spec.num_heads, "num_kv_heads is not num_heads"));
}

std::string bloom_obstacle(const ModelSpec& spec) {
  return first_of(plain_layernorm(spec, Positions::alibi), option_obstacle(spec, kEmbeddingNorm),
                  unless(spec.embedding_norm, "embedding_norm is false"),
                  unless(spec.alibi_scale == 1, "alibi_scale is not 1"),
                  unless(spec.activation == Activation::gelu_tanh, "activation is not gelu_tanh"),
                  unless(spec.qkv_bias && spec.attention_out_bias && spec.mlp_bias,
                         "there are layers without a bias"),
                  plain_sizes(spec));
}

std::string mpt_obstacle(const ModelSpec& spec) {
  return first_of(
      plain_layernorm(spec, Positions::alibi), option_obstacle(spec, kNoNormBias | kAttentionScale),
      unless(!spec.norm_bias, "norm_bias is true"),
      unless(spec.alibi_scale == 1, "alibi_scale is not 1"),
      unless(spec.activation == Activation::gelu, "activation is not gelu"),
      unless(!spec.qkv_bias && !spec.attention_out_bias && !spec.mlp_bias, "there are biases"),
      plain_sizes(spec));
}

// The name that PyTorch has for the approximation by tanh.
std::string_view torch_activation_name(Activation activation) {
  return activation == Activation::gelu_tanh ? "gelu_pytorch_tanh" : activation_name(activation);
}

// transformers makes the mask of a window whether a block has one or not: then as long as no
// sequence is longer.
int64_t some_window(const ModelSpec& spec) {
  return spec.sliding_window > 0 ? spec.sliding_window : spec.max_sequence_length;
}

Json gemma_json(const ModelSpec& spec, HfFamily family) {
  Json json = rope_model_json(spec, family);
  json["head_dim"] = spec.head_dim;
  json["attention_bias"] = spec.qkv_bias;
  json["hidden_act"] = torch_activation_name(spec.activation);
  if (family == HfFamily::gemma) return json;
  json["hidden_activation"] = json["hidden_act"];
  json.erase("hidden_act");
  const auto cap = [](float value) { return value == 0 ? Json(nullptr) : Json(shortest(value)); };
  json["attn_logit_softcapping"] = cap(spec.attention_soft_cap);
  json["final_logit_softcapping"] = cap(spec.logits_soft_cap);
  json["query_pre_attn_scalar"] = scalar_of(spec);
  json["sliding_window"] = some_window(spec);
  json["layer_types"] = layer_types_json(spec);
  if (family == HfFamily::gemma3) json["rope_local_base_freq"] = shortest(spec.local_rope_theta);
  return json;
}

Json cohere_json(const ModelSpec& spec, HfFamily family) {
  Json json = rope_model_json(spec, family);
  json["logit_scale"] = shortest(spec.logits_scale);
  json["attention_bias"] = spec.qkv_bias;
  if (family == HfFamily::cohere) {
    json["use_qk_norm"] = false;
    return json;
  }
  json["sliding_window"] = spec.sliding_window;
  json["layer_types"] = layer_types_json(spec);
  return json;
}

Json granite_json(const ModelSpec& spec) {
  Json json = rope_model_json(spec, HfFamily::granite);
  json["attention_bias"] = spec.qkv_bias;
  json["mlp_bias"] = spec.mlp_bias;
  json["embedding_multiplier"] = shortest(spec.embedding_scale);
  // Which is 1 where nothing is said.
  json["attention_multiplier"] = spec.attention_scale != 0
                                     ? shortest(spec.attention_scale)
                                     : 1 / std::sqrt(static_cast<double>(spec.head_dim));
  json["residual_multiplier"] = shortest(spec.residual_scale);
  // The shortest divisor that reads back as the same scale.
  const double divisor = 1 / static_cast<double>(spec.logits_scale);
  const double near = shortest(static_cast<float>(divisor));
  json["logits_scaling"] = static_cast<float>(1 / near) == spec.logits_scale ? near : divisor;
  return json;
}

Json neox_json(const ModelSpec& spec) {
  Json json = rope_model_json(spec, HfFamily::gpt_neox);
  json["use_parallel_residual"] = spec.parallel != Parallel::no;
  json["attention_bias"] = spec.qkv_bias;
  json["rotary_emb_base"] = shortest(spec.rope_theta);
  json["rotary_pct"] = rotary_part(spec);
  for (const char* key : {"attention_dropout", "hidden_dropout"})
    json[key] = shortest(spec.dropout);
  return json;
}

Json gptj_json(const ModelSpec& spec) {
  Json json = gpt2_json(spec, HfFamily::gptj);
  json["rotary_dim"] = spec.rotary_size();
  return json;
}

Json opt_json(const ModelSpec& spec) {
  Json json = sizes_json(spec, HfFamily::opt);
  json["word_embed_proj_dim"] = spec.hidden_size;
  json["activation_function"] = activation_name(spec.activation);
  json["enable_bias"] = spec.qkv_bias;
  json["do_layer_norm_before"] = true;
  json["dropout"] = shortest(spec.dropout);
  json["attention_dropout"] = shortest(spec.dropout);
  json["init_std"] = shortest(spec.init_std);
  return json;
}

Json falcon_json(const ModelSpec& spec) {
  const bool is_new = is_new_falcon(spec);
  Json json = sizes_json(spec, HfFamily::falcon);
  json["num_kv_heads"] = spec.num_kv_heads;
  json["rope_theta"] = shortest(spec.rope_theta);
  json["rope_scaling"] = rope_scaling_json(spec.rope_scaling);
  json["activation"] = activation_name(spec.activation);
  json["new_decoder_architecture"] = is_new;
  json["multi_query"] = spec.num_kv_heads == 1;
  json["parallel_attn"] = spec.parallel != Parallel::no;
  if (is_new) json["num_ln_in_parallel_attn"] = spec.parallel == Parallel::two_norms ? 2 : 1;
  json["bias"] = spec.qkv_bias;
  json["alibi"] = spec.positions == Positions::alibi;
  json["hidden_dropout"] = json["attention_dropout"] = 0.0;
  return json;
}

Json bloom_json(const ModelSpec& spec) {
  Json json = sizes_json(spec, HfFamily::bloom);
  json["apply_residual_connection_post_layernorm"] = false;
  json["hidden_dropout"] = json["attention_dropout"] = 0.0;
  return json;
}

Json mpt_json(const ModelSpec& spec) {
  Json json = sizes_json(spec, HfFamily::mpt);
  json["expansion_ratio"] = 4;
  json["no_bias"] = true;
  json["resid_pdrop"] = json["emb_pdrop"] = 0.0;
  const float scale = spec.attention_scale;
  json["attn_config"] = {{"alibi", true},
                         {"alibi_bias_max", 8},
                         {"attn_pdrop", 0},
                         {"clip_qkv", nullptr},
                         {"softmax_scale", scale == 0 ? Json(nullptr) : Json(shortest(scale))}};
  return json;
}

}  // namespace

std::string option_obstacle(const ModelSpec& spec, uint32_t options) {
  using Type = RopeScaling::Type;
  const std::pair<uint32_t, bool> had[] = {
      {kWindow, spec.sliding_window != 0},
      {kSomeWindows, spec.full_attention_every != 0},
      {kLocalTheta, spec.local_rope_theta != 0},
      {kAttentionScale, spec.attention_scale != 0},
      {kAttentionCap, spec.attention_soft_cap != 0},
      {kLogitsCap, spec.logits_soft_cap != 0},
      {kLogitsScale, spec.logits_scale != 1},
      {kEmbeddingScale, spec.embedding_scale != 1},
      {kResidualScale, spec.residual_scale != 1},
      {kNormPlace, spec.norm_place != NormPlace::before},
      {kParallel, spec.parallel != Parallel::no},
      {kNoNormBias, spec.norm == Norm::layernorm && !spec.norm_bias},
      {kRotaryDim, spec.rotary_dim != 0},
      {kPositionOffset, spec.position_offset != 0},
      {kQkNormWhole, spec.qk_norm_whole},
      {kHeadBias, spec.head_bias},
      {kNormPlusOne, spec.norm == Norm::rmsnorm1p},
      {kNoRope, spec.no_rope_every != 0},
      {kYarn, spec.rope_scaling.type == Type::yarn},
      {kLongRope, spec.rope_scaling.type == Type::longrope},
      {kEmbeddingNorm, spec.embedding_norm},
  };
  constexpr std::string_view kNames[] = {"sliding_window is set",
                                         "full_attention_every is set",
                                         "local_rope_theta is set",
                                         "attention_scale is set",
                                         "attention_soft_cap is set",
                                         "logits_soft_cap is set",
                                         "logits_scale is not 1",
                                         "embedding_scale is not 1",
                                         "residual_scale is not 1",
                                         "norm_place is not before",
                                         "attention and MLP are parallel",
                                         "norm_bias is false",
                                         "rotary_dim is not head_dim",
                                         "position_offset is not 0",
                                         "qk_norm_whole is true",
                                         "head_bias is true",
                                         "norm is rmsnorm1p",
                                         "no_rope_every is not 0",
                                         "rope_scaling is yarn",
                                         "rope_scaling is longrope",
                                         "embedding_norm is true"};
  for (size_t i = 0; i < std::size(had); ++i)
    if (had[i].second && !(options & had[i].first)) return std::string(kNames[i]);
  return "";
}

double rotary_part(const ModelSpec& spec) { return rotary_part(spec.rotary_size(), spec.head_dim); }

double rotary_part(int64_t turned_elems, int64_t head_dim) {
  const auto turned = static_cast<double>(turned_elems), all = static_cast<double>(head_dim);
  const double part = turned / all;
  return all * part < turned ? std::nextafter(part, 1.0) : part;
}

Json layer_types_json(const ModelSpec& spec) {
  Json layers = Json::array();
  for (int block = 0; block < spec.num_layers; ++block)
    layers.push_back(spec.window_of(block) > 0 ? "sliding_attention" : "full_attention");
  return layers;
}

std::string family_obstacle(const ModelSpec& spec, HfFamily family) {
  switch (family) {
    case HfFamily::ministral:
      return first_of(
          gated_rope(spec, Norm::rmsnorm),
          option_obstacle(spec, kWindow | kSomeWindows | kYarn | kLongRope),
          unless(!spec.qk_norm, "qk_norm is true"),
          unless(!spec.qkv_bias && !spec.attention_out_bias && !spec.mlp_bias, "there are biases"));
    case HfFamily::gemma:
    case HfFamily::gemma2:
    case HfFamily::gemma3:
      return gemma_obstacle(spec, family);
    case HfFamily::olmo2:
      return first_of(gated_rope(spec, Norm::rmsnorm),
                      option_obstacle(spec, kNormPlace | kQkNormWhole | kYarn | kLongRope),
                      unless(spec.norm_place == NormPlace::after, "norm_place is not after"),
                      unless(spec.qk_norm_whole, "qk_norm_whole is false"), plain_heads(spec),
                      unless(!spec.mlp_bias, "mlp_bias is true"), equal_biases(spec, false));
    case HfFamily::granite:
      return first_of(gated_rope(spec, Norm::rmsnorm),
                      option_obstacle(spec, kEmbeddingScale | kAttentionScale | kResidualScale |
                                                kLogitsScale | kYarn | kLongRope),
                      unless(!spec.qk_norm, "qk_norm is true"), plain_heads(spec),
                      equal_biases(spec, false));
    case HfFamily::cohere:
    case HfFamily::cohere2:
      return cohere_obstacle(spec, family);
    case HfFamily::gpt_neox:
      return neox_obstacle(spec);
    case HfFamily::gptj:
      return gptj_obstacle(spec);
    case HfFamily::opt:
      return opt_obstacle(spec);
    case HfFamily::falcon:
      return falcon_obstacle(spec);
    case HfFamily::bloom:
      return bloom_obstacle(spec);
    case HfFamily::mpt:
      return mpt_obstacle(spec);
    default:
      internal_error("family {} is none of these", static_cast<int>(family));
  }
}

Json family_json(const ModelSpec& spec, HfFamily family) {
  switch (family) {
    case HfFamily::ministral: {
      Json json = rope_model_json(spec, family);
      json["head_dim"] = spec.head_dim;
      json["sliding_window"] = some_window(spec);
      json["layer_types"] = layer_types_json(spec);
      return json;
    }
    case HfFamily::gemma:
    case HfFamily::gemma2:
    case HfFamily::gemma3:
      return gemma_json(spec, family);
    case HfFamily::olmo2: {
      Json json = rope_model_json(spec, family);
      json["attention_bias"] = spec.qkv_bias;
      return json;
    }
    case HfFamily::granite:
      return granite_json(spec);
    case HfFamily::cohere:
    case HfFamily::cohere2:
      return cohere_json(spec, family);
    case HfFamily::gpt_neox:
      return neox_json(spec);
    case HfFamily::gptj:
      return gptj_json(spec);
    case HfFamily::opt:
      return opt_json(spec);
    case HfFamily::falcon:
      return falcon_json(spec);
    case HfFamily::bloom:
      return bloom_json(spec);
    case HfFamily::mpt:
      return mpt_json(spec);
    default:
      internal_error("family {} is none of these", static_cast<int>(family));
  }
}

}  // namespace onefold::hf
