#include "base/say.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "base/text.h"

namespace onefold {
namespace {

constexpr std::string_view kBold = "\x1b[1m", kRed = "\x1b[1;31m", kYellow = "\x1b[1;33m",
                           kPlain = "\x1b[0m";
constexpr std::string_view kLineAnew = "\r\x1b[K";
constexpr std::string_view kName = "onefold: ";

std::atomic<Colours> chosen = Colours::automatic;

struct Mark {
  std::string_view words, colour;
};
constexpr Mark kMarks[] = {
    {"error:", kRed}, {"internal error:", kRed}, {"diverged:", kRed}, {"warning:", kYellow}};

std::string coloured(std::string_view text) {
  if (text.starts_with(kName))
    for (const Mark& mark : kMarks)
      if (text.substr(kName.size()).starts_with(mark.words)) {
        const size_t end = kName.size() + mark.words.size();
        return fmt::format("{}{}{}{}", mark.colour, text.substr(0, end), kPlain, text.substr(end));
      }
  return std::string(text);
}

// Names and reasons out of files may hold anything. What stays are a line that begins anew, and
// bold headings where there are colours.
std::string shown(std::string_view text) {
  std::string result;
  if (text.starts_with(kLineAnew)) {
    result = kLineAnew;
    text.remove_prefix(kLineAnew.size());
  }
  const bool bold = colours_on(Stream::err);
  while (bold && !text.empty()) {
    const size_t begin = text.find(kBold), end = text.find(kPlain, begin);
    if (end == std::string_view::npos) break;
    result += printable_lines(text.substr(0, begin));
    result += fmt::format(
        "{}{}{}", kBold,
        printable_lines(text.substr(begin + kBold.size(), end - begin - kBold.size())), kPlain);
    text.remove_prefix(end + kPlain.size());
  }
  return result + printable_lines(text);
}

// A heading is a word in a column of nine characters: "memory   1.20 GiB".
size_t heading_length(std::string_view line) {
  constexpr size_t kColumn = 9;
  const size_t length = line.find(' ');
  if (length == std::string_view::npos || length == 0 || line.size() <= kColumn) return 0;
  const size_t next = line.find_first_not_of(' ', length);
  return next == kColumn ? length : 0;
}

}  // namespace

void set_colours(Colours colours) { chosen = colours; }

bool colours_on(Stream stream) {
  if (chosen != Colours::automatic) return chosen == Colours::always;
  const char* no_colour = std::getenv("NO_COLOR");
  if (no_colour && *no_colour) return false;
  return redraws(stream);
}

bool redraws(Stream stream) {
  const char* terminal = std::getenv("TERM");
  if (terminal && std::string_view(terminal) == "dumb") return false;
  return ::isatty(stream == Stream::out ? STDOUT_FILENO : STDERR_FILENO) != 0;
}

std::string with_headings(std::string_view text, Stream stream) {
  if (!colours_on(stream)) return std::string(text);
  std::string result;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n') + 1);
    const std::string_view whole = line.empty() ? text : line;
    const size_t heading = heading_length(whole);
    if (heading > 0) result += fmt::format("{}{}{}", kBold, whole.substr(0, heading), kPlain);
    result += whole.substr(heading);
    text.remove_prefix(whole.size());
  }
  return result;
}

void say_text(std::string_view text) {
  std::string message = shown(text);
  if (colours_on(Stream::err)) message = coloured(message);
  (void)std::fwrite(message.data(), 1, message.size(), stderr);
  (void)std::fflush(stderr);
}

}  // namespace onefold
