// Wall-clock seconds from an arbitrary start, never going back.
#pragma once

#include <chrono>

namespace onefold {

inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace onefold
