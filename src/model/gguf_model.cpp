#include "model/gguf_model.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "model/gguf_architecture.h"

namespace onefold {
namespace {

constexpr std::array<std::string_view, 1> kPhi3Keys = {"rope.scaling.attn_factor"};
constexpr std::array<std::string_view, 4> kGemmaKeys = {
    "attn_logit_softcapping", "final_logit_softcapping", "rope.freq_base_swa",
    "attention.sliding_window_pattern"};
constexpr std::array<std::string_view, 4> kGraniteKeys = {"logit_scale", "attention.scale",
                                                          "embedding_scale", "residual_scale"};
constexpr std::array<std::string_view, 2> kCohereKeys = {"logit_scale",
                                                         "attention.sliding_window_pattern"};
constexpr std::array<std::string_view, 1> kNeoxKeys = {"use_parallel_residual"};
constexpr std::array<std::string_view, 2> kMptKeys = {"attention.clamp_kqv",
                                                      "attention.max_alibi_bias"};
constexpr std::array<GgufArchitecture, 19> kArchitectures = {{
    {HfFamily::gpt2, "gpt2"},
    {HfFamily::llama, "llama", GgufRows::pairs},
    {HfFamily::mistral, "llama", GgufRows::pairs},
    {HfFamily::qwen2, "qwen2"},
    {HfFamily::qwen3, "qwen3"},
    {HfFamily::phi3, "phi3", GgufRows::theirs, kPhi3Keys},
    {HfFamily::starcoder2, "starcoder2"},
    {HfFamily::gemma, "gemma"},
    {HfFamily::gemma2, "gemma2", GgufRows::theirs, kGemmaKeys},
    {HfFamily::gemma3, "gemma3", GgufRows::theirs, kGemmaKeys},
    {HfFamily::olmo2, "olmo2"},
    {HfFamily::granite, "granite", GgufRows::pairs, kGraniteKeys},
    {HfFamily::cohere, "command-r", GgufRows::theirs, kCohereKeys},
    {HfFamily::cohere2, "cohere2", GgufRows::theirs, kCohereKeys},
    {HfFamily::smollm3, "smollm3", GgufRows::pairs},
    {HfFamily::gpt_neox, "gptneox", GgufRows::ours, kNeoxKeys},
    {HfFamily::falcon, "falcon", GgufRows::ours},
    {HfFamily::bloom, "bloom", GgufRows::ours},
    {HfFamily::mpt, "mpt", GgufRows::theirs, kMptKeys},
}};

struct Name {
  std::string_view hugging_face, gguf;
};
constexpr std::array<Name, 49> kNames = {{
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
    {"transformer.wte", "token_embd"},
    {"transformer.wpe", "position_embd"},
    {"transformer.ln_f", "output_norm"},
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.gate_up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.c_fc", "ffn_up"},
    {"mlp.c_proj", "ffn_down"},
    {"ln_1", "attn_norm"},
    {"ln_2", "ffn_norm"},
    {"attn.c_attn", "attn_qkv"},
    {"attn.c_proj", "attn_output"},
    {"attn.q_norm", "attn_q_norm"},
    {"attn.k_norm", "attn_k_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
    {"gpt_neox.embed_in", "token_embd"},
    {"gpt_neox.final_layer_norm", "output_norm"},
    {"embed_out", "output"},
    {"attention.query_key_value", "attn_qkv"},
    {"attention.dense", "attn_output"},
    {"mlp.dense_h_to_4h", "ffn_up"},
    {"mlp.dense_4h_to_h", "ffn_down"},
    {"transformer.word_embeddings", "token_embd"},
    {"transformer.word_embeddings_layernorm", "token_embd_norm"},
    {"self_attention.query_key_value", "attn_qkv"},
    {"self_attention.dense", "attn_output"},
    {"ln_attn", "attn_norm_2"},
    {"ln_mlp", "attn_norm"},
    {"transformer.norm_f", "output_norm"},
    {"norm_1", "attn_norm"},
    {"norm_2", "ffn_norm"},
    {"attn.Wqkv", "attn_qkv"},
    {"attn.out_proj", "attn_output"},
    {"ffn.up_proj", "ffn_up"},
    {"ffn.down_proj", "ffn_down"},
}};

// "model.layers.3.self_attn.q_proj.weight" is "blk.3.attn_q.weight". `after`: of a model with norms
// after its branches, where one has the name that others have for the norm before the MLP.
std::string gguf_name(std::string_view name, HfFamily family, bool after) {
  std::string block;
  if (const std::string layers = std::string(hf_layers(family)) + "."; name.starts_with(layers)) {
    name.remove_prefix(layers.size());
    const size_t dot = name.find('.');
    block = fmt::format("blk.{}.", name.substr(0, dot));
    name.remove_prefix(dot + 1);
  }
  const size_t kind = name.rfind('.');
  const std::string_view module = name.substr(0, kind);
  const auto found = std::ranges::find(kNames, module, &Name::hugging_face);
  require(found != kNames.end(), "no name of GGUF for {}", name);
  const bool post = after && module == "post_attention_layernorm";
  return fmt::format("{}{}{}", block, post ? "post_attention_norm" : found->gguf,
                     name.substr(kind));
}

// What the files of some families say besides, or llama.cpp knows of them.
void add_said_by_family(const ModelSpec& spec, HfFamily family, ModelSpec& said) {
  const auto say = [&](auto... fields) { ((said.*fields = spec.*fields), ...); };
  using S = ModelSpec;
  switch (family) {
    case HfFamily::phi3:
      return say(&S::rotary_dim);
    case HfFamily::gemma:
      return say(&S::embedding_scale);
    case HfFamily::gemma2:
      say(&S::attention_soft_cap);
      [[fallthrough]];
    case HfFamily::gemma3:
      return say(&S::embedding_scale, &S::norm_place, &S::logits_soft_cap, &S::sliding_window,
                 &S::full_attention_every, &S::local_rope_theta, &S::attention_scale);
    case HfFamily::olmo2:
      return say(&S::norm_place, &S::qk_norm_whole);
    case HfFamily::granite:
      return say(&S::embedding_scale, &S::residual_scale, &S::attention_scale, &S::logits_scale);
    case HfFamily::cohere2:
      say(&S::sliding_window, &S::full_attention_every, &S::no_rope_every);
      [[fallthrough]];
    case HfFamily::cohere:
      return say(&S::parallel, &S::norm_bias, &S::logits_scale);
    case HfFamily::smollm3:
      return say(&S::no_rope_every);
    case HfFamily::gpt_neox:
      return say(&S::parallel, &S::rotary_dim);
    case HfFamily::falcon:
      return say(&S::parallel);
    case HfFamily::bloom:
      return say(&S::embedding_norm);
    case HfFamily::mpt:
      return say(&S::norm_bias);
    default:
      return;
  }
}

// The model as far as a file can say it, or llama.cpp need not know it.
ModelSpec said_by_gguf(const ModelSpec& spec, HfFamily family) {
  ModelSpec said;
  said.vocab_size = spec.vocab_size;
  said.hidden_size = spec.hidden_size;
  said.num_layers = spec.num_layers;
  said.num_heads = spec.num_heads;
  said.num_kv_heads = spec.num_kv_heads;
  said.head_dim = spec.head_dim;
  said.intermediate_size = spec.intermediate_size;
  said.max_sequence_length = spec.max_sequence_length;
  said.norm = spec.norm;
  said.norm_eps = spec.norm_eps;
  said.positions = spec.positions;
  said.rope_theta = spec.rope_theta;
  said.rope_scaling = spec.rope_scaling;
  said.qkv_bias = spec.qkv_bias;
  said.attention_out_bias = spec.attention_out_bias;
  said.mlp_bias = spec.mlp_bias;
  said.qk_norm = spec.qk_norm;
  said.activation = spec.activation;
  said.gated = spec.gated;
  said.tie_embeddings = spec.tie_embeddings;
  said.dropout = spec.dropout;
  said.init_std = spec.init_std;
  add_said_by_family(spec, family, said);
  return said;
}

void exchange_pairs(const ModelSpec& spec, HfTensor& tensor) {
  const size_t dot = tensor.name.find(".attn_");
  if (dot == std::string::npos) return;
  const std::string_view leaf = std::string_view(tensor.name).substr(dot + 1);
  if (leaf.starts_with("attn_q.")) tensor.order = paired_order(spec, spec.num_heads);
  if (leaf.starts_with("attn_k.")) tensor.order = paired_order(spec, spec.num_kv_heads);
}

Activation activation_of(HfFamily family) {
  switch (family) {
    case HfFamily::gpt2:
    case HfFamily::starcoder2:
    case HfFamily::gemma:
    case HfFamily::gemma2:
    case HfFamily::gemma3:
    case HfFamily::bloom:
      return Activation::gelu_tanh;
    case HfFamily::gpt_neox:
    case HfFamily::falcon:
    case HfFamily::mpt:
      return Activation::gelu;  // which llama.cpp approximates too
    default:
      return Activation::silu;
  }
}

// YaRN is computed for every family, but was compared for these; its constants are llama.cpp's.
std::string stretching_obstacle(const RopeScaling& scaling, HfFamily family) {
  using Type = RopeScaling::Type;
  const bool plain = family == HfFamily::llama || family == HfFamily::mistral ||
                     family == HfFamily::qwen2 || family == HfFamily::qwen3;
  if (scaling.type == Type::yarn && !plain)
    return "rope_scaling is yarn, which is written of llama, mistral, qwen2 and qwen3 models alone";
  if (scaling.type == Type::yarn && !(scaling.beta_fast == 32 && scaling.beta_slow == 1))
    return "rope_scaling has other values than 32 for beta_fast and 1 for beta_slow";
  if (scaling.type == Type::yarn && scaling.attention_factor != 0)
    return "rope_scaling has an attention_factor of its own";
  if (scaling.switches() && family != HfFamily::phi3)
    return "rope_scaling is longrope, which is written of phi3 models alone";
  return "";
}

// What of a family llama.cpp takes for granted.
std::string built_in_obstacle(const ModelSpec& spec, HfFamily family) {
  const bool gemma = family == HfFamily::gemma2 || family == HfFamily::gemma3,
             cohere = family == HfFamily::cohere || family == HfFamily::cohere2;
  const bool no_biases = family == HfFamily::gemma || gemma || cohere ||
                         family == HfFamily::olmo2 || family == HfFamily::falcon ||
                         family == HfFamily::smollm3;
  if (no_biases && (spec.qkv_bias || spec.attention_out_bias || spec.mlp_bias))
    return "there are biases";
  const bool own_head = family == HfFamily::olmo2 || family == HfFamily::gpt_neox,
             tied = family == HfFamily::gemma || family == HfFamily::gemma2 || cohere;
  if (own_head && spec.tie_embeddings) return "tie_embeddings is true";
  if (tied && !spec.tie_embeddings) return "tie_embeddings is false";
  if (gemma) {
    const int64_t scalar =
        gguf_query_scalar(family, spec.num_layers, spec.hidden_size, spec.num_heads, spec.head_dim);
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(scalar)));
    const bool is_scale =
        spec.attention_scale == 0 ? scalar == spec.head_dim : spec.attention_scale == scale;
    if (!is_scale) return fmt::format("attention_scale is not 1 / sqrt({})", scalar);
  }
  if ((gemma || family == HfFamily::cohere2) && spec.sliding_window == 0)
    return "there is no sliding_window";
  if (family == HfFamily::gpt_neox && !spec.qkv_bias) return "qkv_bias is false";
  if (family == HfFamily::falcon &&
      (spec.parallel == Parallel::no || !(spec.positions == Positions::rope)))
    return "attention and MLP are not parallel, or positions are not rotary";
  if (family == HfFamily::smollm3 && spec.no_rope_every != 4) return "no_rope_every is not 4";
  return stretching_obstacle(spec.rope_scaling, family);
}

void add_family_values(const ModelSpec& spec, HfFamily family, const std::string& name,
                       GgufHeader& header) {
  const auto number = [&](const char* key, float value) {
    header.add(fmt::format("{}.{}", name, key), value);
  };
  if (const int64_t usual = gguf_window_period(family); usual > 0 && spec.sliding_window > 0) {
    header.add(name + ".attention.sliding_window", static_cast<uint32_t>(spec.sliding_window));
    if (spec.full_attention_every != usual)
      header.add(name + ".attention.sliding_window_pattern",
                 static_cast<uint32_t>(spec.full_attention_every));
  }
  if (spec.attention_soft_cap > 0) number("attn_logit_softcapping", spec.attention_soft_cap);
  if (spec.logits_soft_cap > 0) number("final_logit_softcapping", spec.logits_soft_cap);
  switch (family) {
    case HfFamily::gemma3:
      return number("rope.freq_base_swa", spec.local_rope_theta);
    case HfFamily::granite:
      number("embedding_scale", spec.embedding_scale);
      number("residual_scale", spec.residual_scale);
      if (spec.attention_scale != 0) number("attention.scale", spec.attention_scale);
      return number("logit_scale", 1 / spec.logits_scale);
    case HfFamily::cohere:
    case HfFamily::cohere2:
      return number("logit_scale", spec.logits_scale);
    case HfFamily::gpt_neox:
      return header.add(name + ".use_parallel_residual", spec.parallel != Parallel::no);
    case HfFamily::mpt:
      return number("attention.max_alibi_bias", 8);
    default:
      return;
  }
}

}  // namespace

std::span<const GgufArchitecture> gguf_architectures() { return kArchitectures; }

const GgufArchitecture* gguf_architecture_of(HfFamily family) {
  const auto found = std::ranges::find(kArchitectures, family, &GgufArchitecture::family);
  return found == kArchitectures.end() ? nullptr : &*found;
}

int64_t gguf_window_period(HfFamily family) {
  if (family == HfFamily::gemma2) return 2;
  if (family == HfFamily::gemma3) return 6;
  return family == HfFamily::cohere2 ? 4 : 0;
}

// The largest models of both generations, known by their layers, take the width of a head as if
// heads made up the model.
int64_t gguf_query_scalar(HfFamily family, int64_t layers, int64_t hidden, int64_t heads,
                          int64_t head_dim) {
  const bool largest = layers == (family == HfFamily::gemma2 ? 46 : 62);
  return largest ? hidden / heads : head_dim;
}

std::string gguf_obstacle(const ModelSpec& spec, HfFamily family) {
  if (!gguf_architecture_of(family))
    return fmt::format("files of {} models are not written", hf_model_type(family));
  if (const Activation needed = activation_of(family); spec.activation != needed)
    return fmt::format("llama.cpp computes its {} models with {}", hf_model_type(family),
                       needed == Activation::silu   ? "silu"
                       : needed == Activation::gelu ? "gelu"
                                                    : "gelu_tanh");
  if (spec.rope_scaling.type == RopeScaling::Type::llama3 && family != HfFamily::llama &&
      family != HfFamily::mistral)
    return "rope_scaling is llama3, which llama.cpp has for llama models alone";
  if (spec.qkv_bias && spec.query_size() != spec.hidden_size)
    return "llama.cpp has no bias for heads that are not hidden_size / num_heads";
  if (family == HfFamily::qwen3 && spec.qkv_bias) return "qkv_bias is true";
  if (family == HfFamily::starcoder2 && !spec.qkv_bias) return "qkv_bias is false";
  if (const std::string why = built_in_obstacle(spec, family); !why.empty()) return why;
  const Json all = spec.to_json(), said = said_by_gguf(spec, family).to_json();
  for (const auto& [key, value] : all.items())
    if (!said.contains(key) || said[key] != value)
      return fmt::format("{} is {}, which a file does not say", key, brief_json(value));
  return "";
}

std::vector<HfParameter> gguf_parameters(const ModelSpec& spec, HfFamily family) {
  const GgufArchitecture* const architecture = gguf_architecture_of(family);
  require(architecture != nullptr, "no GGUF of family {}", static_cast<int>(family));
  std::vector<HfParameter> parameters = hf_parameters(spec, family);
  for (HfParameter& parameter : parameters)
    for (HfTensor& tensor : parameter.tensors) {
      tensor.name = gguf_name(tensor.name, family, spec.norm_after());
      if (tensor.transposed) std::swap(tensor.shape[0], tensor.shape[1]);
      tensor.transposed = false;  // as llama.cpp keeps all matrices
      if (architecture->rows == GgufRows::pairs) exchange_pairs(spec, tensor);
      if (architecture->rows == GgufRows::ours) tensor.order.clear();
      // Whose weights are stored less one here, and as they are there.
      if (spec.norm == Norm::rmsnorm1p && tensor.name.ends_with("norm.weight")) tensor.more = 1;
    }
  return parameters;
}

void add_gguf_model(const ModelSpec& spec, HfFamily family, GgufHeader& header) {
  const std::string name(gguf_architecture_of(family)->name);
  const auto count = [&](const char* key, int64_t value) {
    header.add(fmt::format("{}.{}", name, key), static_cast<uint32_t>(value));
  };
  const auto number = [&](const char* key, float value) {
    header.add(fmt::format("{}.{}", name, key), value);
  };
  header.add("general.architecture", name);
  count("vocab_size", spec.vocab_size);
  count("context_length", spec.max_sequence_length);
  count("embedding_length", spec.hidden_size);
  count("block_count", spec.num_layers);
  count("feed_forward_length", spec.intermediate_size);
  count("attention.head_count", spec.num_heads);
  count("attention.head_count_kv", spec.num_kv_heads);
  number(spec.norm == Norm::layernorm ? "attention.layer_norm_epsilon"
                                      : "attention.layer_norm_rms_epsilon",
         spec.norm_eps);
  add_family_values(spec, family, name, header);
  if (spec.positions != Positions::rope) return;
  count("attention.key_length", spec.head_dim);
  count("attention.value_length", spec.head_dim);
  count("rope.dimension_count", spec.rotary_size());
  number("rope.freq_base", spec.rope_theta);
  if (spec.rope_scaling.type == RopeScaling::Type::llama3)
    count("rope.scaling.original_context_length", spec.rope_scaling.original_max_sequence_length);
  if (spec.rope_scaling.switches()) {
    header.add(name + ".rope.scaling.type", "longrope");
    count("rope.scaling.original_context_length", spec.rope_scaling.original_max_sequence_length);
    number("rope.scaling.attn_factor", static_cast<float>(spec.rope_scaling.length()));
  }
  const bool yarn = spec.rope_scaling.type == RopeScaling::Type::yarn;
  if (!yarn && spec.rope_scaling.type != RopeScaling::Type::linear) return;
  header.add(name + ".rope.scaling.type", yarn ? "yarn" : "linear");
  number("rope.scaling.factor", spec.rope_scaling.factor);
  if (yarn)
    count("rope.scaling.original_context_length", spec.rope_scaling.original_max_sequence_length);
}

double gguf_stretching(const RopeScaling& scaling, int64_t pair, int64_t head, double theta) {
  return RopeScaling().frequency(pair, head, theta) / scaling.frequency(pair, head, theta);
}

std::vector<GgufFactors> gguf_rope_factors(const ModelSpec& spec) {
  if (spec.positions != Positions::rope) return {};
  const RopeScaling& scaling = spec.rope_scaling;
  const auto floats = [](const std::vector<double>& factors) {
    return std::vector<float>(factors.begin(), factors.end());
  };
  if (scaling.switches())
    return {{kGgufLongFactors, floats(scaling.long_factor)},
            {kGgufShortFactors, floats(scaling.short_factor)}};
  if (scaling.type != RopeScaling::Type::llama3) return {};
  GgufFactors factors{kGgufRopeFactors, {}};
  for (int64_t pair = 0; pair < spec.head_dim / 2; ++pair)
    factors.values.push_back(
        static_cast<float>(gguf_stretching(scaling, pair, spec.head_dim, double{spec.rope_theta})));
  return {factors};
}

}  // namespace onefold
