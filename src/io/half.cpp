#include "io/half.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace onefold {
namespace {

constexpr uint32_t kSign = 0x80000000u, kInfinity = 0x7F800000u;

// Drops the lowest `count` bits of a magnitude, to nearest, ties to even. A carry out of the
// fraction raises the exponent, which is what rounding up to the next power of two means.
uint32_t round_off(uint32_t magnitude, uint32_t count) {
  const uint32_t half = 1u << (count - 1);
  const uint32_t odd = (magnitude >> count) & 1;
  return (magnitude + half - 1 + odd) >> count;
}

template <float (*widen)(uint16_t)>
void widen_all(std::span<const std::byte> src, std::span<float> dst) {
  for (size_t i = 0; i < dst.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, src.data() + i * sizeof(bits), sizeof(bits));
    dst[i] = widen(bits);
  }
}

template <uint16_t (*narrow)(float), uint16_t infinity>
int64_t narrow_all(std::span<const float> src, std::span<std::byte> dst) {
  int64_t overflows = 0;
  for (size_t i = 0; i < src.size(); ++i) {
    const uint16_t bits = narrow(src[i]);
    overflows += (bits & 0x7FFF) == infinity && std::isfinite(src[i]);
    std::memcpy(dst.data() + i * sizeof(bits), &bits, sizeof(bits));
  }
  return overflows;
}

template <typename T, typename Widen>
void widen_to_f64(std::span<const std::byte> src, std::span<double> dst, Widen widen) {
  require(src.size() == dst.size() * sizeof(T), "{} bytes for {} values", src.size(), dst.size());
  for (size_t i = 0; i < dst.size(); ++i) {
    T value;
    std::memcpy(&value, src.data() + i * sizeof(T), sizeof(T));
    dst[i] = static_cast<double>(widen(value));
  }
}

}  // namespace

float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t magnitude = bits & 0x7FFF;
  if (magnitude >= 0x7C00)  // infinity or NaN: the fraction moves to the top of the wider one
    return std::bit_cast<float>(sign | kInfinity | (magnitude & 0x3FF) << 13);
  if (magnitude < 0x400) {  // subnormal: a multiple of 2^-24, which fp32 holds as a normal number
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
}

float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits & kSign) >> 16);
  const uint32_t magnitude = bits & ~kSign;
  if (magnitude > kInfinity) return sign | 0x7E00;     // NaN
  if (magnitude >= 0x477FF000u) return sign | 0x7C00;  // 65520 and more round to infinity
  if (magnitude < 0x38800000u) {                       // below 2^-14: a multiple of 2^-24
    if (magnitude < 0x33000000u) return sign;          // below half of the smallest
    const uint32_t exponent = magnitude >> 23;
    const uint32_t fraction = (magnitude & 0x7FFFFF) | 0x800000;
    return sign | static_cast<uint16_t>(round_off(fraction, 126 - exponent));
  }
  return sign | static_cast<uint16_t>(round_off(magnitude - ((127u - 15u) << 23), 13));
}

uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits & kSign) >> 16);
  const uint32_t magnitude = bits & ~kSign;
  if (magnitude > kInfinity) return sign | 0x7FC0;
  return sign | static_cast<uint16_t>(round_off(magnitude, 16));
}

bool is_model_dtype(const std::string& dtype) {
  return dtype == "F32" || dtype == "F16" || dtype == "BF16";
}

void to_f32(const std::string& dtype, std::span<const std::byte> src, std::span<float> dst) {
  require(is_model_dtype(dtype) && src.size() == dst.size() * (dtype == "F32" ? 4 : 2),
          "{} bytes of {} for {} values", src.size(), dtype, dst.size());
  if (dst.empty()) return;
  if (dtype == "F32")
    std::memcpy(dst.data(), src.data(), src.size());
  else if (dtype == "F16")
    widen_all<f16_to_f32>(src, dst);
  else
    widen_all<bf16_to_f32>(src, dst);
}

void to_f64(const std::string& dtype, std::span<const std::byte> src, std::span<double> dst) {
  const auto identity = [](auto value) { return value; };
  if (dtype == "F64") return widen_to_f64<double>(src, dst, identity);
  if (dtype == "F32") return widen_to_f64<float>(src, dst, identity);
  if (dtype == "F16")
    return widen_to_f64<uint16_t>(src, dst, [](uint16_t bits) { return f16_to_f32(bits); });
  if (dtype == "BF16")
    return widen_to_f64<uint16_t>(src, dst, [](uint16_t bits) { return bf16_to_f32(bits); });
  if (dtype == "I64") return widen_to_f64<int64_t>(src, dst, identity);
  if (dtype == "I32") return widen_to_f64<int32_t>(src, dst, identity);
  if (dtype == "I16") return widen_to_f64<int16_t>(src, dst, identity);
  if (dtype == "I8") return widen_to_f64<int8_t>(src, dst, identity);
  if (dtype == "U64") return widen_to_f64<uint64_t>(src, dst, identity);
  if (dtype == "U32") return widen_to_f64<uint32_t>(src, dst, identity);
  if (dtype == "U16") return widen_to_f64<uint16_t>(src, dst, identity);
  if (dtype == "U8") return widen_to_f64<uint8_t>(src, dst, identity);
  if (dtype == "BOOL") return widen_to_f64<uint8_t>(src, dst, [](uint8_t v) { return v != 0; });
  internal_error("no conversion from {}", dtype);
}

int64_t from_f32(const std::string& dtype, std::span<const float> src, std::span<std::byte> dst) {
  require(is_model_dtype(dtype) && dst.size() == src.size() * (dtype == "F32" ? 4 : 2),
          "{} bytes of {} for {} values", dst.size(), dtype, src.size());
  if (dtype == "F16") return narrow_all<f32_to_f16, 0x7C00>(src, dst);
  if (dtype == "BF16") return narrow_all<f32_to_bf16, 0x7F80>(src, dst);
  if (!src.empty()) std::memcpy(dst.data(), src.data(), dst.size());
  return 0;
}

}  // namespace onefold
