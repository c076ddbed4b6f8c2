// Optimizer moments in 8 bits: codes with one scale for each block of 256 elements, which is the
// largest magnitude in the block. Codes name levels that lie closer together near zero, because a
// block's moments span many powers of ten:
//
//   first moment    code 128 + k, k in [-127, 127]: sign(k) (k / 127)^2 of the scale
//   second moment   code k in [0, 255]:             (k / 255)^4 of the scale
//
// A second moment that is not zero never gets the code 0: it is divided by. The largest magnitude
// has the outermost level, exactly 1, so that coding what was decoded gives the same codes and
// scale. So that this holds for tiny moments too, whose levels would have few bits left, a scale is
// at least kLeastScale8, unless the whole block is zero.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

namespace onefold {

inline constexpr int64_t kBlock8 = 256;
inline constexpr float kLeastScale8 = 0x1p-90f;
// The scales of a state have its name with this behind it.
inline constexpr const char* kScaleSuffix = ".scale";

enum class Moment8 : uint8_t { first, second };

namespace block8 {

inline constexpr int kLevels[] = {127, 255};

// Of the scale.
inline float level(Moment8 moment, int k) {
  const float t = static_cast<float>(k) / static_cast<float>(kLevels[static_cast<int>(moment)]);
  return moment == Moment8::first ? t * t : t * t * (t * t);
}

// The level below `share` (of the scale, at most 1), not the last.
inline int level_below(Moment8 moment, float share) {
  const int last = kLevels[static_cast<int>(moment)];
  const float root = moment == Moment8::first ? std::sqrt(share) : std::sqrt(std::sqrt(share));
  return std::clamp(static_cast<int>(root * static_cast<float>(last)), 0, last - 1);
}

}  // namespace block8

inline float decode8(Moment8 moment, uint8_t code, float scale) {
  if (moment == Moment8::second) return scale * block8::level(moment, code);
  const int k = static_cast<int>(code) - 128;
  const float value = scale * block8::level(moment, std::abs(k));
  return k < 0 ? -value : value;
}

// Of finite values.
inline float scale8(std::span<const float> block) {
  float largest = 0;
  for (const float value : block) largest = std::max(largest, std::fabs(value));
  return largest > 0 ? std::max(largest, kLeastScale8) : 0;
}

// To the neighbour that is further up where the share of the way to it is more than `threshold`:
// 0.5 is rounding to the nearest, a uniform number in [0, 1) is stochastic rounding.
inline uint8_t encode8(Moment8 moment, float value, float scale, float threshold = 0.5f) {
  const float share = scale > 0 ? std::fabs(value) / scale : 0.0f;
  int k = block8::level_below(moment, share);
  const float low = block8::level(moment, k), high = block8::level(moment, k + 1);
  k += share - low > threshold * (high - low);
  if (moment == Moment8::second) return static_cast<uint8_t>(k == 0 && value > 0 ? 1 : k);
  return static_cast<uint8_t>(128 + (value < 0 ? -k : k));
}

}  // namespace onefold
