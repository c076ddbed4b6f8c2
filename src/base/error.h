// Throwing the public errors (onefold/error.h) with a formatted sentence. Programmer errors inside
// one function are asserts.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <type_traits>

#include "onefold/error.h"

namespace onefold {

// What an error quotes: names of files, keys and texts out of files, which may have line breaks
// that look like the beginning of another message. Lists of our own are indented by two spaces;
// any other line break becomes \n.
std::string quoted_lines(std::string_view text);

template <typename T>
decltype(auto) shown_in_error(const T& argument) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>)
    return quoted_lines(argument);
  else
    return (argument);
}

template <typename... Shown>
std::string error_sentence(fmt::string_view format, const Shown&... shown) {
  return fmt::vformat(format, fmt::make_format_args(shown...));
}

template <typename... Args>
[[noreturn]] void user_error(fmt::format_string<Args...> format, Args&&... args) {
  throw UserError(error_sentence(format, shown_in_error(args)...));
}

template <typename... Args>
[[noreturn]] void internal_error(fmt::format_string<Args...> format, Args&&... args) {
  throw InternalError(error_sentence(format, shown_in_error(args)...));
}

// For misuse that must be caught in release builds too (a slab used while released, sizes that
// disagree).
template <typename... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) internal_error(format, std::forward<Args>(args)...);
}

}  // namespace onefold
