// A tensor is a view: a pointer, a type, rows and columns, and the distance between rows. It owns
// nothing; the ledger owns all memory. Two dimensions are enough everywhere: tokens by features, or
// a parameter as [out, in]; a vector has one row. On the dry device the pointer is null and only
// the sizes are real.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "base/half.h"

namespace onefold {

enum class DType : uint8_t { f32, i32, f64, i64, bf16, f16, u8 };

// Of one element.
inline constexpr int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::u8:
      return 1;
  }
  return 0;
}

inline constexpr const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::i32:
      return "i32";
    case DType::f64:
      return "f64";
    case DType::i64:
      return "i64";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::u8:
      return "u8";
  }
  return "?";
}

// The type of the tensors whose elements are T.
template <class T>
inline constexpr DType dtype_of = T::type_without_a_dtype;
template <>
inline constexpr DType dtype_of<uint8_t> = DType::u8;
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<int64_t> = DType::i64;
template <>
inline constexpr DType dtype_of<Bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<F16> = DType::f16;

// A tensor of a type that an operation does not take.
class TypeError : public InternalError {
 public:
  using InternalError::InternalError;
};

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
  template <class T>
  T* as() const {
    if (dtype != dtype_of<T>)
      throw TypeError(fmt::format("expected a tensor of {}, got {}", dtype_name(dtype_of<T>),
                                  dtype_name(dtype)));
    return static_cast<T*>(data);
  }
  float* f32() const { return as<float>(); }
  int32_t* i32() const { return as<int32_t>(); }
  double* f64() const { return as<double>(); }
  int64_t* i64() const { return as<int64_t>(); }
  uint8_t* u8() const { return as<uint8_t>(); }
  // Untyped memory, such as scratch, as floats.
  float* as_f32() const { return static_cast<float*>(data); }

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
