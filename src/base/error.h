// The two kinds of error that reach a user. A UserError names the thing that is wrong (key, file, line, flag) and what to
// do about it; an InternalError is a bug in Onefold. Programmer errors inside one function are asserts.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace onefold {

class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

template <typename... Args>
[[noreturn]] void user_error(fmt::format_string<Args...> format, Args&&... args) {
  throw UserError(fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[noreturn]] void internal_error(fmt::format_string<Args...> format, Args&&... args) {
  throw InternalError(fmt::format(format, std::forward<Args>(args)...));
}

// For misuse that must be caught in release builds too (a slab used while released, sizes that disagree).
template <typename... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) internal_error(format, std::forward<Args>(args)...);
}

}  // namespace onefold
