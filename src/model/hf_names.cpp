#include "model/hf_names.h"

#include <array>

#include "base/error.h"

namespace onefold {
namespace {

struct Rename {
  std::string_view ours, theirs;
};

constexpr std::array<Rename, 17> kGpt2 = {{
    {"embedding.tokens", "transformer.wte.weight"},
    {"embedding.positions", "transformer.wpe.weight"},
    {"attention_norm.weight", "ln_1.weight"},
    {"attention_norm.bias", "ln_1.bias"},
    {"attention.qkv.weight", "attn.c_attn.weight"},
    {"attention.qkv.bias", "attn.c_attn.bias"},
    {"attention.out.weight", "attn.c_proj.weight"},
    {"attention.out.bias", "attn.c_proj.bias"},
    {"mlp_norm.weight", "ln_2.weight"},
    {"mlp_norm.bias", "ln_2.bias"},
    {"mlp.up.weight", "mlp.c_fc.weight"},
    {"mlp.up.bias", "mlp.c_fc.bias"},
    {"mlp.down.weight", "mlp.c_proj.weight"},
    {"mlp.down.bias", "mlp.c_proj.bias"},
    {"head.norm.weight", "transformer.ln_f.weight"},
    {"head.norm.bias", "transformer.ln_f.bias"},
    {"head.weight", "lm_head.weight"},
}};

// What StarCoder 2 and Phi-3 have under other names than kLlama, or beside them.
constexpr std::array<Rename, 7> kStarcoder2 = {{
    {"attention_norm.bias", "input_layernorm.bias"},
    {"mlp_norm.bias", "post_attention_layernorm.bias"},
    {"mlp.up.weight", "mlp.c_fc.weight"},
    {"mlp.up.bias", "mlp.c_fc.bias"},
    {"mlp.down.weight", "mlp.c_proj.weight"},
    {"mlp.down.bias", "mlp.c_proj.bias"},
    {"head.norm.bias", "model.norm.bias"},
}};
constexpr std::array<Rename, 2> kPhi3 = {{
    {"attention.qkv.weight", "self_attn.qkv_proj.weight"},
    {"mlp.up.weight", "mlp.gate_up_proj.weight"},
}};

constexpr std::array<Rename, 3> kGemma2 = {{
    {"attention_post_norm.weight", "post_attention_layernorm.weight"},
    {"mlp_norm.weight", "pre_feedforward_layernorm.weight"},
    {"mlp_post_norm.weight", "post_feedforward_layernorm.weight"},
}};
constexpr std::array<Rename, 16> kNeox = {{
    {"embedding.tokens", "gpt_neox.embed_in.weight"},
    {"attention_norm.weight", "input_layernorm.weight"},
    {"attention_norm.bias", "input_layernorm.bias"},
    {"attention.qkv.weight", "attention.query_key_value.weight"},
    {"attention.qkv.bias", "attention.query_key_value.bias"},
    {"attention.out.weight", "attention.dense.weight"},
    {"attention.out.bias", "attention.dense.bias"},
    {"mlp_norm.weight", "post_attention_layernorm.weight"},
    {"mlp_norm.bias", "post_attention_layernorm.bias"},
    {"mlp.up.weight", "mlp.dense_h_to_4h.weight"},
    {"mlp.up.bias", "mlp.dense_h_to_4h.bias"},
    {"mlp.down.weight", "mlp.dense_4h_to_h.weight"},
    {"mlp.down.bias", "mlp.dense_4h_to_h.bias"},
    {"head.norm.weight", "gpt_neox.final_layer_norm.weight"},
    {"head.norm.bias", "gpt_neox.final_layer_norm.bias"},
    {"head.weight", "embed_out.weight"},
}};
// With kNeox. BLOOM has them too, and the first two as well.
constexpr std::array<Rename, 10> kFalcon = {{
    {"embedding.norm.weight", "transformer.word_embeddings_layernorm.weight"},
    {"embedding.norm.bias", "transformer.word_embeddings_layernorm.bias"},
    {"embedding.tokens", "transformer.word_embeddings.weight"},
    {"attention.qkv.weight", "self_attention.query_key_value.weight"},
    {"attention.qkv.bias", "self_attention.query_key_value.bias"},
    {"attention.out.weight", "self_attention.dense.weight"},
    {"attention.out.bias", "self_attention.dense.bias"},
    {"head.norm.weight", "transformer.ln_f.weight"},
    {"head.norm.bias", "transformer.ln_f.bias"},
    {"head.weight", "lm_head.weight"},
}};
constexpr std::array<Rename, 4> kFalconTwoNorms = {{
    {"attention_norm.weight", "ln_attn.weight"},
    {"attention_norm.bias", "ln_attn.bias"},
    {"mlp_norm.weight", "ln_mlp.weight"},
    {"mlp_norm.bias", "ln_mlp.bias"},
}};
constexpr std::array<Rename, 12> kGptj = {{
    {"embedding.tokens", "transformer.wte.weight"},
    {"attention_norm.weight", "ln_1.weight"},
    {"attention_norm.bias", "ln_1.bias"},
    {"attention.out.weight", "attn.out_proj.weight"},
    {"mlp.up.weight", "mlp.fc_in.weight"},
    {"mlp.up.bias", "mlp.fc_in.bias"},
    {"mlp.down.weight", "mlp.fc_out.weight"},
    {"mlp.down.bias", "mlp.fc_out.bias"},
    {"head.norm.weight", "transformer.ln_f.weight"},
    {"head.norm.bias", "transformer.ln_f.bias"},
    {"head.weight", "lm_head.weight"},
    {"head.bias", "lm_head.bias"},
}};
constexpr std::array<Rename, 9> kMpt = {{
    {"embedding.tokens", "transformer.wte.weight"},
    {"attention_norm.weight", "norm_1.weight"},
    {"attention.qkv.weight", "attn.Wqkv.weight"},
    {"attention.out.weight", "attn.out_proj.weight"},
    {"mlp_norm.weight", "norm_2.weight"},
    {"mlp.up.weight", "ffn.up_proj.weight"},
    {"mlp.down.weight", "ffn.down_proj.weight"},
    {"head.norm.weight", "transformer.norm_f.weight"},
    {"head.weight", "lm_head.weight"},
}};
constexpr std::array<Rename, 15> kOpt = {{
    {"embedding.tokens", "model.decoder.embed_tokens.weight"},
    {"embedding.positions", "model.decoder.embed_positions.weight"},
    {"attention_norm.weight", "self_attn_layer_norm.weight"},
    {"attention_norm.bias", "self_attn_layer_norm.bias"},
    {"attention.out.weight", "self_attn.out_proj.weight"},
    {"attention.out.bias", "self_attn.out_proj.bias"},
    {"mlp_norm.weight", "final_layer_norm.weight"},
    {"mlp_norm.bias", "final_layer_norm.bias"},
    {"mlp.up.weight", "fc1.weight"},
    {"mlp.up.bias", "fc1.bias"},
    {"mlp.down.weight", "fc2.weight"},
    {"mlp.down.bias", "fc2.bias"},
    {"head.norm.weight", "model.decoder.final_layer_norm.weight"},
    {"head.norm.bias", "model.decoder.final_layer_norm.bias"},
    {"head.weight", "lm_head.weight"},
}};

// Fused parameters, which are several tensors, are apart: see fused().
constexpr std::array<Rename, 13> kLlama = {{
    {"embedding.tokens", "model.embed_tokens.weight"},
    {"attention_norm.weight", "input_layernorm.weight"},
    {"attention.q_norm.weight", "self_attn.q_norm.weight"},
    {"attention.k_norm.weight", "self_attn.k_norm.weight"},
    {"attention.out.weight", "self_attn.o_proj.weight"},
    {"attention.out.bias", "self_attn.o_proj.bias"},
    {"mlp_norm.weight", "post_attention_layernorm.weight"},
    {"attention_post_norm.weight", "post_attention_layernorm.weight"},  // OLMo 2, whose norms are
    {"mlp_post_norm.weight", "post_feedforward_layernorm.weight"},      // all after
    {"mlp.down.weight", "mlp.down_proj.weight"},
    {"mlp.down.bias", "mlp.down_proj.bias"},
    {"head.norm.weight", "model.norm.weight"},
    {"head.weight", "lm_head.weight"},
}};

// What families with experts have beside them.
constexpr std::array<Rename, 3> kExperts = {{
    {"mlp.router.weight", "mlp.gate.weight"},
    {"mlp.shared.down.weight", "mlp.shared_expert.down_proj.weight"},
    {"mlp.shared_gate.weight", "mlp.shared_expert_gate.weight"},
}};
constexpr std::array<Rename, 1> kMixtral = {{
    {"mlp.router.weight", "block_sparse_moe.gate.weight"},
}};

// "block.3.mlp.up.weight" is "mlp.up.weight" of layer 3; what is in no block has layer "".
struct Local {
  std::string layer, name;
};

Local local_name(const std::string& name) {
  constexpr std::string_view kBlock = "block.";
  if (!name.starts_with(kBlock)) return {"", name};
  const size_t dot = name.find('.', kBlock.size());
  return {name.substr(kBlock.size(), dot - kBlock.size()), name.substr(dot + 1)};
}

std::string found(std::span<const Rename> table, const std::string& ours) {
  for (const Rename& entry : table)
    if (entry.ours == ours) return std::string(entry.theirs);
  return "";
}

std::string renamed(std::span<const Rename> table, const std::string& ours) {
  const std::string theirs = found(table, ours);
  require(!theirs.empty(), "no Hugging Face name for {}", ours);
  return theirs;
}

std::string renamed(const ModelSpec& spec, HfFamily family, const std::string& ours) {
  std::string own;
  switch (family) {
    case HfFamily::gpt2:
      return renamed(kGpt2, ours);
    case HfFamily::starcoder2:
      own = found(kStarcoder2, ours);
      break;
    case HfFamily::phi3:
      own = found(kPhi3, ours);
      break;
    case HfFamily::gemma2:
    case HfFamily::gemma3:
      own = found(kGemma2, ours);
      break;
    case HfFamily::gpt_neox:
      return renamed(kNeox, ours);
    case HfFamily::mpt:
      return renamed(kMpt, ours);
    case HfFamily::bloom:
    case HfFamily::falcon:
      if (spec.parallel == Parallel::two_norms) own = found(kFalconTwoNorms, ours);
      if (own.empty()) own = found(kFalcon, ours);
      return own.empty() ? renamed(kNeox, ours) : own;
    case HfFamily::gptj:
      return renamed(kGptj, ours);
    case HfFamily::opt:
      return renamed(kOpt, ours);
    case HfFamily::mixtral:
      own = found(kMixtral, ours);
      break;
    default:
      break;
  }
  if (own.empty()) own = found(kExperts, ours);
  return own.empty() ? renamed(kLlama, ours) : own;
}

// Rows of queries, keys and values that lie together in groups: those of the query heads that share
// a key head, then of that key head and of its values.
std::vector<int64_t> grouped_order(const ModelSpec& spec) {
  const int64_t dim = spec.head_dim, each = spec.num_heads / spec.num_kv_heads;
  std::vector<int64_t> order;
  const auto add_heads = [&](int64_t heads, int64_t in_group, int64_t first) {
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t i = 0; i < dim; ++i)
        order.push_back(((head / in_group) * (each + 2) + first + head % in_group) * dim + i);
  };
  add_heads(spec.num_heads, each, 0);
  add_heads(spec.num_kv_heads, 1, each);
  add_heads(spec.num_kv_heads, 1, each + 1);
  return order;
}

// Experts lie below each other, the gate of each above what it multiplies.
std::vector<HfPart> fused_experts(const ModelSpec& spec, HfFamily family, bool up) {
  const bool mixtral = family == HfFamily::mixtral;
  const int64_t inner = spec.experts.intermediate_size;
  std::vector<HfPart> tensors;
  for (int64_t e = 0; e < spec.experts.count; ++e) {
    const std::string prefix =
        fmt::format("{}.experts.{}.", mixtral ? "block_sparse_moe" : "mlp", e);
    const auto add = [&](const char* of_mixtral, const char* name, int64_t rows) {
      tensors.push_back({prefix + (mixtral ? of_mixtral : name) + ".weight", rows});
    };
    if (up) {
      add("w1", "gate_proj", inner);
      add("w3", "up_proj", inner);
    } else {
      add("w2", "down_proj", spec.hidden_size);
    }
  }
  return tensors;
}

// The tensors that a fused parameter is made of, by rows; none if it is not fused.
std::vector<HfPart> fused(const ModelSpec& spec, HfFamily family, const std::string& ours) {
  if (family == HfFamily::gpt2 || family == HfFamily::phi3 || family == HfFamily::mpt) return {};
  const std::string kind = ours.substr(ours.rfind('.'));  // ".weight" or ".bias"
  if (ours.starts_with("attention.qkv.")) {
    if (family == HfFamily::gpt_neox || family == HfFamily::falcon || family == HfFamily::bloom)
      return {{renamed(spec, family, ours), spec.qkv_size(), grouped_order(spec)}};
    const std::string part = family == HfFamily::gptj ? "attn." : "self_attn.";
    std::vector<HfPart> parts = {{part + "q_proj" + kind, spec.query_size()},
                                 {part + "k_proj" + kind, spec.kv_size()},
                                 {part + "v_proj" + kind, spec.kv_size()}};
    if (family == HfFamily::gptj || family == HfFamily::cohere || family == HfFamily::cohere2) {
      parts[0].order = paired_order(spec, spec.num_heads);
      parts[1].order = paired_order(spec, spec.num_kv_heads);
    }
    return parts;
  }
  if (ours.starts_with("mlp.experts."))
    return fused_experts(spec, family, ours.starts_with("mlp.experts.up."));
  if (ours.starts_with("mlp.shared.up."))
    return {{"mlp.shared_expert.gate_proj" + kind, spec.experts.shared_intermediate_size},
            {"mlp.shared_expert.up_proj" + kind, spec.experts.shared_intermediate_size}};
  if (ours.starts_with("mlp.up.") && spec.gated)
    return {{"mlp.gate_proj" + kind, spec.intermediate_size},
            {"mlp.up_proj" + kind, spec.intermediate_size}};
  return {};
}

// Norms and biases have one dimension. Not by rows: a table of one token has two.
bool is_vector(const ParamSpec& param) { return !param.decay; }

HfParameter gpt2_parameter(const ParamSpec& param) {
  const auto [layer, ours] = local_name(param.name);
  HfTensor tensor;
  tensor.name = renamed(kGpt2, ours);
  if (!layer.empty())
    tensor.name = fmt::format("{}.{}.{}", hf_layers(HfFamily::gpt2), layer, tensor.name);
  // The linear layers of a block are Conv1D; tables and the head are not.
  tensor.transposed = !layer.empty() && !is_vector(param);
  if (is_vector(param))
    tensor.shape = {param.cols};
  else if (tensor.transposed)
    tensor.shape = {param.cols, param.rows};
  else
    tensor.shape = {param.rows, param.cols};
  return {param, {tensor}};
}

HfParameter llama_parameter(const ModelSpec& spec, HfFamily family, const ParamSpec& param) {
  const auto [layer, ours] = local_name(param.name);
  const bool vector = is_vector(param);
  std::vector<HfPart> parts = hf_block_parts(spec, family, ours, vector ? param.cols : param.rows);
  HfParameter result{param, {}};
  int64_t first = 0;
  for (HfPart& part : parts) {
    HfTensor tensor;
    tensor.name =
        layer.empty() ? part.name : fmt::format("{}.{}.{}", hf_layers(family), layer, part.name);
    tensor.first = first;
    tensor.order = std::move(part.order);
    if (vector)
      tensor.shape = {part.rows};
    else
      tensor.shape = {part.rows, param.cols};
    first += tensor.elems();
    result.tensors.push_back(std::move(tensor));
  }
  require(first == param.elems(), "{} of {} elements of {}", first, param.elems(), param.name);
  return result;
}

}  // namespace

std::string_view hf_layers(HfFamily family) {
  switch (family) {
    case HfFamily::gpt_neox:
      return "gpt_neox.layers";
    case HfFamily::gpt2:
    case HfFamily::gptj:
    case HfFamily::falcon:
    case HfFamily::bloom:
      return "transformer.h";
    case HfFamily::mpt:
      return "transformer.blocks";
    case HfFamily::opt:
      return "model.decoder.layers";
    default:
      return "model.layers";
  }
}

std::vector<HfPart> hf_block_parts(const ModelSpec& spec, HfFamily family, const std::string& ours,
                                   int64_t rows) {
  std::vector<HfPart> parts = fused(spec, family, ours);
  if (parts.empty()) parts = {{renamed(spec, family, ours), rows}};
  return parts;
}

std::vector<int64_t> paired_order(const ModelSpec& spec, int64_t heads) {
  const int64_t half = spec.rotary_size() / 2;
  std::vector<int64_t> order;
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t i = 0; i < spec.head_dim; ++i) {
      const int64_t at = i >= 2 * half ? i : i < half ? 2 * i : 2 * (i - half) + 1;
      order.push_back(head * spec.head_dim + at);
    }
  return order;
}

std::vector<HfParameter> hf_parameters(const ModelSpec& spec, HfFamily family) {
  const std::string obstacle = hf_obstacle(spec, family);
  require(obstacle.empty(), "{} for {}", obstacle, hf_model_type(family));
  std::vector<HfParameter> all;
  for (const ParamSpec& param : parameters_of(spec))
    all.push_back(family == HfFamily::gpt2 ? gpt2_parameter(param)
                                           : llama_parameter(spec, family, param));
  return all;
}

std::string_view hf_prefix(HfFamily family) {
  if (family == HfFamily::gpt_neox) return "gpt_neox.";
  const bool as_gpt2 = family == HfFamily::gpt2 || family == HfFamily::gptj ||
                       family == HfFamily::falcon || family == HfFamily::bloom ||
                       family == HfFamily::mpt;
  return as_gpt2 ? "transformer." : "model.";
}

bool is_hf_buffer(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".attention.bias") || name.ends_with(".attention.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace onefold
