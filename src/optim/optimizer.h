// Which optimizer, with which constants, and what it keeps of each parameter. The arithmetic is a
// kernel; how often and on what it runs is the engine's affair.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "optim/precision.h"

namespace onefold {

// One tensor of state beside a parameter: what is allocated, sharded, saved and planned.
struct OptimizerState {
  std::string name;  // in checkpoints
  DType dtype = DType::f32;
  int64_t block = 1;  // parameter elements that share one element of it

  int64_t elements(int64_t parameter_elems) const { return (parameter_elems + block - 1) / block; }
};

inline constexpr const char* kMaster = "master";

struct OptimizerSpec {
  enum class Type : uint8_t { adamw, sgd };
  Type type = Type::adamw;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decay_all = false;       // decay: "all"; else matrices and embedding tables alone
  bool l2 = false;              // Adam: the decay is part of the gradient
  bool bias_correction = true;  // of the moments, which start at 0
  double momentum = 0;
  bool nesterov = false;

  // The master copy, if there is one; then AdamW's two moments, or SGD's momentum if it has one.
  std::vector<OptimizerState> states(const Precision& precision = {}) const;
};

// What a schedule sets for one step.
struct StepRates {
  double learning_rate = 0;
  std::optional<std::pair<double, double>> betas = {};  // instead of the optimizer's own

  StepRates(double rate) : learning_rate(rate) {}  // NOLINT: mostly a rate is all there is
};

// A parameter and its state: states(), but for the master, which is `stepped`'s.
struct SteppedParam {
  bool decay;  // whether it is a matrix or a table
  Stepped stepped;
  std::vector<Tensor> state;
};

// One optimizer step (counted from 1) on these parameters.
void optimizer_step(Kernels& kernels, const OptimizerSpec& spec, int64_t step,
                    const StepRates& rates, const StepControl& control,
                    std::span<const SteppedParam> params);

}  // namespace onefold
