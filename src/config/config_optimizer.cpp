// "optimizer", and with it "scheduler" (config_schedule.cpp): either may set the learning rate.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"
#include "config/sections.h"

namespace onefold {
namespace {

using Group = JsonReport::Group;

// Names of optimizers are compared without regard to case, as DeepSpeed does. "" after a problem.
std::string optimizer_type(JsonObject& optimizer) {
  const std::string given = optimizer.get<std::string>("type", "AdamW");
  const std::string type = lower(given);
  if (type == "adamw" || type == "adam" || type == "sgd") return type;
  static constexpr std::array<std::string_view, 11> kOthers = {
      "lamb", "onebitadam", "onebitlamb", "zerooneadam", "lion",   "muadam",
      "muon", "muadamw",    "musgd",      "adagrad",     "rmsprop"};
  const std::vector<std::string> names = {"AdamW", "Adam", "SGD"};
  if (std::find(kOthers.begin(), kOthers.end(), type) != kOthers.end())
    optimizer.refuse(Group::missing, "type",
                     fmt::format("is \"{}\", an optimizer that is not supported; there are AdamW, "
                                 "Adam and SGD",
                                 given));
  else
    optimizer.refuse(Group::unknown, "type",
                     fmt::format("must be one of {}, not \"{}\"{}", join(names, ", "), given,
                                 did_you_mean(given, names)));
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

void read_adam(JsonObject& params, const std::string& type, OptimizerSpec& spec) {
  spec.type = OptimizerSpec::Type::adamw;
  read_betas(params, spec);
  spec.eps = params.positive("eps", 1e-8);
  // With DeepSpeed, "Adam" decays weights like AdamW unless adam_w_mode is false.
  spec.l2 = !params.get<bool>("adam_w_mode", true);
  if (spec.l2 && type == "adamw")
    params.refuse(Group::conflict, "adam_w_mode", "has no effect on AdamW; use the type \"Adam\"");
  spec.bias_correction = params.get<bool>("bias_correction", true);
  if (params.get<bool>("amsgrad", false))
    params.refuse(Group::missing, "amsgrad", "must be false: AMSGrad is not supported");
  // Ways to compute the same: moments are in fp32, and each optimizer has one implementation.
  for (const std::string_view key :
       {"amsgrad", "torch_adam", "fp32_optimizer_states", "set_grad_none", "foreach", "fused"}) {
    params.get<bool>(key, false);
    params.idle(key);
  }
  for (const std::string_view key : {"momentum", "nesterov", "dampening"})
    params.no_effect(key, "it belongs to SGD, and the optimizer is AdamW");
}

void read_sgd(JsonObject& params, OptimizerSpec& spec) {
  spec.type = OptimizerSpec::Type::sgd;
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

void read_params(JsonObject& params, const std::string& type, Config& config) {
  OptimizerSpec& spec = config.optimizer;
  config.learning_rate =
      params.positive("lr", params.is_auto("lr") ? automatic_rate(config) : 1e-3);
  spec.weight_decay = params.non_negative("weight_decay", 0);
  spec.decay_all = params.choice("decay", {"matrices", "all"}, "matrices") == "all";
  if (type == "sgd")
    read_sgd(params, spec);
  else
    read_adam(params, type, spec);
  params.no_effect("max_grad_norm", "clipping is set by gradient_clipping at the top");
  params.finish();
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
  if (!type.empty()) read_params(params, type, config);
  optimizer.finish();

  if (!root.has("scheduler")) return;
  const bool given = params.has("lr");
  const double lr = config.learning_rate;
  JsonObject scheduler = root.object("scheduler");
  config.schedule = read_schedule(scheduler, config.learning_rate);
  scheduler.finish();
  if (given && config.learning_rate != lr)
    config.notes.remarks.push_back(
        fmt::format("optimizer.params.lr {} is replaced by the schedule's {}, as with DeepSpeed",
                    lr, config.learning_rate));
}

Json optimizer_json(const Config& config) {
  const OptimizerSpec& spec = config.optimizer;
  const bool adamw = spec.type == OptimizerSpec::Type::adamw;
  Json params;
  params["lr"] = config.learning_rate;
  if (adamw) {
    params["betas"] = {spec.beta1, spec.beta2};
    params["eps"] = spec.eps;
    if (spec.l2) params["adam_w_mode"] = false;
    if (!spec.bias_correction) params["bias_correction"] = false;
  } else {
    params["momentum"] = spec.momentum;
    params["nesterov"] = spec.nesterov;
  }
  params["weight_decay"] = spec.weight_decay;
  if (spec.decay_all) params["decay"] = "all";
  return {{"type", !adamw ? "SGD" : spec.l2 ? "Adam" : "AdamW"}, {"params", params}};
}

}  // namespace onefold
