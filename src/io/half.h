// The conversion of values between a model file's type and the program's. base/half.h says how
// values are rounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/half.h"

namespace onefold {

// Whether to_f32 and from_f32 know this type of a file of tensors: F32, F16 or BF16.
bool is_model_dtype(const std::string& dtype);
// Whether to_f32 does: these, F64 (which it rounds), F8_E4M3 and F8_E5M2.
bool is_float_dtype(const std::string& dtype);

// dst.size() values of the type `dtype`, which may lie at any alignment.
void to_f32(const std::string& dtype, std::span<const std::byte> src, std::span<float> dst);
// Those and integers, for looking at values: integers of 64 bits are rounded to the nearest double,
// and truth is 1.
bool is_number_dtype(const std::string& dtype);
void to_f64(const std::string& dtype, std::span<const std::byte> src, std::span<double> dst);
// Returns the number of finite values that became infinite.
int64_t from_f32(const std::string& dtype, std::span<const float> src, std::span<std::byte> dst);

}  // namespace onefold
