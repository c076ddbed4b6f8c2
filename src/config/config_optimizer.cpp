// "optimizer", and with it "scheduler" (config_schedule.cpp): either may set the learning rate.
#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "config/sections.h"

namespace onefold {
namespace {

using Group = JsonReport::Group;

using Type = OptimizerSpec::Type;

// As they are written in effective(); "Adam" is AdamW with l2, or another name for it.
constexpr std::pair<std::string_view, Type> kOptimizers[] = {
    {"AdamW", Type::adamw}, {"Adam", Type::adamw},         {"SGD", Type::sgd},
    {"Lion", Type::lion},   {"Lamb", Type::lamb},          {"Lars", Type::lars},
    {"Muon", Type::muon},   {"Adafactor", Type::adafactor}};

// DeepSpeed's that send momentum, or gradients, in one bit: these, with "compression".
constexpr std::pair<std::string_view, Type> kOneBit[] = {
    {"OneBitAdam", Type::adamw}, {"OneBitLamb", Type::lamb}, {"ZeroOneAdam", Type::adamw}};

std::optional<Type> one_bit_type(const std::string& type) {
  for (const auto& [name, named] : kOneBit)
    if (lower(std::string(name)) == type) return named;
  return std::nullopt;
}

std::string_view name_of(const OptimizerSpec& spec) {
  if (spec.l2) return "Adam";
  for (const auto& [name, type] : kOptimizers)
    if (type == spec.type) return name;
  return "?";
}

// Names of optimizers are compared without regard to case, as DeepSpeed does. "" after a problem.
std::string optimizer_type(JsonObject& optimizer) {
  const std::string given = optimizer.get<std::string>("type", "AdamW");
  const std::string type = lower(given);
  std::vector<std::string> names;
  for (const auto& [name, ignored] : kOptimizers) {
    names.emplace_back(name);
    if (lower(names.back()) == type) return type;
  }
  for (const auto& [name, ignored] : kOneBit) names.emplace_back(name);
  if (one_bit_type(type)) return type;
  static constexpr std::array<std::string_view, 5> kOthers = {"muadam", "muadamw", "musgd",
                                                              "adagrad", "rmsprop"};
  const std::string there = join(names, ", ");
  if (std::find(kOthers.begin(), kOthers.end(), type) != kOthers.end())
    optimizer.refuse(
        Group::missing, "type",
        fmt::format("is \"{}\", an optimizer that is not supported; there are {}", given, there));
  else
    optimizer.refuse(
        Group::unknown, "type",
        fmt::format("must be one of {}, not \"{}\"{}", there, given, did_you_mean(given, names)));
  return "";
}

void read_betas(JsonObject& params, OptimizerSpec& spec) {
  const auto betas = params.get<std::vector<double>>("betas", std::vector{spec.beta1, spec.beta2});
  const auto bad = [](double beta) { return !(beta >= 0 && beta < 1); };
  if (betas.size() != 2 || bad(betas[0]) || bad(betas[1]))
    return params.refuse(Group::conflict, "betas",
                         fmt::format("must be two numbers from 0 to less than 1, not {}",
                                     brief_json(params.value()["betas"])));
  spec.beta1 = betas[0];
  spec.beta2 = betas[1];
}

void refuse_amsgrad(JsonObject& params) {
  if (params.get<bool>("amsgrad", false))
    params.refuse(Group::missing, "amsgrad", "must be false: AMSGrad is not supported");
  params.idle("amsgrad");
}

void read_adam(JsonObject& params, const std::string& type, OptimizerSpec& spec) {
  read_betas(params, spec);
  spec.eps = params.positive("eps", 1e-8);
  // With DeepSpeed, "Adam" decays weights like AdamW unless adam_w_mode is false.
  spec.l2 = !params.get<bool>("adam_w_mode", true);
  if (spec.l2 && type == "adamw")
    params.refuse(Group::conflict, "adam_w_mode", "has no effect on AdamW; use the type \"Adam\"");
  spec.bias_correction = params.get<bool>("bias_correction", true);
  spec.freeze_step = params.at_least("freeze_step", 0, 0);
  spec.variance_scaler = params.at_least("var_update_scaler", 0, 0);
  refuse_amsgrad(params);
  // Ways to compute the same: moments are in fp32, and each optimizer has one implementation.
  for (const std::string_view key :
       {"torch_adam", "fp32_optimizer_states", "set_grad_none", "foreach", "fused"}) {
    params.get<bool>(key, false);
    params.idle(key);
  }
  for (const std::string_view key : {"momentum", "nesterov", "dampening"})
    params.no_effect(key, "it belongs to SGD, and the optimizer is AdamW");
}

void read_lion(JsonObject& params, OptimizerSpec& spec) {
  spec.beta2 = 0.99;
  read_betas(params, spec);
}

void read_coefficients(JsonObject& params, OptimizerSpec& spec) {
  spec.least_trust = params.non_negative("min_coeff", 0.01);
  spec.most_trust = params.positive("max_coeff", 10);
  if (spec.least_trust > spec.most_trust)
    params.refuse(Group::conflict, "min_coeff", "is more than max_coeff");
}

void read_frozen_trust(JsonObject& params, OptimizerSpec& spec) {
  FrozenTrust& trust = spec.frozen_trust.emplace();
  trust.beta = params.fraction("coeff_beta", trust.beta);
  trust.most = params.positive("factor_max", trust.most);
  trust.least = params.non_negative("factor_min", trust.least);
  trust.threshold = params.non_negative("factor_threshold", trust.threshold);
  if (trust.least > trust.most)
    params.refuse(Group::conflict, "factor_min", "is more than factor_max");
}

void read_lamb(JsonObject& params, OptimizerSpec& spec) {
  read_betas(params, spec);
  spec.eps = params.positive("eps", 1e-8);
  spec.bias_correction = params.get<bool>("bias_correction", true);
  spec.eps_inside = params.get<bool>("eps_inside_sqrt", false);
  read_coefficients(params, spec);
  spec.freeze_step = params.at_least("freeze_step", 0, 0);
  if (params.has("coeff_beta")) {
    read_frozen_trust(params, spec);
    if (spec.freeze_step == 0)
      params.refuse(Group::conflict, "coeff_beta",
                    "is of ratios that stay after freeze_step steps, which is missing");
  } else {
    for (const char* key : {"factor_max", "factor_min", "factor_threshold"})
      params.no_effect(key, "it is for ratios that stay; set coeff_beta");
  }
  refuse_amsgrad(params);
}

// Local steps are of ranks that have all state for themselves; where it is sharded, ranks exchange
// in every step.
void read_moves(JsonObject& params, Config& config) {
  const int64_t scaler = params.at_least("local_step_scaler", 1, 32678),
                clipper = params.at_least("local_step_clipper", 1, 16);
  if (config.zero.stage > 0) {
    for (const char* key : {"local_step_scaler", "local_step_clipper"}) params.idle(key);
    return;
  }
  config.delay.whole_steps = config.optimizer.freeze_step;
  config.delay.local.sums_moves = true;
  config.delay.local.scaler = scaler;
  config.delay.local.steps = clipper;
}

// Gradients that travel whole until the second moment stays as it is, and then momentum in one bit
// (1-bit Adam, 1-bit LAMB); or gradients in one bit between steps that the second moment takes in
// (0/1 Adam). None corrects its moments for their beginning, whatever bias_correction says.
void read_one_bit(JsonObject& params, const std::string& type, Config& config) {
  OptimizerSpec& spec = config.optimizer;
  CompressionOptions& compression = config.compression;
  const std::optional<Type> named = one_bit_type(type);
  spec.type = *named;
  read_betas(params, spec);
  spec.eps = params.positive("eps", 1e-8);
  spec.bias_correction = false;
  if (type == "zerooneadam") {
    spec.freeze_step = params.at_least("var_freeze_step", 1, 100000);
    spec.variance_scaler = params.at_least("var_update_scaler", 1, 16);
    read_moves(params, config);
  } else {
    spec.freeze_step = params.at_least("freeze_step", 1, 100000);
    compression.whole_steps = spec.freeze_step;
    compression.corrects_momentum = true;
  }
  if (spec.type == Type::lamb) {
    read_coefficients(params, spec);
    read_frozen_trust(params, spec);
  }
  refuse_amsgrad(params);
  for (const char* key : {"bias_correction", "eps_inside_sqrt", "cuda_aware"}) {
    params.get<bool>(key, false);
    params.idle(key);
  }
  params.get<std::string>("comm_backend_name", "");
  params.idle("comm_backend_name");
  compression.gradients.type = WireFormat::Type::sign;
}

void read_lars(JsonObject& params, OptimizerSpec& spec) {
  spec.momentum = params.fraction("momentum", 0.9);
  spec.trust = params.positive("trust_coefficient", 0.001);
}

void read_adafactor(JsonObject& params, OptimizerSpec& spec) {
  spec.decay_power = params.get<double>("decay_rate", -0.8);
  if (!(spec.decay_power < 0))
    params.refuse(Group::conflict, "decay_rate", "must be below 0: a power of the step");
  spec.clip = params.positive("clip_threshold", 1);
  spec.parameter_eps = params.positive("parameter_eps", 1e-3);
}

// The learning rate is the matrices'; the others' is a multiple of it.
void read_muon(JsonObject& params, Config& config) {
  OptimizerSpec& spec = config.optimizer;
  spec.momentum = params.fraction("momentum", 0.95);
  spec.nesterov = params.get<bool>("nesterov", true);
  spec.iterations = static_cast<int>(params.at_least("ns_steps", 1, 5));
  spec.beta2 = 0.95;
  read_betas(params, spec);
  spec.eps = params.positive("eps", 1e-10);
  const double rest = params.positive("adam_lr", config.learning_rate);
  config.learning_rate = params.positive("muon_lr", config.learning_rate);
  spec.adam_rate = rest / config.learning_rate;
  // Two ways to compute the same.
  params.choice("ns_method", {"gram", "standard"}, "standard");
  params.idle("ns_method");
}

void read_sgd(JsonObject& params, OptimizerSpec& spec) {
  spec.momentum = params.fraction("momentum", 0);
  spec.nesterov = params.get<bool>("nesterov", false);
  if (spec.nesterov && spec.momentum == 0)
    params.refuse(Group::conflict, "nesterov", "has no effect without momentum; set momentum");
  if (params.get<double>("dampening", 0) != 0)
    params.refuse(Group::missing, "dampening", "must be 0: SGD with dampening is not supported");
  for (const std::string_view key : {"betas", "eps", "adam_w_mode", "bias_correction", "amsgrad"})
    params.no_effect(key, "it belongs to AdamW, and the optimizer is SGD");
}

// "auto" is what a trainer fills in: for weights that are given the rate that Hugging Face's has by
// default, which changes them gently.
double automatic_rate(const Config& config) { return config.model_weights.empty() ? 1e-3 : 5e-5; }

// What each has beside its rate and its decay.
void read_params_of(JsonObject& params, const std::string& type, Config& config) {
  OptimizerSpec& spec = config.optimizer;
  switch (spec.type) {
    case Type::adamw:
      read_adam(params, type, spec);
      break;
    case Type::sgd:
      read_sgd(params, spec);
      break;
    case Type::lion:
      read_lion(params, spec);
      break;
    case Type::lamb:
      read_lamb(params, spec);
      break;
    case Type::lars:
      read_lars(params, spec);
      break;
    case Type::adafactor:
      read_adafactor(params, spec);
      break;
    case Type::muon:
      read_muon(params, config);
      break;
  }
}

void read_params(JsonObject& params, const std::string& type, Config& config) {
  OptimizerSpec& spec = config.optimizer;
  config.learning_rate =
      params.positive("lr", params.is_auto("lr") ? automatic_rate(config) : 1e-3);
  spec.weight_decay = params.non_negative("weight_decay", 0);
  spec.decay_all = params.choice("decay", {"matrices", "all"}, "matrices") == "all";
  for (const auto& [name, named] : kOptimizers)
    if (lower(std::string(name)) == type) spec.type = named;
  if (one_bit_type(type))
    read_one_bit(params, type, config);
  else
    read_params_of(params, type, config);
  // A name of earlier releases: it may say the same.
  if (params.value().value("max_grad_norm", Json()) == config.gradient_clipping)
    params.idle("max_grad_norm");
  else
    params.no_effect("max_grad_norm", "clipping is set by gradient_clipping at the top");
  params.finish();
}

// `given`: the optimizer has a learning rate, which a schedule may replace.
void read_scheduler(JsonObject& root, bool given, Config& config) {
  if (!root.has("scheduler")) return;
  const double lr = config.learning_rate;
  JsonObject scheduler = root.object("scheduler");
  config.schedule = read_schedule(scheduler, config.learning_rate);
  scheduler.finish();
  if (given && config.learning_rate != lr)
    config.notes.remarks.push_back(
        fmt::format("optimizer.params.lr {} is replaced by the schedule's {}, as with DeepSpeed",
                    lr, config.learning_rate));
}

}  // namespace

void read_optimizer(JsonObject& root, Config& config) {
  JsonObject optimizer = root.object("optimizer");
  const std::string type = optimizer_type(optimizer);
  if (optimizer.get<bool>("legacy_fusion", false))
    optimizer.refuse(Group::missing, "legacy_fusion",
                     "is a detail of DeepSpeed's CUDA optimizers; leave it out");
  JsonObject params = optimizer.object("params");
  params.allow_auto({"lr", "betas", "eps", "weight_decay"});
  if (one_bit_type(type) && !config.compression.gradients.none())
    optimizer.refuse(Group::conflict, "type",
                     "sends one bit, and zero_optimization.zero_quantized_gradients asks for int4: "
                     "keep one");
  if (!type.empty()) read_params(params, type, config);
  read_batch_scaling(optimizer, config);
  read_scheduler(root, params.has("lr"), config);
  read_groups(optimizer, config);
  optimizer.finish();
}

Json optimizer_json(const Config& config) {
  const OptimizerSpec& spec = config.optimizer;
  Json params;
  params["lr"] = config.learning_rate;
  if (spec.type != Type::sgd && spec.type != Type::lars && spec.type != Type::adafactor)
    params["betas"] = {spec.beta1, spec.beta2};
  if (spec.type == Type::adamw || spec.type == Type::lamb || spec.type == Type::muon)
    params["eps"] = spec.eps;
  if (spec.l2) params["adam_w_mode"] = false;
  if (!spec.bias_correction) params["bias_correction"] = false;
  if (spec.freeze_step > 0) params["freeze_step"] = spec.freeze_step;
  if (spec.variance_scaler > 0) params["var_update_scaler"] = spec.variance_scaler;
  if (spec.type == Type::lamb) {
    if (spec.eps_inside) params["eps_inside_sqrt"] = true;
    params["min_coeff"] = spec.least_trust;
    params["max_coeff"] = spec.most_trust;
    if (const auto& trust = spec.frozen_trust) {
      params["coeff_beta"] = trust->beta;
      params["factor_max"] = trust->most;
      params["factor_min"] = trust->least;
      params["factor_threshold"] = trust->threshold;
    }
  }
  if (spec.type == Type::sgd || spec.type == Type::lars || spec.type == Type::muon)
    params["momentum"] = spec.momentum;
  if (spec.type == Type::sgd || spec.type == Type::muon) params["nesterov"] = spec.nesterov;
  if (spec.type == Type::lars) params["trust_coefficient"] = spec.trust;
  if (spec.type == Type::adafactor) {
    params["decay_rate"] = spec.decay_power;
    params["clip_threshold"] = spec.clip;
    params["parameter_eps"] = spec.parameter_eps;
  }
  if (spec.type == Type::muon) {
    params["ns_steps"] = spec.iterations;
    params["adam_lr"] = spec.adam_rate * config.learning_rate;
  }
  params["weight_decay"] = spec.weight_decay;
  if (spec.decay_all) params["decay"] = "all";
  Json json = {{"type", name_of(spec)}, {"params", params}};
  if (!spec.groups.empty()) json["groups"] = groups_json(config);
  return json;
}

}  // namespace onefold
