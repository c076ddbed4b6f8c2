// What config.json would say of the model in a GGUF file.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "model/gguf_architecture.h"
#include "model/gguf_model.h"
#include "model/hf_sizes.h"
#include "model/hf_writing.h"
#include "model/spec_limits.h"

namespace onefold {
namespace {

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
  std::string text(const std::string& key) const { return file_.text(prefix_ + key); }
  [[noreturn]] void refuse(const std::string& key, std::string_view why) const {
    user_error("{}: {}{} {}", file_.path(), prefix_, key, why);
  }

  double number(const std::string& key, double otherwise) const {
    return has(key) ? number(key) : otherwise;
  }
  bool truth(const std::string& key, bool otherwise) const {
    const Json value = file_.values().value(prefix_ + key, Json(otherwise));
    return value.is_boolean() ? value.get<bool>() : otherwise;
  }

  // Values that change the arithmetic must be among those that are read.
  void refuse_unknown(const GgufArchitecture& architecture) const {
    static constexpr std::array<std::string_view, 24> kKnown = {
        "vocab_size", "context_length", "embedding_length", "block_count", "feed_forward_length",
        "attention.head_count", "attention.head_count_kv", "attention.key_length",
        "attention.value_length", "attention.layer_norm_rms_epsilon",
        "attention.layer_norm_epsilon", "attention.sliding_window", "rope.dimension_count",
        "rope.freq_base", "rope.scaling.type", "rope.scaling.factor",
        "rope.scaling.original_context_length", "rope.scaling.finetuned", "rope.scale_linear",
        "expert_count", "expert_used_count",
        // without effect on a decoder
        "tensor_data_layout", "pooling_type", "attention.causal"};
    for (const auto& [key, value] : file_.values().items()) {
      if (!key.starts_with(prefix_)) continue;
      const std::string own = key.substr(prefix_.size());
      const auto& more = architecture.keys;
      if (std::ranges::find(kKnown, own) == kKnown.end() &&
          std::find(more.begin(), more.end(), own) == more.end())
        refuse(own, "is not supported, and leaving it out could be wrong");
    }
    for (const char* key : {"expert_count", "expert_used_count"})
      if (integer(key, 0) != 0) refuse(key, "is not 0, and experts are not supported");
  }

 private:
  const GgufFile& file_;
  const std::string prefix_;
};

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
    const double factor = gguf_stretching(scaling, static_cast<int64_t>(i), head, theta);
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

// Phi-3's, which are tensors of their own.
Json longrope_of(const GgufFile& file, const Values& in) {
  Json scaling = {{"rope_type", "longrope"}};
  for (const auto& [key, name] :
       {std::pair("short_factor", kGgufShortFactors), std::pair("long_factor", kGgufLongFactors)}) {
    const GgufTensor* const tensor = file.tensor(name);
    if (!tensor || tensor->type->name != "F32")
      user_error("{} has no tensor {} of F32", file.path(), name);
    std::vector<float> factors(file.bytes(*tensor).size() / sizeof(float));
    std::memcpy(factors.data(), file.bytes(*tensor).data(), factors.size() * sizeof(float));
    scaling[key] = Json::array();
    for (const float factor : factors) scaling[key].push_back(shortest(factor));
  }
  scaling["original_max_position_embeddings"] = in.integer("rope.scaling.original_context_length");
  if (!in.has("rope.scaling.attn_factor")) return scaling;
  // Files have it always; mostly it is what follows from the two contexts.
  RopeScaling plain;
  plain.type = RopeScaling::Type::longrope;
  plain.original_max_sequence_length = in.integer("rope.scaling.original_context_length");
  plain.factor = static_cast<float>(in.integer("context_length")) /
                 static_cast<float>(plain.original_max_sequence_length);
  const double factor = in.number("rope.scaling.attn_factor");
  if (!(std::fabs(factor - plain.length()) <= 1e-6)) scaling["attention_factor"] = factor;
  return scaling;
}

void read_rope(const GgufFile& file, const Values& in, HfFamily family, int64_t head,
               Json& config) {
  const double theta = in.number("rope.freq_base", 10000);
  config["rope_theta"] = theta;
  const int64_t turned = in.integer("rope.dimension_count", head);
  const bool in_part = family == HfFamily::phi3 || family == HfFamily::gpt_neox;
  if (turned != head && !(in_part && turned > 0 && turned < head && turned % 2 == 0))
    in.refuse("rope.dimension_count", "is not a head's size, and rope turns whole heads only");
  if (turned != head || family == HfFamily::gpt_neox)
    config[family == HfFamily::gpt_neox ? "rotary_pct" : "partial_rotary_factor"] =
        hf::rotary_part(turned, head);
  if (file.tensor(kGgufLongFactors)) {
    config["rope_scaling"] = longrope_of(file, in);
    return;
  }
  std::string type = "none";
  if (in.has("rope.scaling.factor") || in.has("rope.scale_linear")) type = "linear";
  if (in.has("rope.scaling.type")) type = in.text("rope.scaling.type");
  if (type == "linear") {
    const char* const key =
        in.has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
    const double factor = in.number(key, 1);
    if (factor != 1 && factor != 0)
      config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", factor}};
  } else if (type == "yarn") {
    config["rope_scaling"] = {
        {"rope_type", "yarn"},
        {"factor", in.number("rope.scaling.factor")},
        {"original_max_position_embeddings", in.integer("rope.scaling.original_context_length")}};
  } else if (type != "none") {
    in.refuse("rope.scaling.type", "is not supported; none, linear and yarn are");
  }
  if (const GgufTensor* factors = file.tensor(kGgufRopeFactors))
    config["rope_scaling"] = rope_scaling_of(
        file, *factors, theta, head, in.integer("rope.scaling.original_context_length", 8192));
}

struct Sizes {
  int64_t hidden, layers, heads, kv_heads, head;
};

Sizes read_sizes(const Values& in, HfFamily family, Json& config) {
  const hf::SizeKeys& keys = hf::size_keys(family);
  const auto set = [&](std::string_view key, const Json& value) {
    if (!key.empty()) config[std::string(key)] = value;
  };
  Sizes sizes{};
  sizes.hidden = in.integer("embedding_length");
  sizes.layers = in.integer("block_count");
  sizes.heads = in.of_all_layers("attention.head_count");
  sizes.kv_heads =
      in.has("attention.head_count_kv") ? in.of_all_layers("attention.head_count_kv") : sizes.heads;
  if (sizes.heads < 1) in.refuse("attention.head_count", "is not positive");
  sizes.head = in.integer("attention.key_length", sizes.hidden / sizes.heads);
  if (in.integer("attention.value_length", sizes.head) != sizes.head)
    in.refuse("attention.value_length", "is not that of keys");
  if (sizes.head < 1 || sizes.head > (1 << 20))
    in.refuse("attention.key_length", "is no head's size");
  const int64_t inner = in.of_all_layers("feed_forward_length");
  if (keys.intermediate.empty() && inner != 4 * sizes.hidden)
    in.refuse("feed_forward_length", "is not four times the model's width");
  set(keys.hidden, sizes.hidden);
  set(keys.layers, sizes.layers);
  set(keys.heads, sizes.heads);
  set(keys.kv_heads, sizes.kv_heads);
  set(keys.intermediate, inner);
  set(keys.positions, in.integer("context_length"));
  const bool rms = keys.norm_eps == "rms_norm_eps";
  set(keys.norm_eps,
      in.number(rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon"));
  return sizes;
}

// Which blocks have the window: every so many one has none.
void read_windows(const Values& in, HfFamily family, int64_t layers, Json& config) {
  // What a file of Gemma 2's means that does not say it.
  const int64_t missing = family == HfFamily::gemma2 ? 4096 : 0;
  const int64_t window = in.integer("attention.sliding_window", missing);
  config["sliding_window"] = window > 0 ? Json(window) : Json(nullptr);
  const int64_t usual = gguf_window_period(family);
  if (usual == 0 || layers < 1 || layers > kMostLayers) return;
  const int64_t period = in.integer("attention.sliding_window_pattern", usual);
  config["layer_types"] = Json::array();
  for (int64_t block = 0; block < layers; ++block)
    config["layer_types"].push_back(window > 0 && (period < 1 || (block + 1) % period != 0)
                                        ? "sliding_attention"
                                        : "full_attention");
}

void read_gemma(const Values& in, HfFamily family, const Sizes& sizes, Json& config) {
  if (family == HfFamily::gemma) return;
  const auto cap = [&](const char* key) {
    return in.has(key) && in.number(key) > 0 ? Json(in.number(key)) : Json(nullptr);
  };
  config["attn_logit_softcapping"] = cap("attn_logit_softcapping");
  config["final_logit_softcapping"] = cap("final_logit_softcapping");
  config["query_pre_attn_scalar"] =
      gguf_query_scalar(family, sizes.layers, sizes.hidden, sizes.heads, sizes.head);
  if (family == HfFamily::gemma3)
    config["rope_local_base_freq"] = in.number("rope.freq_base_swa", 10000);
}

void read_falcon(const GgufFile& file, const Sizes& sizes, Json& config) {
  const bool two = file.tensor("blk.0.attn_norm_2.weight") != nullptr;
  const bool grouped = sizes.kv_heads != 1 && sizes.kv_heads != sizes.heads;
  config["num_kv_heads"] = sizes.kv_heads;
  config["new_decoder_architecture"] = two || grouped;
  if (two || grouped) config["num_ln_in_parallel_attn"] = two ? 2 : 1;
  config["multi_query"] = sizes.kv_heads == 1;
}

void read_model(const GgufFile& file, const Values& in, HfFamily family, Json& config) {
  const Sizes sizes = read_sizes(in, family, config);
  const bool learned = family == HfFamily::gpt2,
             alibi = family == HfFamily::bloom || family == HfFamily::mpt;
  if (!learned && !alibi) {
    config["head_dim"] = sizes.head;
    read_rope(file, in, family, sizes.head, config);
    read_windows(in, family, sizes.layers, config);
  }
  const bool biased = file.tensor("blk.0.attn_q.bias") || file.tensor("blk.0.attn_qkv.bias");
  config[family == HfFamily::starcoder2 ? "use_bias" : "attention_bias"] = biased;
  config["mlp_bias"] = file.tensor("blk.0.ffn_up.bias") != nullptr;
  switch (family) {
    case HfFamily::gpt2:
      config["activation_function"] = "gelu_new";
      for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) config[key] = 0.0;
      break;
    case HfFamily::gemma:
    case HfFamily::gemma2:
    case HfFamily::gemma3:
      read_gemma(in, family, sizes, config);
      break;
    case HfFamily::granite:
      config["embedding_multiplier"] = in.number("embedding_scale", 1);
      config["residual_multiplier"] = in.number("residual_scale", 1);
      config["attention_multiplier"] =
          in.number("attention.scale", 1 / std::sqrt(static_cast<double>(sizes.head)));
      config["logits_scaling"] = in.number("logit_scale");
      break;
    case HfFamily::cohere:
    case HfFamily::cohere2:
      config["logit_scale"] = in.number("logit_scale", 1);
      break;
    case HfFamily::gpt_neox:
      config["use_parallel_residual"] = in.truth("use_parallel_residual", true);
      break;
    case HfFamily::falcon:
      read_falcon(file, sizes, config);
      break;
    case HfFamily::mpt:
      if (in.number("attention.clamp_kqv", 0) != 0)
        in.refuse("attention.clamp_kqv", "is not 0, and nothing is clamped");
      config["attn_config"] = {{"alibi_bias_max", in.number("attention.max_alibi_bias", 0)}};
      break;
    default:
      break;
  }
}

// Ids of the tokens that begin and end texts, as config.json has them.
void read_token_ids(const GgufFile& file, Json& config) {
  for (const auto& [theirs, ours] : {std::pair("tokenizer.ggml.bos_token_id", "bos_token_id"),
                                     std::pair("tokenizer.ggml.eos_token_id", "eos_token_id"),
                                     std::pair("tokenizer.ggml.padding_token_id", "pad_token_id")})
    if (file.has(theirs)) config[ours] = file.integer(theirs);
}

}  // namespace

Json hf_config_of_gguf(const GgufFile& file) {
  const std::string name = file.text("general.architecture");
  const std::span<const GgufArchitecture> all = gguf_architectures();
  const auto found = std::ranges::find(all, name, &GgufArchitecture::name);
  if (found == all.end()) {
    std::vector<std::string> known;
    for (const GgufArchitecture& one : all)
      if (known.empty() || known.back() != one.name) known.emplace_back(one.name);
    user_error("{}: general.architecture is \"{}\"; of GGUF files, those of {} are read",
               file.path(), brief_json(Json(name)), join(known, ", "));
  }
  const Values in(file, name);
  in.refuse_unknown(*found);
  const GgufTensor* const table = file.tensor("token_embd.weight");
  if (!table || table->shape.size() != 2)
    user_error("{} has no table of tokens, token_embd.weight", file.path());
  Json config = {{"model_type", hf_model_type(found->family)}};
  config["vocab_size"] = table->shape[0];
  config["tie_word_embeddings"] = file.tensor("output.weight") == nullptr;
  read_model(file, in, found->family, config);
  read_token_ids(file, config);
  return config;
}

}  // namespace onefold
