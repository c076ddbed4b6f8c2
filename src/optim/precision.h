// The number types of training.
#pragma once

#include "tensor/tensor.h"

namespace onefold {

struct Precision {
  DType compute = DType::f32;    // of parameters and activations: f32, bf16 or f16
  DType gradients = DType::f32;  // of parameters: f32, or as `compute`
  // Parameters of 16 bits have a copy in fp32, kept with the optimizer's state, that is stepped and
  // rounded. Without one they are stepped themselves, by stochastic rounding.
  bool master = true;
  // Of AdamW's moments or SGD's momentum: f32, or bf16 by stochastic rounding.
  DType moments = DType::f32;

  bool has_master() const { return compute != DType::f32 && master; }
  bool operator==(const Precision&) const = default;
};

}  // namespace onefold
