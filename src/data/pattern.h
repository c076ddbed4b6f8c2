// Regular expressions of tokenizers: a compiled PCRE2 pattern, and searches through a text with it.
#pragma once

#include <cstddef>
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

// One search at a time. Belongs to one call, so needs no locks.
class PatternSearch {
 public:
  explicit PatternSearch(const Pattern& pattern);
  ~PatternSearch();
  PatternSearch(const PatternSearch&) = delete;
  PatternSearch& operator=(const PatternSearch&) = delete;

  // Begin and end of the first match that is not empty, at or after `at`; the end of the text twice
  // if there is none. The text must be well-formed UTF-8.
  std::pair<size_t, size_t> find(std::string_view text, size_t at);

 private:
  int match(std::string_view text, size_t at, unsigned options);

  const Pattern& pattern_;
  void* data_;
};

}  // namespace onefold
