// Measuring time: seconds, and what to report of repeats.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace onefold {

// Wall-clock seconds from an arbitrary start, never going back.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The upper one of two in the middle. `values` must not be empty.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace onefold
