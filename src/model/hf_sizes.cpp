#include "model/hf_sizes.h"

#include "base/text.h"
#include "model/hf_reading.h"

namespace onefold::hf {
namespace {

constexpr SizeKeys kLlama = {.norm_eps = "rms_norm_eps", .default_norm_eps = 1e-6f};
constexpr SizeKeys kMistral = {
    .norm_eps = "rms_norm_eps", .default_kv_heads = 8, .default_norm_eps = 1e-6f};
constexpr SizeKeys kMixtral = {
    .norm_eps = "rms_norm_eps", .default_kv_heads = 8, .default_norm_eps = 1e-5f};
constexpr SizeKeys kSmollm3 = {
    .norm_eps = "rms_norm_eps", .default_kv_heads = 4, .default_norm_eps = 1e-6f};
constexpr SizeKeys kPhi3 = {.norm_eps = "rms_norm_eps", .default_norm_eps = 1e-5f};
constexpr SizeKeys kStarcoder2 = {.norm_eps = "norm_epsilon", .default_kv_heads = 2};
constexpr SizeKeys kCohere = {.default_positions = 8192};
constexpr SizeKeys kNeox = {.kv_heads = ""};
constexpr SizeKeys kOpt = {.kv_heads = "", .intermediate = "ffn_dim", .norm_eps = ""};
// How many heads of keys there are is said by several keys.
constexpr SizeKeys kFalcon = {.kv_heads = "",
                              .intermediate = "ffn_hidden_size",
                              .norm_eps = "layer_norm_epsilon",
                              .default_positions = 2048,
                              .intermediate_missing = true};
constexpr SizeKeys kGpt2 = {.hidden = "n_embd",
                            .layers = "n_layer",
                            .heads = "n_head",
                            .kv_heads = "",
                            .intermediate = "n_inner",
                            .positions = "n_positions",
                            .norm_eps = "layer_norm_epsilon",
                            .default_positions = 1024,
                            .intermediate_missing = true};
constexpr SizeKeys kBloom = {.layers = "n_layer",
                             .heads = "n_head",
                             .kv_heads = "",
                             .intermediate = "",
                             .positions = "seq_length",
                             .norm_eps = "layer_norm_epsilon",
                             .default_positions = 2048};
constexpr SizeKeys kMpt = {.hidden = "d_model",
                           .layers = "n_layers",
                           .heads = "n_heads",
                           .kv_heads = "",
                           .intermediate = "",
                           .positions = "max_seq_len",
                           .norm_eps = "layer_norm_epsilon",
                           .default_positions = 2048};
constexpr SizeKeys kGptj = [] {
  SizeKeys keys = kGpt2;
  keys.default_positions = 2048;
  return keys;
}();

// transformers has a general name for a size beside the family's own.
std::string_view key_in(JsonObject& in, std::string_view own, std::string_view general) {
  if (own.empty() || own == general || !in.has(general)) return own;
  if (!in.has(own)) return general;
  const Json& size = *in.value().find(own);
  refuse_if(in, general, *in.value().find(general) != size,
            fmt::format("{} says the same, and is {}; keep one", own, brief_json(size)));
  return own;
}

int64_t size_of(JsonObject& in, std::string_view key) {
  const auto size = in.require<int64_t>(key);
  refuse_if(in, key, size < 1, "must be at least 1");
  return size;
}

}  // namespace

const SizeKeys& size_keys(HfFamily family) {
  switch (family) {
    case HfFamily::gpt2:
      return kGpt2;
    case HfFamily::gptj:
      return kGptj;
    case HfFamily::starcoder2:
      return kStarcoder2;
    case HfFamily::mistral:
    case HfFamily::ministral:
      return kMistral;
    case HfFamily::mixtral:
      return kMixtral;
    case HfFamily::smollm3:
      return kSmollm3;
    case HfFamily::phi3:
    case HfFamily::olmo2:
      return kPhi3;
    case HfFamily::cohere:
    case HfFamily::cohere2:
      return kCohere;
    case HfFamily::gpt_neox:
      return kNeox;
    case HfFamily::opt:
      return kOpt;
    case HfFamily::falcon:
      return kFalcon;
    case HfFamily::bloom:
      return kBloom;
    case HfFamily::mpt:
      return kMpt;
    default:
      return kLlama;
  }
}

ModelSpec read_sizes(JsonObject& in, const SizeKeys& keys, bool tied) {
  ModelSpec spec;
  spec.vocab_size = size_of(in, "vocab_size");
  spec.hidden_size = size_of(in, key_in(in, keys.hidden, "hidden_size"));
  spec.num_layers = size_of(in, key_in(in, keys.layers, "num_hidden_layers"));
  spec.num_heads = size_of(in, key_in(in, keys.heads, "num_attention_heads"));
  if (!keys.kv_heads.empty())
    spec.num_kv_heads = optional<int64_t>(in, keys.kv_heads, keys.default_kv_heads);
  if (keys.intermediate_missing)
    spec.intermediate_size = optional<int64_t>(in, keys.intermediate, 0);
  else if (!keys.intermediate.empty())
    spec.intermediate_size = in.require<int64_t>(keys.intermediate);
  const std::string_view positions = keys.positions == "n_positions"
                                         ? key_in(in, keys.positions, "max_position_embeddings")
                                         : keys.positions;
  spec.max_sequence_length = keys.default_positions == 0
                                 ? in.require<int64_t>(positions)
                                 : in.get<int64_t>(positions, keys.default_positions);
  if (!keys.norm_eps.empty()) spec.norm_eps = in.get<float>(keys.norm_eps, keys.default_norm_eps);
  spec.tie_embeddings = in.get<bool>("tie_word_embeddings", tied);
  spec.init_std = in.get<float>("initializer_range", 0.02f);
  return spec;
}

Json sizes_json(const ModelSpec& spec, HfFamily family) {
  const SizeKeys& keys = size_keys(family);
  Json json;
  const auto add = [&](std::string_view key, const Json& value) {
    if (!key.empty()) json[std::string(key)] = value;
  };
  add("vocab_size", spec.vocab_size);
  add(keys.hidden, spec.hidden_size);
  add(keys.layers, spec.num_layers);
  add(keys.heads, spec.num_heads);
  add(keys.kv_heads, spec.num_kv_heads);
  add(keys.intermediate, spec.intermediate_size);
  add(keys.positions, spec.max_sequence_length);
  add(keys.norm_eps, shortest(spec.norm_eps));
  return json;
}

}  // namespace onefold::hf
