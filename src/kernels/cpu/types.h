// From a tensor's type to the type of its elements: f32, bf16 and f16, which the kernels take.
#pragma once

#include "tensor/tensor.h"

namespace onefold::cpu {

// body(T()) with T the elements' type.
template <class Body>
auto with_type(DType dtype, const char* kernel, const Body& body) {
  switch (dtype) {
    case DType::f32:
      return body(float());
    case DType::bf16:
      return body(Bf16());
    case DType::f16:
      return body(F16());
    default:
      throw TypeError(fmt::format("{} takes no tensor of {}", kernel, dtype_name(dtype)));
  }
}

// The elements of a tensor that may be empty.
template <class T>
T* or_null(const Tensor& x) {
  return x.empty() ? nullptr : x.as<T>();
}

// Elements [begin, end) of a row; of a tensor that is empty, nothing.
inline Tensor piece_of(const Tensor& x, int64_t row, int64_t begin, int64_t end) {
  return x.empty() ? Tensor{} : x.row_range(row, 1).col_range(begin, end - begin);
}

}  // namespace onefold::cpu
