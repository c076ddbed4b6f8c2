// Messages for people, on standard error. One that cannot be written, because the terminal is gone
// or its disk is full, is lost: it ends nothing.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace onefold {

void say_text(std::string_view text);

template <typename... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  say_text(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace onefold
