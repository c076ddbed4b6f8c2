// Small text helpers: numbers as people read them, and the nearest name for a misspelt one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace onefold {

std::string format_bytes(int64_t bytes);      // "1.50 GiB"
std::string format_count(int64_t count);      // "124.4M"
std::string format_duration(double seconds);  // "1h02m", "3m07s", "4.2s"

// "64GiB", "1.5 GB", "512M" (binary), "1000". Throws UserError naming `what`.
int64_t parse_bytes(std::string_view text, std::string_view what);

// The candidate nearest to `word` by edit distance, or "" if none is near enough to be a likely
// misspelling.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

// ", did you mean \"x\"?" or "" — ready to append to an error.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates);

std::vector<std::string> split(std::string_view text, char separator);
std::string join(std::span<const std::string> parts, std::string_view separator);

// A name out of a file, as a terminal may show it: control characters become "\x1b", "\u009b".
std::string printable(std::string_view text);
// The same of a text of several lines: line breaks and tabs stay.
std::string printable_lines(std::string_view text);

// Whether a name read from a file names a file in a folder, and cannot lead out of it.
bool is_plain_file_name(std::string_view name);

}  // namespace onefold
