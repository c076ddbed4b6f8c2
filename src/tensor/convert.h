// Values between a tensor's type and fp32, on the host. base/half.h says how they are rounded.
#pragma once

#include <span>

#include "tensor/tensor.h"

namespace onefold {

// Values of f32, bf16 or f16; `src` may lie at any alignment.
void widen(DType dtype, std::span<const std::byte> src, std::span<float> dst);
// Returns the number of finite values that became infinite.
int64_t narrow(DType dtype, std::span<const float> src, std::span<std::byte> dst);

}  // namespace onefold
