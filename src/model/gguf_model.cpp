#include "model/gguf_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/text.h"

namespace onefold {
namespace {

struct Architecture {
  HfFamily family;
  std::string_view name;
  // llama.cpp turns neighbouring rows of a head by one angle where Hugging Face turns those half a
  // head apart: the rows of queries and keys change places.
  bool pairs = false;
};
// The first of a name is what a file of it becomes.
constexpr std::array<Architecture, 7> kArchitectures = {{
    {HfFamily::gpt2, "gpt2"},
    {HfFamily::llama, "llama", true},
    {HfFamily::mistral, "llama", true},
    {HfFamily::qwen2, "qwen2"},
    {HfFamily::qwen3, "qwen3"},
    {HfFamily::phi3, "phi3"},
    {HfFamily::starcoder2, "starcoder2"},
}};

const Architecture* architecture_of(HfFamily family) {
  const auto found = std::ranges::find(kArchitectures, family, &Architecture::family);
  return found == kArchitectures.end() ? nullptr : &*found;
}

struct Name {
  std::string_view hugging_face, gguf;
};
constexpr std::array<Name, 27> kNames = {{
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
}};

// "model.layers.3.self_attn.q_proj.weight" is "blk.3.attn_q.weight".
std::string gguf_name(std::string_view name) {
  std::string block;
  for (const std::string_view layers : {"model.layers.", "transformer.h."}) {
    if (!name.starts_with(layers)) continue;
    name.remove_prefix(layers.size());
    const size_t dot = name.find('.');
    block = fmt::format("blk.{}.", name.substr(0, dot));
    name.remove_prefix(dot + 1);
  }
  const size_t kind = name.rfind('.');
  const auto found = std::ranges::find(kNames, name.substr(0, kind), &Name::hugging_face);
  require(found != kNames.end(), "no name of GGUF for {}", name);
  return fmt::format("{}{}{}", block, found->gguf, name.substr(kind));
}

// The values of one architecture: every one is read, or known to change nothing, or refused.
class Values {
 public:
  Values(const GgufFile& file, std::string architecture)
      : file_(file), prefix_(std::move(architecture) + ".") {}

  bool has(const std::string& key) const { return file_.has(prefix_ + key); }
  int64_t integer(const std::string& key) const { return file_.integer(prefix_ + key); }
  int64_t integer(const std::string& key, int64_t otherwise) const {
    return has(key) ? integer(key) : otherwise;
  }
  // F32 in the file: the shortest decimal is what was meant.
  double number(const std::string& key) const {
    return shortest(static_cast<float>(file_.number(prefix_ + key)));
  }
  // One number, or a list of one number for each layer, which must be equal.
  int64_t of_all_layers(const std::string& key) const {
    const Json value = file_.values().value(prefix_ + key, Json());
    if (!value.is_array()) return integer(key);
    for (const Json& one : value)
      if (one != value[0]) refuse(key, "is not the same for all layers");
    if (value.empty() || !value[0].is_number_integer()) refuse(key, "holds no number");
    return value[0].get<int64_t>();
  }
  [[noreturn]] void refuse(const std::string& key, std::string_view why) const {
    user_error("{}: {}{} {}", file_.path(), prefix_, key, why);
  }

  // Values that change the arithmetic must be among those that are read.
  void refuse_unknown() const {
    static constexpr std::array<std::string_view, 25> kKnown = {
        "vocab_size", "context_length", "embedding_length", "block_count", "feed_forward_length",
        "attention.head_count", "attention.head_count_kv", "attention.key_length",
        "attention.value_length", "attention.layer_norm_rms_epsilon",
        "attention.layer_norm_epsilon", "attention.sliding_window", "rope.dimension_count",
        "rope.freq_base", "rope.scaling.type", "rope.scaling.factor",
        "rope.scaling.original_context_length", "rope.scaling.finetuned", "rope.scale_linear",
        "expert_count", "expert_used_count",
        // without effect on a decoder
        "tensor_data_layout", "pooling_type", "attention.causal", "use_parallel_residual"};
    for (const auto& [key, value] : file_.values().items()) {
      if (!key.starts_with(prefix_)) continue;
      const std::string own = key.substr(prefix_.size());
      if (std::ranges::find(kKnown, own) == kKnown.end())
        refuse(own, "is not supported, and leaving it out could be wrong");
    }
    for (const char* key : {"expert_count", "expert_used_count"})
      if (integer(key, 0) != 0) refuse(key, "is not 0, and experts are not supported");
  }

 private:
  const GgufFile& file_;
  const std::string prefix_;
};

// What the frequency of a pair of a head is divided by.
double stretching(const RopeScaling& scaling, int64_t pair, int64_t head, double theta) {
  return RopeScaling().frequency(pair, head, theta) / scaling.frequency(pair, head, theta);
}

// Llama 3.1's and later models' are the only stretched ones that files hold as factors. The file
// does not say how they were made: the largest is the factor, and the rest are the constants of all
// these models, or do not fit.
Json rope_scaling_of(const GgufFile& file, const GgufTensor& tensor, double theta, int64_t head,
                     int64_t original) {
  const std::span<const std::byte> bytes = file.bytes(tensor);
  std::vector<float> factors(static_cast<size_t>(head / 2));
  if (tensor.type->name != "F32" || bytes.size() != factors.size() * sizeof(float))
    user_error("{}: {} is not {} values of F32", file.path(), tensor.name, head / 2);
  std::memcpy(factors.data(), bytes.data(), bytes.size());
  RopeScaling scaling;
  scaling.type = RopeScaling::Type::llama3;
  scaling.factor = *std::ranges::max_element(factors);
  scaling.original_max_sequence_length = original;
  if (scaling.factor == 1) return nullptr;
  for (size_t i = 0; i < factors.size(); ++i) {
    const double factor = stretching(scaling, static_cast<int64_t>(i), head, theta);
    if (!(std::fabs(factor - factors[i]) <= 1e-4 * factor))
      user_error("{}: {} holds factors that are not Llama 3's (pair {}: {}, where {} is expected)",
                 file.path(), tensor.name, i, factors[i], factor);
  }
  return {{"rope_type", "llama3"},
          {"factor", shortest(scaling.factor)},
          {"low_freq_factor", scaling.low_freq_factor},
          {"high_freq_factor", scaling.high_freq_factor},
          {"original_max_position_embeddings", scaling.original_max_sequence_length}};
}

void read_rope(const GgufFile& file, const Values& in, int64_t head, Json& config) {
  const double theta = in.has("rope.freq_base") ? in.number("rope.freq_base") : 10000;
  config["rope_theta"] = theta;
  if (in.integer("rope.dimension_count", head) != head)
    in.refuse("rope.dimension_count", "is not a head's size, and rope turns whole heads only");
  std::string type = "none";
  if (in.has("rope.scaling.factor") || in.has("rope.scale_linear")) type = "linear";
  if (in.has("rope.scaling.type"))
    type = file.text(config["model_type"].get<std::string>() + ".rope.scaling.type");
  if (type == "linear") {
    const char* const key =
        in.has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
    const double factor = in.has(key) ? in.number(key) : 1;
    if (factor != 1 && factor != 0)
      config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", factor}};
  } else if (type != "none") {
    in.refuse("rope.scaling.type", "is not supported; none and linear are");
  }
  if (const GgufTensor* factors = file.tensor(kGgufRopeFactors))
    config["rope_scaling"] = rope_scaling_of(
        file, *factors, theta, head, in.integer("rope.scaling.original_context_length", 8192));
}

void read_llama_family(const GgufFile& file, const Values& in, Json& config) {
  const int64_t heads = in.of_all_layers("attention.head_count");
  config["hidden_size"] = in.integer("embedding_length");
  config["num_hidden_layers"] = in.integer("block_count");
  config["num_attention_heads"] = heads;
  config["num_key_value_heads"] =
      in.has("attention.head_count_kv") ? in.of_all_layers("attention.head_count_kv") : heads;
  config["intermediate_size"] = in.of_all_layers("feed_forward_length");
  config["max_position_embeddings"] = in.integer("context_length");
  const bool starcoder2 = config["model_type"] == "starcoder2";
  if (starcoder2)
    config["norm_epsilon"] = in.number("attention.layer_norm_epsilon");
  else
    config["rms_norm_eps"] = in.number("attention.layer_norm_rms_epsilon");
  if (heads < 1) in.refuse("attention.head_count", "is not positive");
  const int64_t head = in.integer("attention.key_length", in.integer("embedding_length") / heads);
  if (in.integer("attention.value_length", head) != head)
    in.refuse("attention.value_length", "is not that of keys");
  if (head < 1 || head > (1 << 20)) in.refuse("attention.key_length", "is no head's size");
  config["head_dim"] = head;
  config["sliding_window"] = nullptr;
  if (const int64_t window = in.integer("attention.sliding_window", 0); window > 0)
    config["sliding_window"] = window;
  const bool biased = file.tensor("blk.0.attn_q.bias") != nullptr;
  config[starcoder2 ? "use_bias" : "attention_bias"] = biased;
  config["mlp_bias"] = file.tensor("blk.0.ffn_up.bias") != nullptr;
  read_rope(file, in, head, config);
}

void read_gpt2(const Values& in, Json& config) {
  config["n_embd"] = in.integer("embedding_length");
  config["n_layer"] = in.integer("block_count");
  config["n_head"] = in.of_all_layers("attention.head_count");
  config["n_inner"] = in.of_all_layers("feed_forward_length");
  config["n_positions"] = in.integer("context_length");
  config["layer_norm_epsilon"] = in.number("attention.layer_norm_epsilon");
  config["activation_function"] = "gelu_new";
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) config[key] = 0.0;
}

// Ids of the tokens that begin and end texts, as config.json has them.
void read_token_ids(const GgufFile& file, Json& config) {
  for (const auto& [theirs, ours] : {std::pair("tokenizer.ggml.bos_token_id", "bos_token_id"),
                                     std::pair("tokenizer.ggml.eos_token_id", "eos_token_id"),
                                     std::pair("tokenizer.ggml.padding_token_id", "pad_token_id")})
    if (file.has(theirs)) config[ours] = file.integer(theirs);
}

// The model as far as a file can say it, or llama.cpp need not know it.
ModelSpec said_by_gguf(const ModelSpec& spec) {
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
  return said;
}

void exchange_pairs(const ModelSpec& spec, HfTensor& tensor) {
  const size_t dot = tensor.name.find(".attn_");
  if (dot == std::string::npos) return;
  const std::string_view leaf = std::string_view(tensor.name).substr(dot + 1);
  if (leaf.starts_with("attn_q.")) tensor.order = paired_order(spec, spec.num_heads);
  if (leaf.starts_with("attn_k.")) tensor.order = paired_order(spec, spec.num_kv_heads);
}

}  // namespace

Json hf_config_of_gguf(const GgufFile& file) {
  const std::string name = file.text("general.architecture");
  const auto found = std::ranges::find(kArchitectures, name, &Architecture::name);
  if (found == kArchitectures.end()) {
    std::vector<std::string> known;
    for (const Architecture& one : kArchitectures)
      if (known.empty() || known.back() != one.name) known.emplace_back(one.name);
    user_error("{}: general.architecture is \"{}\"; of GGUF files, those of {} are read",
               file.path(), brief_json(Json(name)), join(known, ", "));
  }
  const Values in(file, name);
  in.refuse_unknown();
  const GgufTensor* const table = file.tensor("token_embd.weight");
  if (!table || table->shape.size() != 2)
    user_error("{} has no table of tokens, token_embd.weight", file.path());
  Json config = {{"model_type", name}};
  config["vocab_size"] = table->shape[0];
  config["tie_word_embeddings"] = file.tensor("output.weight") == nullptr;
  if (name == "gpt2")
    read_gpt2(in, config);
  else
    read_llama_family(file, in, config);
  read_token_ids(file, config);
  return config;
}

std::string gguf_obstacle(const ModelSpec& spec, HfFamily family) {
  if (!architecture_of(family))
    return fmt::format("files of {} models are not written", hf_model_type(family));
  const bool gelu = family == HfFamily::gpt2 || family == HfFamily::starcoder2;
  if (spec.activation != (gelu ? Activation::gelu_tanh : Activation::silu))
    return fmt::format("llama.cpp computes its {} models with {}", hf_model_type(family),
                       gelu ? "gelu_tanh" : "silu");
  if (spec.rope_scaling.type == RopeScaling::Type::llama3 && family != HfFamily::llama &&
      family != HfFamily::mistral)
    return "rope_scaling is llama3, which llama.cpp has for llama models alone";
  if (spec.qkv_bias && spec.query_size() != spec.hidden_size)
    return "llama.cpp has no bias for heads that are not hidden_size / num_heads";
  if (family == HfFamily::qwen3 && spec.qkv_bias) return "qkv_bias is true";
  if (family == HfFamily::starcoder2 && !spec.qkv_bias) return "qkv_bias is false";
  const Json all = spec.to_json(), said = said_by_gguf(spec).to_json();
  for (const auto& [key, value] : all.items())
    if (!said.contains(key) || said[key] != value)
      return fmt::format("{} is {}, which a file does not say", key, brief_json(value));
  return "";
}

std::vector<HfParameter> gguf_parameters(const ModelSpec& spec, HfFamily family) {
  const Architecture* const architecture = architecture_of(family);
  require(architecture != nullptr, "no GGUF of family {}", static_cast<int>(family));
  std::vector<HfParameter> parameters = hf_parameters(spec, family);
  for (HfParameter& parameter : parameters)
    for (HfTensor& tensor : parameter.tensors) {
      tensor.name = gguf_name(tensor.name);
      if (tensor.transposed) std::swap(tensor.shape[0], tensor.shape[1]);
      tensor.transposed = false;  // as llama.cpp keeps all matrices
      if (architecture->pairs) exchange_pairs(spec, tensor);
    }
  return parameters;
}

void add_gguf_model(const ModelSpec& spec, HfFamily family, GgufHeader& header) {
  const std::string name(architecture_of(family)->name);
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
  number(spec.norm == Norm::rmsnorm ? "attention.layer_norm_rms_epsilon"
                                    : "attention.layer_norm_epsilon",
         spec.norm_eps);
  if (spec.positions != Positions::rope) return;
  count("attention.key_length", spec.head_dim);
  count("attention.value_length", spec.head_dim);
  count("rope.dimension_count", spec.head_dim);
  number("rope.freq_base", spec.rope_theta);
  if (spec.rope_scaling.type == RopeScaling::Type::llama3)
    count("rope.scaling.original_context_length", spec.rope_scaling.original_max_sequence_length);
  if (spec.rope_scaling.type != RopeScaling::Type::linear) return;
  header.add(name + ".rope.scaling.type", "linear");
  number("rope.scaling.factor", spec.rope_scaling.factor);
}

std::vector<float> gguf_rope_factors(const ModelSpec& spec) {
  std::vector<float> factors;
  if (spec.positions != Positions::rope || spec.rope_scaling.type != RopeScaling::Type::llama3)
    return factors;
  for (int64_t pair = 0; pair < spec.head_dim / 2; ++pair)
    factors.push_back(static_cast<float>(
        stretching(spec.rope_scaling, pair, spec.head_dim, double{spec.rope_theta})));
  return factors;
}

}  // namespace onefold
