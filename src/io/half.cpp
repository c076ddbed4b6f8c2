#include "io/half.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "tensor/convert.h"

namespace onefold {
namespace {

DType dtype_named(const std::string& dtype) {
  require(is_model_dtype(dtype), "no conversion from {}", dtype);
  if (dtype == "F32") return DType::f32;
  return dtype == "F16" ? DType::f16 : DType::bf16;
}

// Without infinities: the largest bits are NaN.
float e4m3_to_f32(uint8_t bits) {
  if ((bits & 0x7F) == 0x7F) return std::numeric_limits<float>::quiet_NaN();
  const int exponent = bits >> 3 & 0xF, fraction = bits & 7;
  const float value = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                    : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  return bits & 0x80 ? -value : value;
}

// The upper half of an F16.
float e5m2_to_f32(uint8_t bits) { return f16_to_f32(static_cast<uint16_t>(bits << 8)); }

template <typename T, typename To, typename Widen>
void widen_each(std::span<const std::byte> src, std::span<To> dst, Widen widen) {
  require(src.size() == dst.size() * sizeof(T), "{} bytes for {} values", src.size(), dst.size());
  for (size_t i = 0; i < dst.size(); ++i) {
    T value;
    std::memcpy(&value, src.data() + i * sizeof(T), sizeof(T));
    dst[i] = static_cast<To>(widen(value));
  }
}

}  // namespace

bool is_model_dtype(const std::string& dtype) {
  return dtype == "F32" || dtype == "F16" || dtype == "BF16";
}

bool is_float_dtype(const std::string& dtype) {
  return is_model_dtype(dtype) || dtype == "F64" || dtype == "F8_E4M3" || dtype == "F8_E5M2";
}

bool is_number_dtype(const std::string& dtype) {
  constexpr std::array<std::string_view, 9> kIntegers = {"I64", "I32", "I16", "I8",  "U64",
                                                         "U32", "U16", "U8",  "BOOL"};
  return is_float_dtype(dtype) || std::ranges::find(kIntegers, dtype) != kIntegers.end();
}

void to_f32(const std::string& dtype, std::span<const std::byte> src, std::span<float> dst) {
  const auto identity = [](auto value) { return value; };
  if (dtype == "F64") return widen_each<double>(src, dst, identity);
  if (dtype == "F8_E4M3") return widen_each<uint8_t>(src, dst, e4m3_to_f32);
  if (dtype == "F8_E5M2") return widen_each<uint8_t>(src, dst, e5m2_to_f32);
  widen(dtype_named(dtype), src, dst);
}

void to_f64(const std::string& dtype, std::span<const std::byte> src, std::span<double> dst) {
  const auto identity = [](auto value) { return value; };
  if (dtype == "F64") return widen_each<double>(src, dst, identity);
  if (dtype == "F32") return widen_each<float>(src, dst, identity);
  if (dtype == "F16")
    return widen_each<uint16_t>(src, dst, [](uint16_t bits) { return f16_to_f32(bits); });
  if (dtype == "BF16")
    return widen_each<uint16_t>(src, dst, [](uint16_t bits) { return bf16_to_f32(bits); });
  if (dtype == "F8_E4M3") return widen_each<uint8_t>(src, dst, e4m3_to_f32);
  if (dtype == "F8_E5M2") return widen_each<uint8_t>(src, dst, e5m2_to_f32);
  if (dtype == "I64") return widen_each<int64_t>(src, dst, identity);
  if (dtype == "I32") return widen_each<int32_t>(src, dst, identity);
  if (dtype == "I16") return widen_each<int16_t>(src, dst, identity);
  if (dtype == "I8") return widen_each<int8_t>(src, dst, identity);
  if (dtype == "U64") return widen_each<uint64_t>(src, dst, identity);
  if (dtype == "U32") return widen_each<uint32_t>(src, dst, identity);
  if (dtype == "U16") return widen_each<uint16_t>(src, dst, identity);
  if (dtype == "U8") return widen_each<uint8_t>(src, dst, identity);
  if (dtype == "BOOL") return widen_each<uint8_t>(src, dst, [](uint8_t v) { return v != 0; });
  internal_error("no conversion from {}", dtype);
}

int64_t from_f32(const std::string& dtype, std::span<const float> src, std::span<std::byte> dst) {
  return narrow(dtype_named(dtype), src, dst);
}

}  // namespace onefold
