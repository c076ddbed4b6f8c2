#include "data/pretokenizer.h"

#include <array>

#include "data/byte_level.h"
#include "data/characters.h"

namespace onefold {
namespace {

enum CharClass : uint8_t { kOther, kLetter, kDigit, kSpace, kNotAscii };
static_assert(static_cast<int>(CharacterClass::kOther) == kOther &&
              static_cast<int>(CharacterClass::kLetter) == kLetter &&
              static_cast<int>(CharacterClass::kNumber) == kDigit &&
              static_cast<int>(CharacterClass::kSpace) == kSpace);

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

bool ends_line(char c) { return c == '\n' || c == '\r'; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; }

// Walks over well-formed UTF-8, a character at a time.
class Walker {
 public:
  Walker(std::string_view text, size_t at) : p_(text.data() + at), end_(text.data() + text.size()) {
    look();
  }
  bool done() const { return p_ == end_; }
  CharClass cls() const { return cls_; }  // of the character here; kNotAscii past the end
  const char* here() const { return p_; }
  void step() {
    p_ += bytes_;
    look();
  }
  // Past all characters of a class; returns how many there were, and where the last one begins.
  std::pair<size_t, const char*> run(CharClass cls) {
    size_t count = 0;
    const char* last = p_;
    for (; cls_ == cls; ++count) {
      last = p_;
      step();
    }
    return {count, last};
  }

 private:
  void look() {
    cls_ = kNotAscii;
    bytes_ = 1;
    if (p_ == end_) return;
    cls_ = kClasses[static_cast<unsigned char>(*p_)];
    if (cls_ != kNotAscii) return;
    const std::string_view rest(p_, static_cast<size_t>(end_ - p_));
    const auto first = static_cast<unsigned char>(*p_);
    bytes_ = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    cls_ = static_cast<CharClass>(class_of_character(code_point_of(rest)));
  }

  const char* p_;
  const char* end_;
  CharClass cls_ = kNotAscii;
  uint8_t bytes_ = 1;
};

// Length of the contraction at `p` ('s 't 're 've 'm 'll 'd), or 0. If case is ignored, U+017F is
// an s too.
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
      return kAnyCase && end - p >= 3 && p[1] == '\xC5' && p[2] == '\xBF' ? 3 : 0;
  }
}

// The end of the GPT-2 word that begins at `at`.
size_t gpt2_word_end(std::string_view text, size_t at) {
  const char* const begin = text.data() + at;
  const char* const end = text.data() + text.size();
  if (*begin == '\'') {
    if (const size_t length = contraction<false>(begin, end)) return at + length;
  }
  Walker walker(text, at);
  if (*begin == ' ') {  // " ?" before a run
    Walker next = walker;
    next.step();
    if (!next.done() && next.cls() != kSpace) walker = next;
  }
  const CharClass cls = walker.cls();
  const auto [count, last] = walker.run(cls);
  // \s+(?!\S): the last character of white space before a word belongs to that word, unless it is
  // the only one.
  const bool gives_back = cls == kSpace && !walker.done() && count > 1;
  return static_cast<size_t>((gives_back ? last : walker.here()) - text.data());
}

// The same for the pattern of Llama 3 (digits in groups of at most 3) and Qwen (each digit alone).
template <int kMaxDigits>
size_t llama3_word_end(std::string_view text, size_t at) {
  const char* const begin = text.data() + at;
  const char* const end = text.data() + text.size();
  if (*begin == '\'') {
    if (const size_t length = contraction<true>(begin, end)) return at + length;
  }
  const auto place = [&](const char* p) { return static_cast<size_t>(p - text.data()); };
  Walker walker(text, at);
  const CharClass first = walker.cls();
  if (first == kDigit) {
    for (int digits = 0; digits < kMaxDigits && walker.cls() == kDigit; ++digits) walker.step();
    return place(walker.here());
  }
  if (first == kLetter) {
    walker.run(kLetter);
    return place(walker.here());
  }
  // Any character but a line end, letter or digit may lead a run of letters.
  Walker next = walker;
  next.step();
  if (!ends_line(*begin) && next.cls() == kLetter) {
    next.run(kLetter);
    return place(next.here());
  }
  if (first == kOther || (*begin == ' ' && next.cls() == kOther)) {
    next.run(kOther);
    const char* p = next.here();
    while (p < end && ends_line(*p)) ++p;
    return place(p);
  }
  const char* after_line = nullptr;  // \s*[\r\n]+ ends after the run's last line end
  const char* last = begin;
  size_t count = 0;
  for (; walker.cls() == kSpace; walker.step(), ++count) {
    last = walker.here();
    if (ends_line(*last)) after_line = last + 1;
  }
  if (after_line) return place(after_line);
  return place(!walker.done() && count > 1 ? last : walker.here());  // \s+(?!\S)
}

template <typename WordEnd>
void split_by_scanner(WordEnd word_end, std::string_view text, const PreTokenizer::Word& word) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = word_end(text, at);
    word(text.substr(at, end - at));
    at = end;
  }
}

// Makes words of matches and what lies between them, in order.
class Joiner {
 public:
  Joiner(SplitBehavior behavior, bool invert, std::string_view text, const PreTokenizer::Word& word)
      : behavior_(behavior), invert_(invert), text_(text), word_(word) {}

  // The text up to `begin` matches nothing; that from there to `end`, which may be empty, matches.
  void match(size_t begin, size_t end) {
    if (begin > at_) add({at_, begin, invert_});
    add({begin, end, !invert_});
    at_ = end;
  }
  void finish() {
    if (at_ < text_.size()) add({at_, text_.size(), invert_});
    if (holds_) hand_on(held_);
  }

 private:
  struct Part {
    size_t begin, end;
    bool match;
  };

  bool joins(bool left_matches, bool right_matches) const {
    if (behavior_ == SplitBehavior::kMergedWithPrevious) return !left_matches && right_matches;
    if (behavior_ == SplitBehavior::kMergedWithNext) return left_matches && !right_matches;
    return behavior_ == SplitBehavior::kContiguous && left_matches == right_matches;
  }
  void hand_on(const Part& part) const {
    if (part.end > part.begin) word_(text_.substr(part.begin, part.end - part.begin));
  }
  void add(Part part) {
    if (behavior_ == SplitBehavior::kRemoved && part.match) return;
    if (holds_ && joins(held_.match, part.match))
      part.begin = held_.begin;
    else if (holds_)
      hand_on(held_);
    held_ = part;
    holds_ = true;
  }

  const SplitBehavior behavior_;
  const bool invert_;
  const std::string_view text_;
  const PreTokenizer::Word& word_;
  size_t at_ = 0;
  bool holds_ = false;
  Part held_{};  // the word so far; `match` is its last part's
};

void split_by_pattern(const Pattern& pattern, SplitBehavior behavior, bool invert,
                      std::string_view text, const PreTokenizer::Word& word) {
  Joiner joiner(behavior, invert, text, word);
  PatternSearch search(pattern, text);
  while (const auto match = search.next()) joiner.match(match->first, match->second);
  joiner.finish();
}

void split_by_characters(PreTokenizer::Matches matches, SplitBehavior behavior,
                         std::string_view text, const PreTokenizer::Word& word) {
  Joiner joiner(behavior, false, text, word);
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = utf8_sequence(text.substr(at));
    if (matches(code_point_of(text.substr(at)))) joiner.match(at, at + bytes);
    at += bytes;
  }
  joiner.finish();
}

void split_before(std::string_view mark, std::string_view text, const PreTokenizer::Word& word) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(mark, at + 1), text.size());
    word(text.substr(at, end - at));
    at = end;
  }
}

}  // namespace

void PreTokenizer::add_gpt2() { splitters_.push_back({.type = Splitter::Type::kGpt2}); }

void PreTokenizer::add_split(std::string_view pattern, SplitBehavior behavior, bool invert,
                             const std::string& source) {
  Splitter splitter{.type = Splitter::Type::kPattern, .behavior = behavior, .invert = invert};
  // These match every character: isolating matches and dropping what is no match are the same.
  const bool plain =
      behavior == SplitBehavior::kIsolated || (behavior == SplitBehavior::kRemoved && invert);
  if (plain && pattern == kGpt2Pattern) splitter.type = Splitter::Type::kGpt2;
  if (plain && pattern == kLlama3Pattern) splitter.type = Splitter::Type::kLlama3;
  if (plain && pattern == kQwen2Pattern) splitter.type = Splitter::Type::kQwen2;
  if (splitter.type == Splitter::Type::kPattern)
    splitter.pattern = std::make_shared<const Pattern>(pattern, source);
  splitters_.push_back(std::move(splitter));
}

void PreTokenizer::add_characters(Matches matches, SplitBehavior behavior) {
  splitters_.push_back(
      {.type = Splitter::Type::kCharacters, .behavior = behavior, .matches = matches});
}

void PreTokenizer::add_before(std::string mark) {
  splitters_.push_back({.type = Splitter::Type::kBefore, .mark = std::move(mark)});
}

bool PreTokenizer::cuts_before_spaces() const {
  return splitters_.size() == 1 && (splitters_[0].type == Splitter::Type::kGpt2 ||
                                    splitters_[0].type == Splitter::Type::kLlama3 ||
                                    splitters_[0].type == Splitter::Type::kQwen2);
}

bool PreTokenizer::cuts_before(std::string_view mark) const {
  return splitters_.size() == 1 && splitters_[0].type == Splitter::Type::kBefore &&
         splitters_[0].mark == mark;
}

void PreTokenizer::split_by(const Splitter& splitter, std::string_view text, const Word& word) {
  switch (splitter.type) {
    case Splitter::Type::kGpt2:
      return split_by_scanner(gpt2_word_end, text, word);
    case Splitter::Type::kLlama3:
      return split_by_scanner(llama3_word_end<3>, text, word);
    case Splitter::Type::kQwen2:
      return split_by_scanner(llama3_word_end<1>, text, word);
    case Splitter::Type::kPattern:
      return split_by_pattern(*splitter.pattern, splitter.behavior, splitter.invert, text, word);
    case Splitter::Type::kCharacters:
      return split_by_characters(splitter.matches, splitter.behavior, text, word);
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
