// Counter-based random numbers (Philox4x32-10, Salmon et al. 2011): four 32-bit words as a pure
// function of a key and a counter. Nothing is stored, so recomputation, sharding and any order of
// evaluation draw the same numbers.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>

namespace onefold {

using PhiloxWords = std::array<uint32_t, 4>;

struct PhiloxKey {
  uint32_t lo = 0;
  uint32_t hi = 0;
};

inline constexpr uint32_t kPhiloxMul0 = 0xD2511F53u;
inline constexpr uint32_t kPhiloxMul1 = 0xCD9E8D57u;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u;
inline constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85u;
inline constexpr int kPhiloxRounds = 10;

constexpr PhiloxWords philox(PhiloxKey key, PhiloxWords counter) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t p0 = uint64_t{kPhiloxMul0} * counter[0];
    const uint64_t p1 = uint64_t{kPhiloxMul1} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key.lo, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key.hi, static_cast<uint32_t>(p0)};
    key.lo += kPhiloxWeyl0;
    key.hi += kPhiloxWeyl1;
  }
  return counter;
}

// What random numbers are for. It is the first label of every key, so that no two uses share one.
enum class Draw : uint32_t {
  initialisation = 1,
  dropout = 2,
  shuffle = 3,
  sampling = 4,
  test = 5,
  rounding = 6,
  wire = 7
};

// The key of one use's numbers: one Philox call over what they are for and up to three labels
// (step, unit, site).
inline PhiloxKey philox_key(uint64_t seed, Draw draw, uint32_t a = 0, uint32_t b = 0,
                            uint32_t c = 0) {
  const PhiloxWords words = philox({static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
                                   {static_cast<uint32_t>(draw), a, b, c});
  return {words[0], words[1]};
}

// Word `number` of a key's sequence: four to a counter.
inline uint32_t philox_word(PhiloxKey key, uint64_t number) {
  const uint64_t block = number / 4;
  return philox(
      key, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0})[number % 4];
}

// [0, 1) with 24 bits; the same mapping in every vectorised copy of this generator.
inline float philox_uniform(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

// Standard normal numbers first, first + 1, ... under `key`: Box-Muller on two words of a counter
// makes two of them.
inline void philox_normals(PhiloxKey key, uint64_t first, std::span<float> dst) {
  for (size_t i = 0; i < dst.size();) {
    const uint64_t index = first + i, pair = index / 2;
    const PhiloxWords words =
        philox(key, {static_cast<uint32_t>(pair), static_cast<uint32_t>(pair >> 32), 0, 0});
    const double u =
        (static_cast<double>(words[0]) + 1.0) * 0x1p-32;  // (0, 1]: the logarithm is finite
    const double angle = 2.0 * std::numbers::pi * (static_cast<double>(words[1]) * 0x1p-32);
    const double radius = std::sqrt(-2.0 * std::log(u));
    if (index % 2 == 0) dst[i++] = static_cast<float>(radius * std::cos(angle));
    if (i < dst.size()) dst[i++] = static_cast<float>(radius * std::sin(angle));
  }
}

inline float philox_normal(PhiloxKey key, uint64_t index) {
  float number = 0;
  philox_normals(key, index, {&number, 1});
  return number;
}

// Two more words from a uniform one, for roundings that look at the upper 16 bits: SGD's momentum
// or AdamW's first moment, and AdamW's second.
constexpr uint32_t first_moment_word(uint32_t word) { return word << 16; }
constexpr uint32_t second_moment_word(uint32_t word) { return word * 0x9E3779B1u; }

}  // namespace onefold
