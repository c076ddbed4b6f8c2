// The two 16-bit floating-point types, as their bits. Narrowing rounds to nearest, ties to even, as
// PyTorch does; what is too large becomes an infinity, and a NaN stays one. Widening is exact.
// Narrowing with a random word takes one of the two neighbours instead, so that the mean over all
// words is the value itself.
#pragma once

#include <bit>
#include <cstdint>

namespace onefold {

// What memory of these types holds: C++20 has no name for them.
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

namespace half {

inline constexpr uint32_t kSign = 0x80000000u, kInfinity = 0x7F800000u;

// Drops the lowest `count` bits of a magnitude, to nearest, ties to even. A carry out of the
// fraction raises the exponent, which is what rounding up to the next power of two means.
inline uint32_t round_off(uint32_t magnitude, uint32_t count) {
  const uint32_t half = 1u << (count - 1);
  const uint32_t odd = (magnitude >> count) & 1;
  return (magnitude + half - 1 + odd) >> count;
}

// The same to the neighbour that a word, uniform in its 32 bits, chooses: the upper one with the
// probability that is the share of what is dropped. `count` may be more than 32.
inline uint32_t round_off(uint32_t magnitude, uint32_t count, uint32_t word) {
  if (count >= 64) return 0;
  const uint64_t dropped = count <= 32 ? magnitude : magnitude >> (count - 32);
  const uint32_t added = count < 32 ? word >> (32 - count) : word;
  return static_cast<uint32_t>((dropped + added) >> (count < 32 ? count : 32));
}

}  // namespace half

inline float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t magnitude = bits & 0x7FFF;
  if (magnitude >= 0x7C00)  // infinity or NaN: the fraction moves to the top of the wider one
    return std::bit_cast<float>(sign | half::kInfinity | (magnitude & 0x3FF) << 13);
  if (magnitude < 0x400) {  // subnormal: a multiple of 2^-24, which fp32 holds as a normal number
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
}

inline float bf16_to_f32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits & half::kSign) >> 16);
  const uint32_t magnitude = bits & ~half::kSign;
  if (magnitude > half::kInfinity) return sign | 0x7E00;  // NaN
  if (magnitude >= 0x477FF000u) return sign | 0x7C00;     // 65520 and more round to infinity
  if (magnitude < 0x38800000u) {                          // below 2^-14: a multiple of 2^-24
    if (magnitude < 0x33000000u) return sign;             // below half of the smallest
    const uint32_t exponent = magnitude >> 23;
    const uint32_t fraction = (magnitude & 0x7FFFFF) | 0x800000;
    return sign | static_cast<uint16_t>(half::round_off(fraction, 126 - exponent));
  }
  return sign | static_cast<uint16_t>(half::round_off(magnitude - ((127u - 15u) << 23), 13));
}

inline uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits & half::kSign) >> 16);
  const uint32_t magnitude = bits & ~half::kSign;
  if (magnitude > half::kInfinity) return sign | 0x7FC0;
  return sign | static_cast<uint16_t>(half::round_off(magnitude, 16));
}

// By type, for code that is written for all of them.
inline float widened(float value) { return value; }
inline float widened(Bf16 value) { return bf16_to_f32(value.bits); }
inline float widened(F16 value) { return f16_to_f32(value.bits); }
template <class T>
T narrowed(float value) {
  return value;
}
template <>
inline Bf16 narrowed(float value) {
  return {f32_to_bf16(value)};
}
template <>
inline F16 narrowed(float value) {
  return {f32_to_f16(value)};
}

inline uint16_t f32_to_f16_drawn(float value, uint32_t word) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits & half::kSign) >> 16);
  const uint32_t magnitude = bits & ~half::kSign;
  if (magnitude > half::kInfinity) return sign | 0x7E00;
  if (magnitude >= 0x47800000u) return sign | 0x7C00;  // 65536: beyond the last neighbours
  if (magnitude < 0x38800000u) {
    if (magnitude < 0x800000u) return sign;  // subnormal in fp32: never drawn
    const uint32_t fraction = (magnitude & 0x7FFFFF) | 0x800000;
    return sign | static_cast<uint16_t>(half::round_off(fraction, 126 - (magnitude >> 23), word));
  }
  return sign | static_cast<uint16_t>(half::round_off(magnitude - ((127u - 15u) << 23), 13, word));
}

inline uint16_t f32_to_bf16_drawn(float value, uint32_t word) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits & half::kSign) >> 16);
  const uint32_t magnitude = bits & ~half::kSign;
  if (magnitude > half::kInfinity) return sign | 0x7FC0;
  return sign | static_cast<uint16_t>(half::round_off(magnitude, 16, word));
}

}  // namespace onefold
