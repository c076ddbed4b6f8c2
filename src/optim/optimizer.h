// Which optimizer, with which constants. The arithmetic is a kernel; how often and on what it runs
// is the engine's affair.
#pragma once

#include "kernels/kernels.h"

namespace onefold {

struct OptimizerSpec {
  enum class Type : uint8_t { adamw, sgd };
  Type type = Type::adamw;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool nesterov = false;

  // State tensors kept for each parameter: AdamW's two moments, SGD's momentum if it has one.
  int state_count() const { return type == Type::adamw ? 2 : (momentum != 0 ? 1 : 0); }
  // Its name in checkpoints.
  const char* state_name(int index) const {
    if (type == Type::sgd) return "momentum";
    return index == 0 ? "moment1" : "moment2";
  }
};

// One optimizer step (counted from 1) on one parameter and its state.
void optimizer_step(Kernels& kernels, const OptimizerSpec& spec, int64_t step, double learning_rate,
                    bool decay, double gradient_scale, Tensor params, Tensor grads,
                    std::span<const Tensor> state);

}  // namespace onefold
