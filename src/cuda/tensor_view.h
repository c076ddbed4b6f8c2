// Tensors as the card's kernels take them.
#pragma once

#include "cuda/ops.h"
#include "tensor/tensor.h"

namespace onefold::cuda {

inline Type type_of(const Tensor& t) {
  switch (t.dtype) {
    case DType::f32:
      return Type::f32;
    case DType::bf16:
      return Type::bf16;
    case DType::f16:
      return Type::f16;
    default:
      throw TypeError(
          fmt::format("expected a tensor of f32, bf16 or f16, got {}", dtype_name(t.dtype)));
  }
}

inline Matrix view(const Tensor& t) { return {t.data, t.rows, t.cols, t.stride, type_of(t)}; }
// Null where empty.
inline Matrix view_or_null(const Tensor& t) {
  return t.empty() ? Matrix{nullptr, 0, 0, 0, type_of(t)} : view(t);
}
inline Vector vector(const Tensor& t) { return {t.empty() ? nullptr : t.flat().data, type_of(t)}; }

}  // namespace onefold::cuda
