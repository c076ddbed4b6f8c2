// "optimizer", and with it "scheduler" (config_schedule.cpp): either may set the learning rate.
#include <algorithm>
#include <array>
#include <cctype>

#include "base/error.h"
#include "base/text.h"
#include "config/sections.h"

namespace onefold {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// Names of optimizers are compared without regard to case, as DeepSpeed does.
std::string optimizer_type(JsonObject& optimizer) {
  const std::string given = optimizer.get<std::string>("type", "AdamW");
  const std::string type = lower(given);
  if (type == "adamw" || type == "adam" || type == "sgd") return type;
  static constexpr std::array<std::string_view, 10> kOthers = {
      "lamb",   "onebitadam", "onebitlamb", "zerooneadam", "lion",
      "muadam", "muadamw",    "musgd",      "muon",        "adagrad"};
  if (std::find(kOthers.begin(), kOthers.end(), type) != kOthers.end())
    optimizer.fail("type", fmt::format("is \"{}\", a DeepSpeed optimizer that is not supported; "
                                       "there are AdamW, Adam and SGD",
                                       given));
  const std::vector<std::string> names = {"AdamW", "Adam", "SGD"};
  optimizer.fail("type", fmt::format("must be one of {}, not \"{}\"{}", join(names, ", "), given,
                                     did_you_mean(given, names)));
}

// A switch of DeepSpeed's of which only one value is supported.
void expect(JsonObject& params, std::string_view key, bool right, std::string_view why) {
  if (params.get<bool>(key, right) != right)
    params.fail(key, fmt::format("must be {}: {}", right, why));
}

void read_adam(JsonObject& params, const std::string& type, OptimizerSpec& spec) {
  spec.type = OptimizerSpec::Type::adamw;
  if (params.has("betas")) {
    const auto betas = params.require<std::vector<double>>("betas");
    const auto bad = [](double beta) { return !(beta >= 0 && beta < 1); };
    if (betas.size() != 2 || bad(betas[0]) || bad(betas[1]))
      params.fail("betas", fmt::format("must be two numbers from 0 to less than 1, not {}",
                                       brief_json(params.value()["betas"])));
    spec.beta1 = betas[0];
    spec.beta2 = betas[1];
  }
  spec.eps = params.positive("eps", 1e-8);
  // With DeepSpeed, "Adam" decays weights like AdamW unless adam_w_mode is false; without decay
  // they are the same.
  const bool adam_w_mode = params.get<bool>("adam_w_mode", true);
  if (!adam_w_mode && type == "adamw")
    params.fail("adam_w_mode", "has no effect on AdamW; use the type \"Adam\"");
  if (!adam_w_mode && spec.weight_decay != 0)
    params.fail("adam_w_mode",
                "must be true: Adam with its weight decay inside the gradient is not supported; "
                "or set weight_decay to 0");
  expect(params, "bias_correction", true, "Adam without bias correction is not supported");
  expect(params, "amsgrad", false, "AMSGrad is not supported");
  expect(params, "fp32_optimizer_states", true, "moments are always in fp32");
  expect(params, "torch_adam", false, "there is one implementation of Adam here");
  for (const std::string_view key : {"momentum", "nesterov", "dampening"})
    params.no_effect(key, "it belongs to SGD, and the optimizer is AdamW");
}

void read_sgd(JsonObject& params, OptimizerSpec& spec) {
  spec.type = OptimizerSpec::Type::sgd;
  spec.momentum = params.fraction("momentum", 0);
  spec.nesterov = params.get<bool>("nesterov", false);
  if (spec.nesterov && spec.momentum == 0)
    params.fail("nesterov", "has no effect without momentum; set momentum");
  if (params.get<double>("dampening", 0) != 0)
    params.fail("dampening", "must be 0: SGD with dampening is not supported");
  for (const std::string_view key : {"betas", "eps", "adam_w_mode", "bias_correction", "amsgrad"})
    params.no_effect(key, "it belongs to AdamW, and the optimizer is SGD");
}

}  // namespace

void read_optimizer(JsonObject& root, Config& config) {
  JsonObject optimizer = root.object("optimizer");
  const std::string type = optimizer_type(optimizer);
  if (optimizer.get<bool>("legacy_fusion", false))
    optimizer.fail("legacy_fusion", "is a detail of DeepSpeed's CUDA optimizers; leave it out");
  JsonObject params = optimizer.object("params");
  params.allow_auto({"betas", "eps", "weight_decay"});
  const bool lr_given = params.has("lr");
  config.learning_rate = params.positive("lr", 1e-3);
  config.optimizer.weight_decay = params.non_negative("weight_decay", 0);
  if (type == "sgd")
    read_sgd(params, config.optimizer);
  else
    read_adam(params, type, config.optimizer);
  params.no_effect("max_grad_norm", "clipping is set by gradient_clipping at the top");
  params.finish();
  optimizer.finish();

  if (!root.has("scheduler")) return;
  JsonObject scheduler = root.object("scheduler");
  config.schedule = read_schedule(scheduler, config.learning_rate, lr_given);
  scheduler.finish();
}

Json optimizer_json(const Config& config) {
  const OptimizerSpec& spec = config.optimizer;
  const bool adamw = spec.type == OptimizerSpec::Type::adamw;
  Json params;
  params["lr"] = config.learning_rate;
  if (adamw) {
    params["betas"] = {spec.beta1, spec.beta2};
    params["eps"] = spec.eps;
  } else {
    params["momentum"] = spec.momentum;
    params["nesterov"] = spec.nesterov;
  }
  params["weight_decay"] = spec.weight_decay;
  return {{"type", adamw ? "AdamW" : "SGD"}, {"params", params}};
}

}  // namespace onefold
