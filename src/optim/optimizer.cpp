#include "optim/optimizer.h"

#include <cmath>

#include "base/block8.h"

namespace onefold {

std::vector<OptimizerState> OptimizerSpec::states(const Precision& precision) const {
  std::vector<OptimizerState> list;
  if (precision.has_master()) list.push_back({kMaster});
  if (type == Type::adamw) {
    for (const std::string name : {"moment1", "moment2"}) {
      list.push_back({name, precision.moments});
      if (precision.moments == DType::u8)
        list.push_back({name + kScaleSuffix, DType::f32, kBlock8});
    }
  } else if (momentum != 0) {
    list.push_back({"momentum", precision.moments});
  }
  return list;
}

namespace {

SgdStep sgd_step(const OptimizerSpec& spec, int64_t step, const StepRates& rates,
                 const SteppedParam& param, double weight_decay) {
  return {{.learning_rate = static_cast<float>(rates.learning_rate),
           .momentum = static_cast<float>(spec.momentum),
           .weight_decay = static_cast<float>(weight_decay),
           .nesterov = spec.nesterov,
           .first = step == 1},
          param.stepped,
          param.state.empty() ? Tensor{} : param.state[0].flat()};
}

AdamWStep adamw_step(const OptimizerSpec& spec, int64_t step, const StepRates& rates,
                     const SteppedParam& param, double weight_decay) {
  const auto [beta1, beta2] = rates.betas.value_or(std::pair(spec.beta1, spec.beta2));
  const auto correction = [&](double beta) {
    return spec.bias_correction ? static_cast<float>(1 - std::pow(beta, static_cast<double>(step)))
                                : 1.0f;
  };
  const AdamW hyper{.learning_rate = static_cast<float>(rates.learning_rate),
                    .beta1 = static_cast<float>(beta1),
                    .beta2 = static_cast<float>(beta2),
                    .eps = static_cast<float>(spec.eps),
                    .weight_decay = static_cast<float>(weight_decay),
                    .bias_correction1 = correction(beta1),
                    .bias_correction2 = correction(beta2),
                    .l2 = spec.l2};
  const std::vector<Tensor>& state = param.state;
  if (state.size() == 2) return {hyper, param.stepped, state[0].flat(), state[1].flat()};
  return {
      hyper, param.stepped, {state[0].flat(), state[1].flat()}, {state[2].flat(), state[3].flat()}};
}

}  // namespace

void optimizer_step(Kernels& kernels, const OptimizerSpec& spec, int64_t step,
                    const StepRates& rates, const StepControl& control,
                    std::span<const SteppedParam> params) {
  const auto all = [&](auto step_of) {
    std::vector<decltype(step_of(spec, step, rates, params[0], 0.0))> list;
    for (const SteppedParam& param : params)
      list.push_back(step_of(spec, step, rates, param,
                             param.decay || spec.decay_all ? spec.weight_decay : 0.0));
    return list;
  };
  if (spec.type == OptimizerSpec::Type::sgd)
    kernels.sgd(control, all(sgd_step));
  else
    kernels.adamw(control, all(adamw_step));
}

}  // namespace onefold
