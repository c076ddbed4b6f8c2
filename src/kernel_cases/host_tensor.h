// Tensors in host memory, of which cases are made. Each owns its memory to the last element, so
// that nothing lies behind it by accident.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace onefold::cases {

using Doubles = std::vector<double>;

// What gaps, guards and scratch hold: all bits set are no number in any floating-point type, and -1
// as an integer. A kernel that reads them shows it, and none may write them.
inline constexpr std::byte kNothing{0xFF};

class HostTensor {
 public:
  HostTensor() = default;
  // Zeros, rows `gap` elements apart.
  HostTensor(int64_t rows, int64_t cols, int64_t gap = 0, DType dtype = DType::f32);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t elems() const { return rows_ * cols_; }
  DType dtype() const { return dtype_; }
  std::span<std::byte> bytes() { return bytes_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  // Of f32, bf16 or f16; what is set is rounded to the nearest.
  float at(int64_t row, int64_t col) const { return static_cast<float>(number(row, col)); }
  void set(int64_t row, int64_t col, float value);

  // The same sizes and type elsewhere.
  Tensor over(void* data) const { return {data, dtype_, rows_, cols_, stride_}; }
  // The same values, rounded to another of f32, bf16 and f16.
  HostTensor as(DType dtype) const;

  void fill(float value);
  // No number anywhere: what a result holds before it is written.
  HostTensor& clear();

  double number(int64_t row, int64_t col) const;  // of any type
  Doubles doubles() const;                        // row by row
  bool gaps_untouched() const;
  // Of one element.
  std::span<const std::byte> bits(int64_t row, int64_t col) const;

 private:
  size_t at_(int64_t row, int64_t col) const { return static_cast<size_t>(row * stride_ + col); }

  int64_t rows_ = 0, cols_ = 0, stride_ = 0;
  DType dtype_ = DType::f32;
  std::vector<std::byte> bytes_;
};

// [1, n].
HostTensor row_of(const std::vector<float>& values);
HostTensor row_of(const std::vector<double>& values);
HostTensor row_of(const std::vector<int32_t>& values);
HostTensor row_of(const std::vector<int64_t>& values);

// Standard normals times `scale`, plus `mean`; `seed` names the stream. They repeat after 2^20:
// making them must not take longer than what they are made for.
HostTensor normals(int64_t rows, int64_t cols, uint64_t seed, int64_t gap = 0, float scale = 1,
                   float mean = 0);
// The value that `dtype` (f32, bf16 or f16) holds for it.
float rounded(DType dtype, float value);

// [1, count] i32 in [0, limit).
HostTensor random_ints(int64_t count, int64_t limit, uint64_t seed);

}  // namespace onefold::cases
