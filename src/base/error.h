// Throwing the public errors (onefold/error.h) with a formatted sentence. Programmer errors inside
// one function are asserts.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "onefold/error.h"

namespace onefold {

template <typename... Args>
[[noreturn]] void user_error(fmt::format_string<Args...> format, Args&&... args) {
  throw UserError(fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[noreturn]] void internal_error(fmt::format_string<Args...> format, Args&&... args) {
  throw InternalError(fmt::format(format, std::forward<Args>(args)...));
}

// For misuse that must be caught in release builds too (a slab used while released, sizes that
// disagree).
template <typename... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) internal_error(format, std::forward<Args>(args)...);
}

}  // namespace onefold
