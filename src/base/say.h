// Messages for people, on standard error, and colours for what people look at. A message that
// cannot be written, because the terminal is gone or its disk is full, is lost: it ends nothing.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace onefold {

enum class Stream : uint8_t { out, err };

// Whether escapes for colours are written: by default to terminals alone, and not where NO_COLOR is
// set (no-color.org) or TERM is "dumb".
enum class Colours : uint8_t { automatic, always, never };
void set_colours(Colours colours);
bool colours_on(Stream stream);

// Whether a line can be drawn over itself: on terminals, but for those that TERM calls "dumb".
bool redraws(Stream stream);

// The text with the first word of each line bold, where that names what the line is about
// ("memory   1.20 GiB planned: ..."); as it is without colours.
std::string with_headings(std::string_view text, Stream stream);

// A message that begins with "onefold: error:" or the like has that in colour. Control characters
// become what printable_lines() makes of them: names out of files must not steer the terminal.
void say_text(std::string_view text);

template <typename... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  say_text(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace onefold
