// Numbers that are hard on wire formats.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "base/philox.h"

namespace onefold::test {

inline constexpr float kMostFloat = std::numeric_limits<float>::max();

struct HardData {
  const char* name;
  std::function<float(int64_t)> value;
};

// Uniform in [-1, 1).
inline float drawn_number(int64_t i) {
  return 2 * philox_uniform(philox_word(philox_key(3, Draw::test), static_cast<uint64_t>(i))) - 1;
}

inline std::vector<HardData> hard_data() {
  return {
      {"ordinary", drawn_number},
      {"zeros", [](int64_t) { return 0.0f; }},
      {"one spike", [](int64_t i) { return i == 5 ? 1e30f : 1e-8f * drawn_number(i); }},
      {"many spikes", [](int64_t i) { return drawn_number(i) * (i % 97 == 0 ? 1e6f : 1.0f); }},
      {"denormals", [](int64_t i) { return drawn_number(i) * 0x1p-140f; }},
      {"least denormals", [](int64_t i) { return i % 3 == 0 ? 0x1p-149f : -0.0f; }},
      {"ranges of 2^60", [](int64_t i) { return std::ldexp(drawn_number(i), int(i % 61) - 30); }},
      {"all sizes", [](int64_t i) { return std::ldexp(drawn_number(i), int(i % 250) - 125); }},
      {"the largest", [](int64_t i) { return i % 2 == 0 ? kMostFloat : -kMostFloat; }},
      {"nearly the largest", [](int64_t i) { return drawn_number(i) * kMostFloat; }},
      {"equal", [](int64_t) { return -0.75f; }},
      {"alternating", [](int64_t i) { return i % 2 == 0 ? 1.0f : -1.0f; }},
  };
}

inline std::vector<float> values_of(const HardData& data, int64_t elems) {
  std::vector<float> values(static_cast<size_t>(elems));
  for (int64_t i = 0; i < elems; ++i) values[static_cast<size_t>(i)] = data.value(i);
  return values;
}

}  // namespace onefold::test
