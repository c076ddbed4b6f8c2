// Regular expressions of tokenizers: a pattern compiled by Oniguruma, which is what `tokenizers`
// runs them on, and searches through a text with it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace onefold {

// Compiled once, used from any thread.
class Pattern {
 public:
  // `source` names the file in errors.
  Pattern(std::string_view pattern, const std::string& source);
  ~Pattern();
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

 private:
  friend class PatternSearch;
  void* code_;
};

// All matches in one text, from left to right. Belongs to one call, so needs no locks.
class PatternSearch {
 public:
  // The text must be well-formed UTF-8, and live as long as the search.
  PatternSearch(const Pattern& pattern, std::string_view text);
  ~PatternSearch();
  PatternSearch(const PatternSearch&) = delete;
  PatternSearch& operator=(const PatternSearch&) = delete;

  // Begin and end of the next match; none after the last. Matches may be empty, but not
  // where another has just ended.
  std::optional<std::pair<size_t, size_t>> next();

 private:
  std::optional<std::pair<size_t, size_t>> find();

  const Pattern& pattern_;
  const std::string_view text_;
  size_t at_ = 0;
  size_t last_end_ = std::string_view::npos;
  void* region_;
};

// The pattern with characters newer than the library's Unicode written out wherever it names a
// class that has some.
std::string with_newer_characters(std::string_view pattern);

}  // namespace onefold
