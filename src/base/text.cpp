#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace onefold {
namespace {

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::string scaled(double value, double base, std::span<const std::string_view> suffixes,
                   std::string_view separator) {
  size_t i = 0;
  while (std::abs(value) >= base && i + 1 < suffixes.size()) {
    value /= base;
    ++i;
  }
  if (i == 0) return fmt::format("{:.0f}{}{}", value, separator, suffixes[0]);
  return fmt::format("{:.{}f}{}{}", value, value < 10 ? 2 : 1, separator, suffixes[i]);
}

std::string without_controls(std::string_view text, std::string_view allowed) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if ((byte < 0x20 || byte == 0x7F) && allowed.find(text[i]) == std::string_view::npos) {
      result += fmt::format("\\x{:02x}", byte);
    } else if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {  // U+0080 to U+009F
      result += fmt::format("\\u{:04x}", next);
      ++i;
    } else {
      result += text[i];
    }
  }
  return result;
}

}  // namespace

std::string format_bytes(int64_t bytes) {
  static constexpr std::array<std::string_view, 6> kUnits = {"B",   "KiB", "MiB",
                                                             "GiB", "TiB", "PiB"};
  return scaled(static_cast<double>(bytes), 1024, kUnits, " ");
}

std::string format_count(int64_t count) {
  static constexpr std::array<std::string_view, 5> kUnits = {"", "K", "M", "B", "T"};
  return scaled(static_cast<double>(count), 1000, kUnits, "");
}

std::string format_duration(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  if (seconds < 60) return fmt::format("{:.1f}s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
}

int64_t parse_bytes(std::string_view text, std::string_view what) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string suffix;
  for (const char* c = end; c != text.data() + text.size(); ++c)
    if (*c != ' ') suffix += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  static constexpr std::string_view kPrefixes = "kmgtp";
  double scale = 1;
  bool ok = error == std::errc() && value >= 0;
  if (!suffix.empty() && suffix != "b") {
    const size_t power = kPrefixes.find(suffix[0]);
    const std::string rest = suffix.substr(1);
    ok = ok && power != std::string_view::npos && (rest.empty() || rest == "ib" || rest == "b");
    if (ok) scale = std::pow(rest == "b" ? 1000.0 : 1024.0, static_cast<double>(power) + 1);
  }
  if (!ok || value * scale > 9e18)
    user_error("{}: \"{}\" is not a size; write it like \"24GiB\", \"512MB\" or a number of bytes",
               what, text);
  return static_cast<int64_t>(value * scale);
}

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  int best_distance = static_cast<int>(word.size()) / 3 + 2;  // further away is not a misspelling
  for (const std::string& candidate : candidates) {
    const int distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> candidates) {
  const std::string best = nearest(word, candidates);
  return best.empty() ? "" : fmt::format(", did you mean \"{}\"?", best);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::string printable(std::string_view text) { return without_controls(text, ""); }
std::string printable_lines(std::string_view text) { return without_controls(text, "\n\t"); }

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace onefold
