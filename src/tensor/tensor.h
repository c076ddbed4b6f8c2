// A tensor is a view: a pointer, a type, rows and columns, and the distance between rows. It owns
// nothing; the ledger owns all memory. Two dimensions are enough everywhere: tokens by features, or
// a parameter as [out, in]; a vector has one row. On the dry device the pointer is null and only
// the sizes are real.
#pragma once

#include <cstdint>

#include "base/error.h"

namespace onefold {

enum class DType : uint8_t { f32, i32 };

inline constexpr int64_t dtype_bytes(DType) { return 4; }
inline const char* dtype_name(DType dtype) { return dtype == DType::f32 ? "f32" : "i32"; }

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements from one row to the next

  int64_t elems() const { return rows * cols; }
  bool empty() const { return rows == 0 || cols == 0; }
  bool contiguous() const { return stride == cols || rows <= 1; }

  // The only way to the elements: a tensor of another type is a bug in the caller.
  float* f32() const {
    require(dtype == DType::f32, "expected a f32 tensor, got {}", dtype_name(dtype));
    return static_cast<float*>(data);
  }
  int32_t* i32() const {
    require(dtype == DType::i32, "expected an i32 tensor, got {}", dtype_name(dtype));
    return static_cast<int32_t*>(data);
  }

  Tensor row_range(int64_t begin, int64_t count) const {
    require(begin >= 0 && count >= 0 && begin + count <= rows, "rows {}+{} of {}", begin, count,
            rows);
    return {offset(begin * stride), dtype, count, cols, stride};
  }
  Tensor col_range(int64_t begin, int64_t count) const {
    require(begin >= 0 && count >= 0 && begin + count <= cols, "columns {}+{} of {}", begin, count,
            cols);
    return {offset(begin), dtype, rows, count, stride};
  }
  // The same elements as another shape; only for contiguous tensors.
  Tensor reshaped(int64_t new_rows, int64_t new_cols) const {
    require(contiguous() && new_rows * new_cols == elems(), "reshape {}x{} to {}x{}", rows, cols,
            new_rows, new_cols);
    return {data, dtype, new_rows, new_cols, new_cols};
  }
  Tensor flat() const { return reshaped(1, elems()); }

 private:
  void* offset(int64_t elems) const {
    return data ? static_cast<char*>(data) + elems * dtype_bytes(dtype) : nullptr;
  }
};

inline Tensor matrix(void* data, int64_t rows, int64_t cols, DType dtype = DType::f32) {
  return {data, dtype, rows, cols, cols};
}

}  // namespace onefold
