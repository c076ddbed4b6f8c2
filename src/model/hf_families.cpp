// Readers of config.json of families that are less like Llama or GPT-2.
#include <cmath>

#include "model/hf_reading.h"
#include "model/hf_sizes.h"

namespace onefold::hf {
namespace {

// Gemma's: weights of norms are stored less one, and what is looked up is lengthened.
ModelSpec read_gemma_family(JsonObject& in, std::string_view activation_key,
                            float default_theta = 10000.0f) {
  ModelSpec spec = read_llama_family(in, HfFamily::gemma, true, default_theta);
  if (spec.head_dim == 0) spec.head_dim = 256;  // the class's default, not hidden / heads
  spec.norm = Norm::rmsnorm1p;
  spec.activation = activation(in, activation_key, "gelu_pytorch_tanh");
  spec.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(spec.hidden_size)));
  spec.qkv_bias = spec.attention_out_bias = in.get<bool>("attention_bias", false);
  refuse_if(in, "use_bidirectional_attention",
            optional<bool>(in, "use_bidirectional_attention", false), "attention is causal");
  return spec;
}

void read_caps_and_scale(JsonObject& in, ModelSpec& spec, float default_scores,
                         float default_logits) {
  const auto cap = [&](std::string_view key, float missing) {
    const float given = optional<float>(in, key, 0);
    refuse_if(in, key, in.has(key) && !(given > 0), "must be greater than 0, or null for none");
    return in.value().contains(key) ? given : missing;
  };
  spec.attention_soft_cap = cap("attn_logit_softcapping", default_scores);
  spec.logits_soft_cap = cap("final_logit_softcapping", default_logits);
  const double scalar = in.get<double>("query_pre_attn_scalar", 256);
  refuse_if(in, "query_pre_attn_scalar", !(scalar > 0), "must be greater than 0");
  if (scalar != static_cast<double>(spec.head_dim))
    spec.attention_scale = static_cast<float>(1 / std::sqrt(scalar));
}

ModelSpec read_cohere_family(JsonObject& in) {
  ModelSpec spec = read_sizes(in, HfFamily::cohere, true);
  spec.norm_bias = false;
  spec.parallel = Parallel::one_norm;
  spec.activation = activation(in, "hidden_act", "silu");
  spec.gated = true;
  spec.logits_scale = in.get<float>("logit_scale", 0.0625f);
  spec.qkv_bias = spec.attention_out_bias = in.get<bool>("attention_bias", false);
  refuse_attention_dropout(in);
  return spec;
}

}  // namespace

ModelSpec read_gemma(JsonObject& in) {
  ModelSpec spec = read_gemma_family(in, "hidden_act");
  // The first files said "gelu" and meant its approximation.
  if (spec.activation == Activation::gelu) spec.activation = Activation::gelu_tanh;
  return spec;
}

ModelSpec read_gemma2(JsonObject& in) {
  ModelSpec spec = read_gemma_family(in, "hidden_activation");
  spec.norm_place = NormPlace::both;
  read_caps_and_scale(in, spec, 50, 30);
  read_windows(in, spec, 4096, 2);
  return spec;
}

ModelSpec read_gemma3(JsonObject& in) {
  ModelSpec spec = read_gemma_family(in, "hidden_activation", 1e6f);
  spec.norm_place = NormPlace::both;
  spec.qk_norm = true;
  read_caps_and_scale(in, spec, 0, 0);
  refuse_if(
      in, "attn_logit_softcapping", spec.attention_soft_cap != 0,
      "transformers does not cap the scores of this family, whatever it says; set it to null");
  read_windows(in, spec, 4096, in.get<int64_t>("sliding_window_pattern", 6));
  // Blocks with a window have a base of their own: rope_local_base_freq, or, as transformers 5
  // writes it, an object for each kind of block.
  float local = in.get<float>("rope_local_base_freq", 10000.0f);
  const auto found = in.value().find("rope_parameters");
  if (found != in.value().end() && found->is_object() && found->contains("full_attention")) {
    JsonObject both = in.object("rope_parameters");
    JsonObject full = both.object("full_attention");
    spec.rope_theta = full.get<float>("rope_theta", spec.rope_theta);
    spec.rope_scaling = read_rope_scaling(in, "rope_parameters", full, spec);
    if (found->contains("sliding_attention")) {
      JsonObject sliding = both.object("sliding_attention");
      local = sliding.get<float>("rope_theta", local);
      refuse_if(in, "rope_parameters",
                sliding.get<std::string>("rope_type", "default") != "default",
                "blocks with a window have plain frequencies");
    }
  }
  refuse_if(in, "layer_types", spec.sliding_window == 0, "windows must follow each other evenly");
  spec.local_rope_theta = local;
  return spec;
}

ModelSpec read_olmo2(JsonObject& in) {
  ModelSpec spec = read_llama_family(in, HfFamily::olmo2);
  spec.norm_place = NormPlace::after;
  spec.qk_norm = spec.qk_norm_whole = true;
  spec.qkv_bias = spec.attention_out_bias = in.get<bool>("attention_bias", false);
  return spec;
}

ModelSpec read_granite(JsonObject& in) {
  ModelSpec spec = read_llama_family(in, HfFamily::granite);
  spec.qkv_bias = spec.attention_out_bias = in.get<bool>("attention_bias", false);
  spec.mlp_bias = in.get<bool>("mlp_bias", false);
  spec.embedding_scale = in.get<float>("embedding_multiplier", 1.0f);
  spec.attention_scale = in.get<float>("attention_multiplier", 1.0f);
  refuse_if(in, "attention_multiplier", !(spec.attention_scale > 0), "must be greater than 0");
  spec.residual_scale = in.get<float>("residual_multiplier", 1.0f);
  const double divisor = in.get<double>("logits_scaling", 1.0);
  refuse_if(in, "logits_scaling", !(divisor > 0), "must be greater than 0");
  spec.logits_scale = static_cast<float>(1 / divisor);
  return spec;
}

ModelSpec read_cohere(JsonObject& in) {
  ModelSpec spec = read_cohere_family(in);
  read_rope(in, spec, 500000.0f);
  refuse_if(in, "use_qk_norm", optional<bool>(in, "use_qk_norm", false),
            "norms of queries and keys with weights for each head are not supported");
  return spec;
}

ModelSpec read_cohere2(JsonObject& in) {
  ModelSpec spec = read_cohere_family(in);
  read_rope(in, spec);
  read_windows(in, spec, 4096, in.get<int64_t>("sliding_window_pattern", 4));
  // Blocks without a window have no positions.
  refuse_if(in, "layer_types", spec.sliding_window == 0, "windows must follow each other evenly");
  spec.no_rope_every = spec.full_attention_every;
  return spec;
}

ModelSpec read_gpt_neox(JsonObject& in) {
  ModelSpec spec = read_sizes(in, HfFamily::gpt_neox, false);
  spec.activation = plain_activation(in, "hidden_act", "gelu");
  spec.parallel = in.get<bool>("use_parallel_residual", true) ? Parallel::two_norms : Parallel::no;
  spec.qkv_bias = spec.attention_out_bias = in.get<bool>("attention_bias", true);
  spec.mlp_bias = true;
  read_dropout(in, spec, "hidden_dropout", 0.0f, {"attention_dropout"});
  // Its own names, where there are no rope_parameters.
  read_rope(in, spec, in.get<float>("rotary_emb_base", 10000.0f),
            in.get<double>("rotary_pct", 0.25));
  return spec;
}

ModelSpec read_gptj(JsonObject& in) {
  ModelSpec spec = read_sizes(in, HfFamily::gptj, false);
  spec.activation = plain_activation(in, "activation_function", "gelu_new");
  spec.parallel = Parallel::one_norm;
  spec.positions = Positions::rope;
  spec.rotary_dim = in.value().contains("rotary_dim") ? optional<int64_t>(in, "rotary_dim", 0) : 64;
  spec.mlp_bias = true;
  refuse_if(in, "tie_word_embeddings", spec.tie_embeddings, "its head has a bias of its own");
  spec.head_bias = true;
  read_dropout(in, spec, "resid_pdrop", 0.0f, {"embd_pdrop", "attn_pdrop"});
  return spec;
}

ModelSpec read_opt(JsonObject& in) {
  ModelSpec spec = read_sizes(in, HfFamily::opt, true);
  spec.position_offset = 2;
  spec.activation = plain_activation(in, "activation_function", "relu");
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = in.get<bool>("enable_bias", true);
  spec.init_std = in.get<float>("init_std", 0.02f);
  // Its dropout, which all files of the family have, leaves attention and embedding out: one rate
  // is used everywhere here, and a run says which.
  (void)in.get<double>("dropout", 0.1);
  refuse_if(in, "do_layer_norm_before", !in.get<bool>("do_layer_norm_before", true),
            "norms that come after a branch and the residual are not supported");
  refuse_if(in, "_remove_final_layer_norm", in.get<bool>("_remove_final_layer_norm", false),
            "the last norm is always there");
  refuse_if(in, "layer_norm_elementwise_affine",
            !in.get<bool>("layer_norm_elementwise_affine", true), "norms have weights");
  refuse_if(in, "word_embed_proj_dim",
            optional<int64_t>(in, "word_embed_proj_dim", spec.hidden_size) != spec.hidden_size,
            "the table must be as wide as the model");
  return spec;
}

ModelSpec read_falcon(JsonObject& in) {
  ModelSpec spec = read_sizes(in, HfFamily::falcon, true);
  spec.activation = plain_activation(in, "activation", "gelu");
  const bool is_new = optional<bool>(in, "new_decoder_architecture", false),
             parallel = optional<bool>(in, "parallel_attn", true);
  if (is_new)
    spec.num_kv_heads = optional<int64_t>(in, "num_kv_heads", spec.num_heads);
  else
    spec.num_kv_heads = optional<bool>(in, "multi_query", true) ? 1 : spec.num_heads;
  const int64_t norms = optional<int64_t>(in, "num_ln_in_parallel_attn", is_new ? 2 : 1);
  refuse_if(in, "parallel_attn", is_new && !parallel, "not in the new architecture");
  refuse_if(in, "num_ln_in_parallel_attn", norms != 1 && !(is_new && norms == 2),
            "1, or 2 in the new architecture, are supported");
  if (parallel) spec.parallel = norms == 2 ? Parallel::two_norms : Parallel::one_norm;
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = optional<bool>(in, "bias", false);
  for (const std::string_view key : {"hidden_dropout", "attention_dropout"})
    refuse_if(in, key, optional<float>(in, key, 0.0f) != 0, "set it to 0");
  if (optional<bool>(in, "alibi", false)) {
    // Its bias is scaled with the scores.
    refuse_if(in, "num_attention_heads", spec.num_heads < 1, "there must be heads");
    spec.positions = Positions::alibi;
    const auto head_dim = static_cast<double>(spec.hidden_size / spec.num_heads);
    spec.alibi_scale = static_cast<float>(1 / std::sqrt(head_dim));
  } else {
    read_rope(in, spec);
  }
  return spec;
}

ModelSpec read_bloom(JsonObject& in) {
  // Files have the older names of two sizes, transformers writes the newer ones.
  SizeKeys keys = size_keys(HfFamily::bloom);
  if (in.has("n_embed")) keys.hidden = "n_embed";
  ModelSpec spec = read_sizes(in, keys, true);
  spec.positions = Positions::alibi;
  spec.embedding_norm = true;
  spec.activation = Activation::gelu_tanh;
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = true;
  for (const std::string_view key : {"hidden_dropout", "attention_dropout"})
    refuse_if(in, key, in.get<float>(key, 0.0f) != 0, "set it to 0");
  refuse_if(in, "apply_residual_connection_post_layernorm",
            in.get<bool>("apply_residual_connection_post_layernorm", false),
            "what a branch is added to is never normalised");
  return spec;
}

ModelSpec read_mpt(JsonObject& in) {
  ModelSpec spec = read_sizes(in, HfFamily::mpt, true);
  spec.positions = Positions::alibi;
  spec.norm_bias = false;
  spec.activation = Activation::gelu;
  for (const std::string_view key : {"resid_pdrop", "emb_pdrop"})
    refuse_if(in, key, in.get<float>(key, 0.0f) != 0, "set it to 0");
  refuse_if(in, "expansion_ratio", in.get<int64_t>("expansion_ratio", 4) != 4,
            "transformers computes with 4, whatever it says");
  refuse_if(in, "no_bias", !in.get<bool>("no_bias", true), "linear layers have no bias");
  refuse_if(in, "logit_scale",
            in.value().contains("logit_scale") && !in.value()["logit_scale"].is_null(),
            "transformers does not scale logits");
  if (!in.has("attn_config")) return spec;
  JsonObject attention = in.object("attn_config");
  refuse_if(attention, "alibi", !attention.get<bool>("alibi", true), "it has no other positions");
  refuse_if(attention, "alibi_bias_max", attention.get<double>("alibi_bias_max", 8) != 8,
            "slopes end at 2^-8");
  refuse_if(attention, "clip_qkv", optional<double>(attention, "clip_qkv", 0) != 0,
            "queries, keys and values are not clipped");
  refuse_if(attention, "attn_pdrop", attention.get<double>("attn_pdrop", 0) != 0, "set it to 0");
  for (const std::string_view key : {"qk_ln", "prefix_lm"})
    refuse_if(attention, key, attention.get<bool>(key, false), "not supported");
  refuse_if(attention, "attn_type",
            attention.get<std::string>("attn_type", "multihead_attention") != "multihead_attention",
            "not supported");
  spec.attention_scale = optional<float>(attention, "softmax_scale", 0);
  return spec;
}

}  // namespace onefold::hf
