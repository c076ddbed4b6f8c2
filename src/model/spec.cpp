#include "model/spec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string_view>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "model/lora.h"
#include "model/spec_limits.h"
#include "model/zoo.h"

namespace onefold {
namespace {

struct ActivationName {
  std::string_view name;
  Activation activation;
  bool gated;
};

// gelu_tanh has no gated name: "geglu" is the exact GELU in the paper that named it (Shazeer 2020).
constexpr std::array<ActivationName, 7> kActivations = {{
    {"relu", Activation::relu, false},
    {"gelu", Activation::gelu, false},
    {"gelu_tanh", Activation::gelu_tanh, false},
    {"silu", Activation::silu, false},
    {"reglu", Activation::relu, true},
    {"geglu", Activation::gelu, true},
    {"swiglu", Activation::silu, true},
}};

std::string_view activation_name(Activation activation, bool gated) {
  for (const ActivationName& entry : kActivations)
    if (entry.activation == activation && entry.gated == gated) return entry.name;
  internal_error("no name for activation {}, gated {}", static_cast<int>(activation), gated);
}

void read_rope_scaling(JsonObject& model, RopeScaling& scaling) {
  if (!model.has("rope_scaling")) return;
  JsonObject in = model.object("rope_scaling");
  if (!in.has("type")) user_error("{} is missing: linear or llama3", in.path("type"));
  scaling = {};
  scaling.type = in.choice("type", {"linear", "llama3"}, "") == "linear"
                     ? RopeScaling::Type::linear
                     : RopeScaling::Type::llama3;
  scaling.factor = in.require<float>("factor");
  if (scaling.type == RopeScaling::Type::llama3) {
    scaling.low_freq_factor = in.get<float>("low_freq_factor", scaling.low_freq_factor);
    scaling.high_freq_factor = in.get<float>("high_freq_factor", scaling.high_freq_factor);
    scaling.original_max_sequence_length =
        in.at_least("original_max_sequence_length", 1, scaling.original_max_sequence_length);
  }
  in.finish();
}

// Reads the fields present in `in` over what `spec` holds already.
void read_fields(JsonObject& in, ModelSpec& spec) {
  // Absent sizes keep the base's value (0: derived by complete()); a size that is written must be a
  // size.
  spec.vocab_size = in.at_least("vocab_size", 1, spec.vocab_size);
  spec.hidden_size = in.at_least("hidden_size", 1, spec.hidden_size);
  spec.num_layers = in.at_least("num_layers", 1, spec.num_layers);
  spec.num_heads = in.at_least("num_heads", 1, spec.num_heads);
  spec.num_kv_heads = in.at_least("num_kv_heads", 1, spec.num_kv_heads);
  spec.head_dim = in.at_least("head_dim", 1, spec.head_dim);
  spec.intermediate_size = in.at_least("intermediate_size", 1, spec.intermediate_size);
  spec.max_sequence_length = in.at_least("max_sequence_length", 1, spec.max_sequence_length);
  spec.norm = in.choice("norm", {"layernorm", "rmsnorm"},
                        spec.norm == Norm::layernorm ? "layernorm" : "rmsnorm") == "layernorm"
                  ? Norm::layernorm
                  : Norm::rmsnorm;
  spec.norm_eps = in.get<float>("norm_eps", spec.norm_eps);
  spec.positions = in.choice("positions", {"learned", "rope"},
                             spec.positions == Positions::learned ? "learned" : "rope") == "learned"
                       ? Positions::learned
                       : Positions::rope;
  if (spec.positions == Positions::learned)
    for (const std::string_view key : {"rope_theta", "rope_scaling", "no_rope_every"})
      in.no_effect(key, "positions are learned; set \"positions\": \"rope\" to use it");
  spec.rope_theta = in.get<float>("rope_theta", spec.rope_theta);
  read_rope_scaling(in, spec.rope_scaling);
  spec.no_rope_every = in.at_least("no_rope_every", 0, spec.no_rope_every);
  spec.qkv_bias = in.get<bool>("qkv_bias", spec.qkv_bias);
  spec.attention_out_bias = in.get<bool>("attention_out_bias", spec.attention_out_bias);
  spec.mlp_bias = in.get<bool>("mlp_bias", spec.mlp_bias);
  spec.qk_norm = in.get<bool>("qk_norm", spec.qk_norm);
  const std::string activation =
      in.choice("activation", {"relu", "gelu", "gelu_tanh", "silu", "reglu", "geglu", "swiglu"},
                activation_name(spec.activation, spec.gated));
  for (const ActivationName& entry : kActivations) {
    if (entry.name != activation) continue;
    spec.activation = entry.activation;
    spec.gated = entry.gated;
  }
  spec.tie_embeddings = in.get<bool>("tie_embeddings", spec.tie_embeddings);
  spec.dropout = in.get<float>("dropout", spec.dropout);
  spec.init_std = in.get<float>("init_std", spec.init_std);
}

}  // namespace

double shortest(float value) { return std::stod(fmt::format("{}", value)); }

double RopeScaling::scaled(double frequency) const {
  if (type == Type::none) return frequency;
  if (type == Type::linear) return frequency / factor;
  constexpr double kTurn = 2 * std::numbers::pi;
  // How many turns of the original context this frequency makes.
  const double turns = static_cast<double>(original_max_sequence_length) * frequency / kTurn;
  if (turns < low_freq_factor) return frequency / factor;
  if (turns > high_freq_factor) return frequency;
  const double kept = (turns - low_freq_factor) / (static_cast<double>(high_freq_factor) -
                                                   static_cast<double>(low_freq_factor));
  return (1 - kept) * frequency / factor + kept * frequency;
}

Json RopeScaling::to_json() const {
  Json json;
  json["type"] = type == Type::linear ? "linear" : "llama3";
  json["factor"] = shortest(factor);
  if (type == Type::linear) return json;
  json["low_freq_factor"] = shortest(low_freq_factor);
  json["high_freq_factor"] = shortest(high_freq_factor);
  json["original_max_sequence_length"] = original_max_sequence_length;
  return json;
}

void ModelSpec::complete(const std::string& where) {
  const auto fail = [&](std::string_view field, const std::string& message) {
    user_error("{}.{} {}", where, field, message);
  };
  const auto check_size = [&](std::string_view field, int64_t value, int64_t most) {
    if (value < 1) fail(field, value == 0 ? "is missing" : "must be at least 1");
    if (value > most) fail(field, fmt::format("is {}; the largest is {}", value, most));
  };
  if (vocab_size != 0)
    check_size("vocab_size", vocab_size, kMostTokenIds);  // 0: the tokenizer's, when it is known
  check_size("hidden_size", hidden_size, kMostHidden);
  check_size("num_layers", num_layers, kMostLayers);
  check_size("num_heads", num_heads, kMostHeads);
  if (num_kv_heads == 0) num_kv_heads = num_heads;
  check_size("num_kv_heads", num_kv_heads, kMostHeads);
  if (num_heads % num_kv_heads != 0)
    fail("num_kv_heads",
         fmt::format("must divide num_heads: {} heads cannot share {}", num_heads, num_kv_heads));
  if (head_dim == 0) {
    if (hidden_size % num_heads != 0)
      fail("hidden_size", fmt::format("{} is not a multiple of num_heads {}; change one of them or "
                                      "set head_dim",
                                      hidden_size, num_heads));
    head_dim = hidden_size / num_heads;
  }
  check_size("head_dim", head_dim, std::min(kMostHeadDim, kMostWidth / num_heads));
  if (positions == Positions::rope && head_dim % 2 != 0)
    fail("head_dim", fmt::format("must be even, not {}: rope rotates pairs", head_dim));
  if (intermediate_size == 0) intermediate_size = 4 * hidden_size;
  check_size("intermediate_size", intermediate_size, kMostWidth);
  check_size("max_sequence_length", max_sequence_length, kMostPositions);

  if (!(norm_eps > 0)) fail("norm_eps", fmt::format("must be greater than 0, not {}", norm_eps));
  if (positions == Positions::rope && !(rope_theta > 1))
    fail("rope_theta", fmt::format("must be greater than 1, not {}", rope_theta));
  if (rope_scaling.type != RopeScaling::Type::none && !(rope_scaling.factor >= 1))
    fail("rope_scaling.factor", fmt::format("must be at least 1, not {}", rope_scaling.factor));
  if (rope_scaling.type == RopeScaling::Type::llama3) {
    if (!(rope_scaling.low_freq_factor > 0 &&
          rope_scaling.low_freq_factor < rope_scaling.high_freq_factor))
      fail("rope_scaling.low_freq_factor",
           fmt::format("must be greater than 0 and less than high_freq_factor {}, not {}",
                       rope_scaling.high_freq_factor, rope_scaling.low_freq_factor));
    check_size("rope_scaling.original_max_sequence_length",
               rope_scaling.original_max_sequence_length, kMostPositions);
  }
  if (!(dropout >= 0 && dropout < 1))
    fail("dropout", fmt::format("must be at least 0 and less than 1, not {}", dropout));
  if (!(init_std > 0 && std::isfinite(init_std)))
    fail("init_std", fmt::format("must be greater than 0, not {}", init_std));

  // Within the bounds above neither the widths nor the tables (2^53 elements) leave int64, but
  // blocks may.
  const int64_t width = 4 * query_size() + 3 * intermediate_size;
  const int64_t blocks = saturating_product({num_layers, hidden_size, width});
  const int64_t tables = (2 * vocab_size + max_sequence_length) * hidden_size;
  if (blocks > kMostParameters || tables > kMostParameters - blocks)
    user_error(
        "{0} describes a model of more than 10^15 parameters, the most there may be; check {0}."
        "num_layers ({1}), {0}.hidden_size ({2}), {0}.intermediate_size ({3}) and {0}.vocab_size "
        "({4})",
        where, num_layers, hidden_size, intermediate_size, vocab_size);
}

int64_t ModelSpec::parameter_count() const {
  const int64_t norm_size = norm == Norm::layernorm ? 2 * hidden_size : hidden_size;
  const int64_t up_size = gated ? 2 * intermediate_size : intermediate_size;

  int64_t block = 2 * norm_size;
  block += hidden_size * qkv_size() + (qkv_bias ? qkv_size() : 0);
  block += query_size() * hidden_size + (attention_out_bias ? hidden_size : 0);
  block += qk_norm ? 2 * head_dim : 0;
  block += hidden_size * up_size + intermediate_size * hidden_size;
  block += mlp_bias ? up_size + hidden_size : 0;

  const int64_t table = vocab_size * hidden_size;
  const int64_t learned = positions == Positions::learned ? max_sequence_length * hidden_size : 0;
  return table + learned + num_layers * block + norm_size + (tie_embeddings ? 0 : table);
}

double ModelSpec::flops_per_token(int64_t sequence_length) const {
  int64_t multiplied = parameter_count();
  if (positions == Positions::learned) multiplied -= max_sequence_length * hidden_size;
  if (!tie_embeddings)
    multiplied -= vocab_size * hidden_size;  // looked up; the head's is multiplied
  // Scores and their product with the values: 2 products of 2 FLOPs forward, twice that backward,
  // and half of them masked away: 12 / 2.
  const double attention = 6.0 * static_cast<double>(num_layers) *
                           static_cast<double>(query_size()) * static_cast<double>(sequence_length);
  // A frozen weight has no gradient of its own: two products of the three.
  const double adapters = 6.0 * static_cast<double>(lora_parameter_count(*this));
  return (lora.enabled() ? 4.0 : 6.0) * static_cast<double>(multiplied) + adapters + attention;
}

Json ModelSpec::to_json() const {
  Json json;
  if (vocab_size != 0) json["vocab_size"] = vocab_size;
  json["hidden_size"] = hidden_size;
  json["num_layers"] = num_layers;
  json["num_heads"] = num_heads;
  json["num_kv_heads"] = num_kv_heads;
  json["head_dim"] = head_dim;
  json["intermediate_size"] = intermediate_size;
  json["max_sequence_length"] = max_sequence_length;
  json["norm"] = norm == Norm::layernorm ? "layernorm" : "rmsnorm";
  json["norm_eps"] = shortest(norm_eps);
  json["positions"] = positions == Positions::learned ? "learned" : "rope";
  if (positions == Positions::rope) json["rope_theta"] = shortest(rope_theta);
  if (rope_scaling.type != RopeScaling::Type::none) json["rope_scaling"] = rope_scaling.to_json();
  if (no_rope_every != 0) json["no_rope_every"] = no_rope_every;
  json["qkv_bias"] = qkv_bias;
  json["attention_out_bias"] = attention_out_bias;
  json["mlp_bias"] = mlp_bias;
  json["qk_norm"] = qk_norm;
  json["activation"] = activation_name(activation, gated);
  json["tie_embeddings"] = tie_embeddings;
  json["dropout"] = shortest(dropout);
  json["init_std"] = shortest(init_std);
  return json;
}

ModelSpec spec_from_json(const Json& json, const std::string& where) {
  JsonObject in(json, where);
  ModelSpec spec;
  // The base still has its derived sizes open, so that {"preset": "gpt2", "hidden_size": 384}
  // derives head_dim from 384.
  if (in.has("preset")) spec = open_preset(in.require<std::string>("preset"), in.path("preset"));
  read_fields(in, spec);
  in.finish();
  spec.complete(where);
  return spec;
}

ModelSpec spec_from_preset(const std::string& name, const std::string& where) {
  ModelSpec spec = open_preset(name, where);
  spec.complete(where);
  return spec;
}

}  // namespace onefold
