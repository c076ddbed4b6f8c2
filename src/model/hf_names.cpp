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

// Fused parameters, which are several tensors, are apart: see fused().
constexpr std::array<Rename, 11> kLlama = {{
    {"embedding.tokens", "model.embed_tokens.weight"},
    {"attention_norm.weight", "input_layernorm.weight"},
    {"attention.q_norm.weight", "self_attn.q_norm.weight"},
    {"attention.k_norm.weight", "self_attn.k_norm.weight"},
    {"attention.out.weight", "self_attn.o_proj.weight"},
    {"attention.out.bias", "self_attn.o_proj.bias"},
    {"mlp_norm.weight", "post_attention_layernorm.weight"},
    {"mlp.down.weight", "mlp.down_proj.weight"},
    {"mlp.down.bias", "mlp.down_proj.bias"},
    {"head.norm.weight", "model.norm.weight"},
    {"head.weight", "lm_head.weight"},
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

// Of all families but GPT-2.
std::string renamed(HfFamily family, const std::string& ours) {
  std::string own;
  if (family == HfFamily::starcoder2) own = found(kStarcoder2, ours);
  if (family == HfFamily::phi3) own = found(kPhi3, ours);
  return own.empty() ? renamed(kLlama, ours) : own;
}

struct FusedTensor {
  std::string name;
  int64_t rows;
};

// The tensors that a fused parameter is made of, by rows; none if it is not fused.
std::vector<FusedTensor> fused(const ModelSpec& spec, HfFamily family, const std::string& ours) {
  if (family == HfFamily::phi3) return {};
  const std::string kind = ours.substr(ours.rfind('.'));  // ".weight" or ".bias"
  if (ours.starts_with("attention.qkv."))
    return {{"self_attn.q_proj" + kind, spec.query_size()},
            {"self_attn.k_proj" + kind, spec.kv_size()},
            {"self_attn.v_proj" + kind, spec.kv_size()}};
  if (ours.starts_with("mlp.up.") && family != HfFamily::starcoder2)
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
  if (!layer.empty()) tensor.name = fmt::format("transformer.h.{}.{}", layer, tensor.name);
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
  std::vector<FusedTensor> parts = fused(spec, family, ours);
  if (parts.empty()) parts = {{renamed(family, ours), vector ? param.cols : param.rows}};
  HfParameter result{param, {}};
  int64_t first = 0;
  for (const FusedTensor& part : parts) {
    HfTensor tensor;
    tensor.name = layer.empty() ? part.name : fmt::format("model.layers.{}.{}", layer, part.name);
    tensor.first = first;
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
  return family == HfFamily::gpt2 ? "transformer." : "model.";
}

bool is_hf_buffer(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace onefold
