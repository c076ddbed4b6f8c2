#include "data/pretokenizer.h"

#include <array>
#include <optional>

#include "data/byte_level.h"

namespace onefold {
namespace {

enum CharClass : uint8_t { kOther, kLetter, kDigit, kSpace, kNotAscii };

constexpr std::array<CharClass, 256> kClasses = [] {
  std::array<CharClass, 256> classes{};  // kOther
  for (int c = 0; c < 256; ++c) {
    CharClass& cls = classes[static_cast<size_t>(c)];
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) cls = kLetter;
    if (c >= '0' && c <= '9') cls = kDigit;
    if (c == ' ' || (c >= '\t' && c <= '\r')) cls = kSpace;
    if (c >= 0x80) cls = kNotAscii;
  }
  return classes;
}();

CharClass class_of(char c) { return kClasses[static_cast<unsigned char>(c)]; }
bool ends_line(char c) { return c == '\n' || c == '\r'; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; }

constexpr size_t kAskPattern = 0;  // no word ends at 0

// Length of the contraction at `p` ('s 't 're 've 'm 'll 'd), or 0.
template <bool kAnyCase>
size_t contraction(const char* p, const char* end) {
  const auto at = [&](int i) { return kAnyCase ? lower(p[i]) : p[i]; };
  if (end - p < 2) return 0;
  switch (at(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return end - p >= 3 && at(2) == 'e' ? 3 : 0;
    case 'l':
      return end - p >= 3 && at(2) == 'l' ? 3 : 0;
    default:
      return 0;
  }
}

// The end of the GPT-2 word that begins at `at`, or kAskPattern if it depends on a non-ASCII
// character.
size_t gpt2_word_end(std::string_view text, size_t at) {
  const char* const begin = text.data() + at;
  const char* const end = text.data() + text.size();
  const char* p = begin;
  if (*p == '\'') {
    if (const size_t length = contraction<false>(p, end)) return at + length;
  }
  if (*p == ' ' && p + 1 < end && class_of(p[1]) != kSpace) ++p;  // " ?" before a run
  const CharClass run = class_of(*p);
  if (run == kNotAscii) return kAskPattern;
  while (++p < end && class_of(*p) == run) {
  }
  if (p < end && class_of(*p) == kNotAscii) return kAskPattern;
  // \s+(?!\S): the last character of white space before a word belongs to that word, unless it is
  // the only one.
  if (run == kSpace && p < end && p - begin > 1) --p;
  return at + static_cast<size_t>(p - begin);
}

// The same for the pattern of Llama 3 (digits in groups of at most 3) and Qwen (each digit alone).
template <int kMaxDigits>
size_t llama3_word_end(std::string_view text, size_t at) {
  const char* const begin = text.data() + at;
  const char* const end = text.data() + text.size();
  const char* p = begin;
  const auto length = [&] { return at + static_cast<size_t>(p - begin); };
  const CharClass first = class_of(*p);
  if (first == kNotAscii) return kAskPattern;
  if (*p == '\'') {
    if (const size_t length_of = contraction<true>(p, end)) return at + length_of;
  }
  // 's and its kind have non-ASCII equals when case is ignored, and any character but a line end,
  // letter or digit may lead a run of letters: what follows decides.
  const CharClass second = p + 1 < end ? class_of(p[1]) : kSpace;
  if (first != kDigit && !ends_line(*p) && second == kNotAscii) return kAskPattern;
  if (first == kLetter || (first != kDigit && !ends_line(*p) && second == kLetter)) {
    while (++p < end && class_of(*p) == kLetter) {
    }
    return p < end && class_of(*p) == kNotAscii ? kAskPattern : length();
  }
  if (first == kDigit) {
    while (++p < end && p - begin < kMaxDigits && class_of(*p) == kDigit) {
    }
    const bool open = p < end && p - begin < kMaxDigits && class_of(*p) == kNotAscii;
    return open ? kAskPattern : length();
  }
  if (first == kOther || (*p == ' ' && second == kOther)) {
    while (++p < end && class_of(*p) == kOther) {
    }
    if (p < end && class_of(*p) == kNotAscii) return kAskPattern;
    while (p < end && ends_line(*p)) ++p;
    return length();
  }
  const char* after_line = nullptr;  // \s*[\r\n]+ ends after the run's last line end
  for (; p < end && class_of(*p) == kSpace; ++p) {
    if (ends_line(*p)) after_line = p + 1;
  }
  if (p < end && class_of(*p) == kNotAscii) return kAskPattern;
  if (after_line) {
    p = after_line;
  } else if (p < end && p - begin > 1) {
    --p;  // \s+(?!\S)
  }
  return length();
}

template <typename WordEnd>
void split_by_scanner(const Pattern& pattern, WordEnd word_end, std::string_view text,
                      const PreTokenizer::Word& word) {
  std::optional<PatternSearch> search;  // made only for text that needs it
  for (size_t at = 0; at < text.size();) {
    size_t end = word_end(text, at);
    if (end == kAskPattern) {
      if (!search) search.emplace(pattern);
      end = search->find(text, at).second;  // these patterns match at every position
    }
    word(text.substr(at, end - at));
    at = end;
  }
}

void split_by_pattern(const Pattern& pattern, SplitBehavior behavior, bool invert,
                      std::string_view text, const PreTokenizer::Word& word) {
  const auto joins = [&](bool left_matches, bool right_matches) {
    if (behavior == SplitBehavior::kMergedWithPrevious) return !left_matches && right_matches;
    if (behavior == SplitBehavior::kMergedWithNext) return left_matches && !right_matches;
    return behavior == SplitBehavior::kContiguous && left_matches == right_matches;
  };
  struct PretokenSpan {
    size_t begin, end;
    bool match;
  };
  std::optional<PretokenSpan> held;  // the word so far; `match` is its last span's
  const auto add = [&](PretokenSpan span) {
    if (behavior == SplitBehavior::kRemoved && span.match) return;
    if (held && joins(held->match, span.match))
      span.begin = held->begin;
    else if (held)
      word(text.substr(held->begin, held->end - held->begin));
    held = span;
  };
  PatternSearch search(pattern);
  for (size_t at = 0; at < text.size();) {
    const auto [begin, end] = search.find(text, at);
    if (begin > at) add({at, begin, invert});
    if (end > begin) add({begin, end, !invert});
    at = end;
  }
  if (held) word(text.substr(held->begin, held->end - held->begin));
}

void split_before(std::string_view mark, std::string_view text, const PreTokenizer::Word& word) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(mark, at + 1), text.size());
    word(text.substr(at, end - at));
    at = end;
  }
}

}  // namespace

void PreTokenizer::add_gpt2() {
  static const auto kPattern = std::make_shared<const Pattern>(kGpt2Pattern, "GPT-2");
  splitters_.push_back({.type = Splitter::Type::kGpt2, .pattern = kPattern});
}

void PreTokenizer::add_split(std::string_view pattern, SplitBehavior behavior, bool invert,
                             const std::string& source) {
  Splitter splitter{.type = Splitter::Type::kPattern,
                    .pattern = std::make_shared<const Pattern>(pattern, source),
                    .behavior = behavior,
                    .invert = invert};
  // These match every character: isolating matches and dropping what is no match are the same.
  const bool plain =
      behavior == SplitBehavior::kIsolated || (behavior == SplitBehavior::kRemoved && invert);
  if (plain && pattern == kGpt2Pattern) splitter.type = Splitter::Type::kGpt2;
  if (plain && pattern == kLlama3Pattern) splitter.type = Splitter::Type::kLlama3;
  if (plain && pattern == kQwen2Pattern) splitter.type = Splitter::Type::kQwen2;
  splitters_.push_back(std::move(splitter));
}

void PreTokenizer::add_before(std::string mark) {
  splitters_.push_back({.type = Splitter::Type::kBefore, .mark = std::move(mark)});
}

bool PreTokenizer::cuts_before_spaces() const {
  return splitters_.size() == 1 && splitters_[0].type != Splitter::Type::kPattern &&
         splitters_[0].type != Splitter::Type::kBefore;
}

bool PreTokenizer::cuts_before(std::string_view mark) const {
  return splitters_.size() == 1 && splitters_[0].type == Splitter::Type::kBefore &&
         splitters_[0].mark == mark;
}

void PreTokenizer::split_by(const Splitter& splitter, std::string_view text, const Word& word) {
  switch (splitter.type) {
    case Splitter::Type::kGpt2:
      return split_by_scanner(*splitter.pattern, gpt2_word_end, text, word);
    case Splitter::Type::kLlama3:
      return split_by_scanner(*splitter.pattern, llama3_word_end<3>, text, word);
    case Splitter::Type::kQwen2:
      return split_by_scanner(*splitter.pattern, llama3_word_end<1>, text, word);
    case Splitter::Type::kPattern:
      return split_by_pattern(*splitter.pattern, splitter.behavior, splitter.invert, text, word);
    case Splitter::Type::kBefore:
      return split_before(splitter.mark, text, word);
  }
}

void PreTokenizer::split_valid(size_t splitter, std::string_view text, const Word& word) const {
  if (splitter == splitters_.size()) return word(text);
  if (splitter + 1 == splitters_.size()) return split_by(splitters_[splitter], text, word);
  split_by(splitters_[splitter], text,
           [&](std::string_view part) { split_valid(splitter + 1, part, word); });
}

void PreTokenizer::split(std::string_view text, const Word& word) const {
  while (!text.empty()) {
    const size_t valid = utf8_prefix(text);
    if (valid > 0) split_valid(0, text.substr(0, valid), word);
    text.remove_prefix(valid);
    size_t broken = 0;
    while (broken < text.size() && utf8_sequence(text.substr(broken)) == 0) ++broken;
    if (broken > 0) word(text.substr(0, broken));
    text.remove_prefix(broken);
  }
}

}  // namespace onefold
