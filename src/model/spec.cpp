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

// "geglu" is the exact GELU in the paper that named it (Shazeer 2020).
constexpr std::array<ActivationName, 10> kActivations = {{
    {"relu", Activation::relu, false},
    {"gelu", Activation::gelu, false},
    {"gelu_tanh", Activation::gelu_tanh, false},
    {"silu", Activation::silu, false},
    {"reglu", Activation::relu, true},
    {"geglu", Activation::gelu, true},
    {"geglu_tanh", Activation::gelu_tanh, true},
    {"swiglu", Activation::silu, true},
    {"glu", Activation::sigmoid, true},
    {"bilinear", Activation::identity, true},
}};

std::string_view activation_name(Activation activation, bool gated) {
  for (const ActivationName& entry : kActivations)
    if (entry.activation == activation && entry.gated == gated) return entry.name;
  internal_error("no name for activation {}, gated {}", static_cast<int>(activation), gated);
}

// Values of an enumeration by their names in JSON.
template <class Value>
struct Choice {
  const char* name;
  Value value;
};
constexpr std::array<Choice<Norm>, 3> kNorms = {
    {{"layernorm", Norm::layernorm}, {"rmsnorm", Norm::rmsnorm}, {"rmsnorm1p", Norm::rmsnorm1p}}};
constexpr std::array<Choice<NormPlace>, 3> kNormPlaces = {
    {{"before", NormPlace::before}, {"after", NormPlace::after}, {"both", NormPlace::both}}};
constexpr std::array<Choice<Parallel>, 3> kParallels = {
    {{"no", Parallel::no}, {"one_norm", Parallel::one_norm}, {"two_norms", Parallel::two_norms}}};
constexpr std::array<Choice<Positions>, 3> kPositions = {
    {{"learned", Positions::learned}, {"rope", Positions::rope}, {"alibi", Positions::alibi}}};
constexpr std::array<Choice<RopeScaling::Type>, 4> kScalings = {
    {{"linear", RopeScaling::Type::linear},
     {"llama3", RopeScaling::Type::llama3},
     {"yarn", RopeScaling::Type::yarn},
     {"longrope", RopeScaling::Type::longrope}}};

template <class Value, size_t N>
const char* name_of(const std::array<Choice<Value>, N>& choices, Value value) {
  for (const Choice<Value>& choice : choices)
    if (choice.value == value) return choice.name;
  internal_error("no name for choice {}", static_cast<int>(value));
}

template <class Value, size_t N>
Value choice_of(JsonObject& in, std::string_view key, const std::array<Choice<Value>, N>& choices,
                Value fallback) {
  const auto chosen = [&]<size_t... I>(std::index_sequence<I...>) {
    return in.choice(key, {choices[I].name...}, name_of(choices, fallback));
  };
  const std::string name = chosen(std::make_index_sequence<N>());
  for (const Choice<Value>& choice : choices)
    if (choice.name == name) return choice.value;
  return fallback;
}

void read_rope_scaling(JsonObject& model, RopeScaling& scaling) {
  if (!model.has("rope_scaling")) return;
  JsonObject in = model.object("rope_scaling");
  if (!in.has("type"))
    user_error("{} is missing: linear, llama3, yarn or longrope", in.path("type"));
  scaling = {};
  scaling.type =
      choice_of(in, "type", kScalings, RopeScaling::Type::linear);  // the first: it is given
  scaling.factor = in.require<float>("factor");
  if (scaling.type == RopeScaling::Type::llama3) {
    scaling.low_freq_factor = in.get<float>("low_freq_factor", scaling.low_freq_factor);
    scaling.high_freq_factor = in.get<float>("high_freq_factor", scaling.high_freq_factor);
  }
  if (scaling.type == RopeScaling::Type::yarn) {
    scaling.beta_fast = in.get<float>("beta_fast", scaling.beta_fast);
    scaling.beta_slow = in.get<float>("beta_slow", scaling.beta_slow);
  }
  if (scaling.type == RopeScaling::Type::longrope) {
    scaling.short_factor = in.require<std::vector<double>>("short_factor");
    scaling.long_factor = in.require<std::vector<double>>("long_factor");
  }
  if (scaling.type == RopeScaling::Type::yarn || scaling.type == RopeScaling::Type::longrope)
    scaling.attention_factor = in.get<float>("attention_factor", scaling.attention_factor);
  if (scaling.type != RopeScaling::Type::linear)
    scaling.original_max_sequence_length =
        in.at_least("original_max_sequence_length", 1, scaling.original_max_sequence_length);
  in.finish();
}

void read_positions(JsonObject& in, ModelSpec& spec) {
  spec.positions = choice_of(in, "positions", kPositions, spec.positions);
  if (spec.positions != Positions::rope)
    for (const std::string_view key :
         {"rope_theta", "rope_scaling", "no_rope_every", "rotary_dim", "local_rope_theta"})
      in.no_effect(key, fmt::format("positions are {}; set \"positions\": \"rope\" to use it",
                                    name_of(kPositions, spec.positions)));
  if (spec.positions != Positions::learned)
    in.no_effect("position_offset", "positions are not learned; there is no table");
  if (spec.positions != Positions::alibi)
    in.no_effect("alibi_scale", "set \"positions\": \"alibi\" to use it");
  spec.rope_theta = in.get<float>("rope_theta", spec.rope_theta);
  read_rope_scaling(in, spec.rope_scaling);
  spec.no_rope_every = in.at_least("no_rope_every", 0, spec.no_rope_every);
  spec.rotary_dim = in.at_least("rotary_dim", 2, spec.rotary_dim);
  spec.local_rope_theta = in.get<float>("local_rope_theta", spec.local_rope_theta);
  spec.position_offset = in.at_least("position_offset", 0, spec.position_offset);
  spec.alibi_scale = in.get<float>("alibi_scale", spec.alibi_scale);
}

void read_attention_fields(JsonObject& in, ModelSpec& spec) {
  spec.sliding_window = in.at_least("sliding_window", 0, spec.sliding_window);
  if (spec.sliding_window == 0)
    for (const std::string_view key : {"full_attention_every", "local_rope_theta"})
      in.no_effect(key, "there is no sliding_window");
  spec.full_attention_every = in.at_least("full_attention_every", 0, spec.full_attention_every);
  for (const auto& [key, field] : {std::pair{"attention_scale", &ModelSpec::attention_scale},
                                   {"attention_soft_cap", &ModelSpec::attention_soft_cap},
                                   {"logits_soft_cap", &ModelSpec::logits_soft_cap},
                                   {"logits_scale", &ModelSpec::logits_scale},
                                   {"embedding_scale", &ModelSpec::embedding_scale},
                                   {"residual_scale", &ModelSpec::residual_scale}})
    spec.*field = in.get<float>(key, spec.*field);
  spec.embedding_norm = in.get<bool>("embedding_norm", spec.embedding_norm);
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
  spec.norm = choice_of(in, "norm", kNorms, spec.norm);
  if (spec.norm != Norm::layernorm) in.no_effect("norm_bias", "only layernorm has a bias");
  spec.norm_bias = in.get<bool>("norm_bias", spec.norm_bias);
  spec.norm_place = choice_of(in, "norm_place", kNormPlaces, spec.norm_place);
  spec.parallel = choice_of(in, "parallel", kParallels, spec.parallel);
  spec.norm_eps = in.get<float>("norm_eps", spec.norm_eps);
  read_positions(in, spec);
  read_attention_fields(in, spec);
  spec.qkv_bias = in.get<bool>("qkv_bias", spec.qkv_bias);
  spec.attention_out_bias = in.get<bool>("attention_out_bias", spec.attention_out_bias);
  spec.mlp_bias = in.get<bool>("mlp_bias", spec.mlp_bias);
  spec.qk_norm = in.get<bool>("qk_norm", spec.qk_norm);
  if (!spec.qk_norm) in.no_effect("qk_norm_whole", "qk_norm is false");
  spec.qk_norm_whole = in.get<bool>("qk_norm_whole", spec.qk_norm_whole);
  const std::string activation = in.choice("activation",
                                           {"relu", "gelu", "gelu_tanh", "silu", "reglu", "geglu",
                                            "geglu_tanh", "swiglu", "glu", "bilinear"},
                                           activation_name(spec.activation, spec.gated));
  for (const ActivationName& entry : kActivations) {
    if (entry.name != activation) continue;
    spec.activation = entry.activation;
    spec.gated = entry.gated;
  }
  read_experts(in, spec.experts);
  spec.tie_embeddings = in.get<bool>("tie_embeddings", spec.tie_embeddings);
  spec.head_bias = in.get<bool>("head_bias", spec.head_bias);
  spec.dropout = in.get<float>("dropout", spec.dropout);
  spec.init_std = in.get<float>("init_std", spec.init_std);
}

}  // namespace

double shortest(float value) { return std::stod(fmt::format("{}", value)); }

double RopeScaling::length() const {
  if (type != Type::yarn && type != Type::longrope) return 1;
  if (attention_factor != 0) return attention_factor;
  if (!(factor > 1)) return 1;
  const double log_factor = std::log(static_cast<double>(factor));
  if (type == Type::yarn) return 0.1 * log_factor + 1;
  return std::sqrt(1 + log_factor / std::log(static_cast<double>(original_max_sequence_length)));
}

double RopeScaling::frequency(int64_t i, int64_t turned, double theta, bool in_long) const {
  const double half = static_cast<double>(turned) / 2;
  const double frequency = std::pow(theta, -static_cast<double>(i) / half);
  if (type == Type::none) return frequency;
  if (type == Type::linear) return frequency / factor;
  if (type == Type::longrope)
    return frequency / (in_long ? long_factor : short_factor)[static_cast<size_t>(i)];
  constexpr double kTurn = 2 * std::numbers::pi;
  if (type == Type::yarn) {
    // Which frequency makes so many turns in the original context; from the first to the second,
    // the share that is divided grows with i.
    const auto number_of = [&](double turns) {
      const auto context = static_cast<double>(original_max_sequence_length);
      return half * std::log(context / (turns * kTurn)) / std::log(theta);
    };
    const double low = std::max(std::floor(number_of(beta_fast)), 0.0);
    double high = std::min(std::ceil(number_of(beta_slow)), static_cast<double>(turned - 1));
    if (high == low) high += 0.001;
    const double divided = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    return divided * frequency / factor + (1 - divided) * frequency;
  }
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
  json["type"] = name_of(kScalings, type);
  json["factor"] = shortest(factor);
  if (type == Type::linear) return json;
  if (type == Type::llama3) {
    json["low_freq_factor"] = shortest(low_freq_factor);
    json["high_freq_factor"] = shortest(high_freq_factor);
  }
  if (type == Type::yarn) {
    json["beta_fast"] = shortest(beta_fast);
    json["beta_slow"] = shortest(beta_slow);
  }
  if (type == Type::longrope) {
    json["short_factor"] = short_factor;
    json["long_factor"] = long_factor;
  }
  if (attention_factor != 0) json["attention_factor"] = shortest(attention_factor);
  json["original_max_sequence_length"] = original_max_sequence_length;
  return json;
}

void ModelSpec::check_rope_scaling(const std::string& where) const {
  using Type = RopeScaling::Type;
  const RopeScaling& scaling = rope_scaling;
  const auto fail = [&](std::string_view field, const std::string& message) {
    user_error("{}.rope_scaling.{} {}", where, field, message);
  };
  if (scaling.type == Type::none) return;
  if (!(scaling.factor >= 1))
    fail("factor", fmt::format("must be at least 1, not {}", scaling.factor));
  if (scaling.type == Type::llama3 &&
      !(scaling.low_freq_factor > 0 && scaling.low_freq_factor < scaling.high_freq_factor))
    fail("low_freq_factor",
         fmt::format("must be greater than 0 and less than high_freq_factor {}, not {}",
                     scaling.high_freq_factor, scaling.low_freq_factor));
  if (scaling.type == Type::yarn &&
      !(scaling.beta_slow > 0 && scaling.beta_slow < scaling.beta_fast))
    fail("beta_slow", fmt::format("must be greater than 0 and less than beta_fast {}, not {}",
                                  scaling.beta_fast, scaling.beta_slow));
  for (const auto& [field, factors] :
       {std::pair{"short_factor", &scaling.short_factor}, {"long_factor", &scaling.long_factor}}) {
    if (scaling.type != Type::longrope) break;
    if (std::ssize(*factors) != rotary_size() / 2)
      fail(field, fmt::format("has {} numbers; {} frequencies turn a head", factors->size(),
                              rotary_size() / 2));
    for (const double factor : *factors)
      if (!(factor > 0 && std::isfinite(factor)))
        fail(field, fmt::format("has {}; factors must be greater than 0", factor));
  }
  if (!(scaling.attention_factor >= 0 && std::isfinite(scaling.attention_factor)))
    fail("attention_factor", fmt::format("must be at least 0, not {}", scaling.attention_factor));
  if (const int64_t original = scaling.original_max_sequence_length;
      scaling.type != Type::linear && (original < 1 || original > kMostPositions))
    fail("original_max_sequence_length",
         original < 1 ? "must be at least 1"
                      : fmt::format("is {}; the largest is {}", original, kMostPositions));
}

// Of what few families have.
void ModelSpec::check_options(const std::string& where) const {
  const auto fail = [&](std::string_view field, const std::string& message) {
    user_error("{}.{} {}", where, field, message);
  };
  for (const auto& [field, value] : {std::pair{"attention_scale", attention_scale},
                                     {"attention_soft_cap", attention_soft_cap},
                                     {"logits_soft_cap", logits_soft_cap}})
    if (!(value >= 0 && std::isfinite(value)))
      fail(field, fmt::format("must be at least 0, not {}", value));
  for (const auto& [field, value] : {std::pair{"logits_scale", logits_scale},
                                     {"embedding_scale", embedding_scale},
                                     {"residual_scale", residual_scale},
                                     {"alibi_scale", alibi_scale}})
    if (!(value > 0 && std::isfinite(value)))
      fail(field, fmt::format("must be greater than 0, not {}", value));
  if (local_rope_theta != 0 && !(local_rope_theta > 1))
    fail("local_rope_theta", fmt::format("must be greater than 1, not {}", local_rope_theta));
  if (sliding_window > kMostPositions || position_offset > 1024)
    fail(position_offset > 1024 ? "position_offset" : "sliding_window", "is too large");
  if (positions == Positions::alibi && attention_soft_cap > 0)
    fail("attention_soft_cap",
         "is not for positions alibi: a bias would be capped with the scores");
  if (parallel != Parallel::no && norm_place != NormPlace::before)
    fail("parallel", "takes norms before the branches alone; set norm_place to before");
}

std::string ModelSpec::positions_text() const {
  return fmt::format("{} position{}{}{}", max_sequence_length, max_sequence_length == 1 ? "" : "s",
                     shortened.empty() ? "" : ": ", shortened);
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
  // What a preset brings and another field has made idle: the JSON form has none of it.
  if (positions != Positions::rope) {
    rotary_dim = no_rope_every = 0;
    rope_scaling = {};
  }
  if (positions != Positions::learned) position_offset = 0;
  if (positions != Positions::alibi) alibi_scale = 1;
  if (sliding_window == 0) full_attention_every = 0;
  if (sliding_window == 0 || positions != Positions::rope) local_rope_theta = 0;
  if (!qk_norm) qk_norm_whole = false;
  if (rotary_dim == head_dim) rotary_dim = 0;
  if (positions == Positions::rope && rotary_dim == 0 && head_dim % 2 != 0)
    fail("head_dim", fmt::format("must be even, not {}: rope rotates pairs", head_dim));
  if (rotary_dim % 2 != 0 || rotary_dim > head_dim)
    fail("rotary_dim",
         fmt::format("must be even and at most head_dim {}, not {}", head_dim, rotary_dim));
  if (intermediate_size == 0) intermediate_size = 4 * hidden_size;
  check_size("intermediate_size", intermediate_size, kMostWidth);
  check_size("max_sequence_length", max_sequence_length, kMostPositions);
  complete_experts(*this, fail);

  if (!(norm_eps > 0)) fail("norm_eps", fmt::format("must be greater than 0, not {}", norm_eps));
  if (positions == Positions::rope && !(rope_theta > 1))
    fail("rope_theta", fmt::format("must be greater than 1, not {}", rope_theta));
  check_rope_scaling(where);
  check_options(where);
  if (!(dropout >= 0 && dropout < 1))
    fail("dropout", fmt::format("must be at least 0 and less than 1, not {}", dropout));
  if (!(init_std > 0 && std::isfinite(init_std)))
    fail("init_std", fmt::format("must be greater than 0, not {}", init_std));

  // Within the bounds above neither the widths nor the tables (2^53 elements) leave int64, but
  // blocks may.
  const int64_t width = 4 * query_size() + 3 * intermediate_size + experts.count +
                        3 * experts.shared_intermediate_size +
                        3 * experts.count * experts.intermediate_size;
  const int64_t blocks = saturating_product({num_layers, hidden_size, width});
  const int64_t tables = (2 * vocab_size + max_sequence_length) * hidden_size;
  if (blocks > kMostParameters || tables > kMostParameters - blocks)
    user_error(
        "{0} describes a model of more than 10^15 parameters, the most there may be; check {0}."
        "num_layers ({1}), {0}.hidden_size ({2}), {0}.intermediate_size ({3}) and {0}.vocab_size "
        "({4})",
        where, num_layers, hidden_size, intermediate_size, vocab_size);
}

namespace {

// Of one MLP of so many columns, without biases.
int64_t mlp_weights(const ModelSpec& spec, int64_t inner) {
  return spec.hidden_size * inner * (spec.gated ? 3 : 2);
}

// What experts have more than the MLP in whose place they are, if so many of them count.
int64_t expert_surplus(const ModelSpec& spec, int64_t counted) {
  const ExpertSpec& e = spec.experts;
  if (!e.enabled()) return 0;
  const int64_t up_size = spec.gated ? 2 * spec.intermediate_size : spec.intermediate_size;
  const int64_t dense =
      mlp_weights(spec, spec.intermediate_size) + (spec.mlp_bias ? up_size + spec.hidden_size : 0);
  const int64_t router = (e.count + (e.shared_gate ? 1 : 0)) * spec.hidden_size;
  const int64_t mixture = counted * mlp_weights(spec, e.intermediate_size) + router +
                          mlp_weights(spec, e.shared_intermediate_size);
  return spec.expert_blocks() * (mixture - dense);
}

}  // namespace

int64_t ModelSpec::active_parameter_count() const {
  return parameter_count() - expert_surplus(*this, experts.count) +
         expert_surplus(*this, experts.per_token);
}

int64_t ModelSpec::parameter_count() const {
  const int64_t norm_size = has_norm_bias() ? 2 * hidden_size : hidden_size;
  const int64_t up_size = gated ? 2 * intermediate_size : intermediate_size;

  // Of one branch.
  const int64_t norms = (norm_before() ? 1 : 0) + (norm_after() ? 1 : 0);
  int64_t block = (parallel == Parallel::one_norm ? 1 : 2 * norms) * norm_size;
  block += hidden_size * qkv_size() + (qkv_bias ? qkv_size() : 0);
  block += query_size() * hidden_size + (attention_out_bias ? hidden_size : 0);
  if (qk_norm) block += qk_norm_whole ? query_size() + kv_size() : 2 * head_dim;
  block += hidden_size * up_size + intermediate_size * hidden_size;
  block += mlp_bias ? up_size + hidden_size : 0;

  const int64_t table = vocab_size * hidden_size;
  const int64_t head = (tie_embeddings ? 0 : table) + (head_bias ? vocab_size : 0);
  const int64_t norms_outside = embedding_norm ? 2 * norm_size : norm_size;
  return table + learned_positions() * hidden_size + num_layers * block + norms_outside + head +
         expert_surplus(*this, experts.count);
}

double ModelSpec::flops_per_token(int64_t sequence_length) const {
  int64_t multiplied = active_parameter_count();
  multiplied -= learned_positions() * hidden_size;
  if (!tie_embeddings)
    multiplied -= vocab_size * hidden_size;  // looked up; the head's is multiplied
  // Scores and their product with the values: 2 products of 2 FLOPs forward, twice that backward,
  // and half of them masked away: 12 / 2.
  const auto length = static_cast<double>(sequence_length);
  double seen = 0;  // keys of a query, twice their mean, in all blocks
  for (int block = 0; block < num_layers; ++block) {
    const int64_t window = window_of(block);
    const double beyond =
        window > 0 ? static_cast<double>(std::max<int64_t>(sequence_length - window, 0)) : 0;
    seen += length - beyond * beyond / length;
  }
  const double attention = 6.0 * static_cast<double>(query_size()) * seen;
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
  json["norm"] = name_of(kNorms, norm);
  if (norm == Norm::layernorm && !norm_bias) json["norm_bias"] = norm_bias;
  if (norm_place != NormPlace::before) json["norm_place"] = name_of(kNormPlaces, norm_place);
  if (parallel != Parallel::no) json["parallel"] = name_of(kParallels, parallel);
  json["norm_eps"] = shortest(norm_eps);
  json["positions"] = name_of(kPositions, positions);
  if (positions == Positions::rope) json["rope_theta"] = shortest(rope_theta);
  if (rope_scaling.type != RopeScaling::Type::none) json["rope_scaling"] = rope_scaling.to_json();
  if (no_rope_every != 0) json["no_rope_every"] = no_rope_every;
  if (rotary_dim != 0) json["rotary_dim"] = rotary_dim;
  if (local_rope_theta != 0) json["local_rope_theta"] = shortest(local_rope_theta);
  if (position_offset != 0) json["position_offset"] = position_offset;
  if (alibi_scale != 1) json["alibi_scale"] = shortest(alibi_scale);
  if (sliding_window != 0) json["sliding_window"] = sliding_window;
  if (full_attention_every != 0) json["full_attention_every"] = full_attention_every;
  if (attention_scale != 0) json["attention_scale"] = shortest(attention_scale);
  if (attention_soft_cap != 0) json["attention_soft_cap"] = shortest(attention_soft_cap);
  if (logits_soft_cap != 0) json["logits_soft_cap"] = shortest(logits_soft_cap);
  if (logits_scale != 1) json["logits_scale"] = shortest(logits_scale);
  if (embedding_scale != 1) json["embedding_scale"] = shortest(embedding_scale);
  if (embedding_norm) json["embedding_norm"] = embedding_norm;
  if (residual_scale != 1) json["residual_scale"] = shortest(residual_scale);
  json["qkv_bias"] = qkv_bias;
  json["attention_out_bias"] = attention_out_bias;
  json["mlp_bias"] = mlp_bias;
  json["qk_norm"] = qk_norm;
  if (qk_norm_whole) json["qk_norm_whole"] = qk_norm_whole;
  json["activation"] = activation_name(activation, gated);
  if (experts.enabled()) json["experts"] = experts.to_json();
  json["tie_embeddings"] = tie_embeddings;
  if (head_bias) json["head_bias"] = head_bias;
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
