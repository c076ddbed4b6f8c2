// Rows of any of the kernels' types to floats and back, for kernels that hand them to a library.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace onefold::cpu {

// dst: rows `stride` floats apart.
void widen_rows(const Tensor& src, float* dst, int64_t stride);
// Rounded to the nearest even.
void narrow_rows(const float* src, int64_t stride, const Tensor& dst);

}  // namespace onefold::cpu
