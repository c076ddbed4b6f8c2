#include "optim/optimizer.h"

#include <cmath>

namespace onefold {

std::vector<OptimizerState> OptimizerSpec::states(const Precision& precision) const {
  std::vector<OptimizerState> list;
  if (precision.has_master()) list.push_back({kMaster});
  if (type == Type::adamw) {
    list.push_back({"moment1"});
    list.push_back({"moment2"});
  } else if (momentum != 0) {
    list.push_back({"momentum"});
  }
  return list;
}

void optimizer_step(Kernels& kernels, const OptimizerSpec& spec, int64_t step, double learning_rate,
                    bool decay, const StepControl& control, const Stepped& stepped,
                    std::span<const Tensor> state) {
  const double weight_decay = decay ? spec.weight_decay : 0.0;
  if (spec.type == OptimizerSpec::Type::sgd) {
    const Sgd hyper{.learning_rate = static_cast<float>(learning_rate),
                    .momentum = static_cast<float>(spec.momentum),
                    .weight_decay = static_cast<float>(weight_decay),
                    .nesterov = spec.nesterov,
                    .first = step == 1};
    kernels.sgd(hyper, control, stepped, state.empty() ? Tensor{} : state[0].flat());
    return;
  }
  const auto t = static_cast<double>(step);
  const AdamW hyper{.learning_rate = static_cast<float>(learning_rate),
                    .beta1 = static_cast<float>(spec.beta1),
                    .beta2 = static_cast<float>(spec.beta2),
                    .eps = static_cast<float>(spec.eps),
                    .weight_decay = static_cast<float>(weight_decay),
                    .bias_correction1 = static_cast<float>(1 - std::pow(spec.beta1, t)),
                    .bias_correction2 = static_cast<float>(1 - std::pow(spec.beta2, t))};
  kernels.adamw(hyper, control, stepped, state[0].flat(), state[1].flat());
}

}  // namespace onefold
