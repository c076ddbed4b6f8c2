#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/pretokenizer.h"

#include <pcre2.h>

#include <array>
#include <optional>

#include "base/error.h"
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

constexpr size_t kAskRegex = 0;  // no word ends at 0

// Length of the contraction at `p` ('s 't 're 've 'm 'll 'd), or 0.
size_t contraction(const char* p, const char* end) {
  if (end - p < 2) return 0;
  switch (p[1]) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return end - p >= 3 && p[2] == 'e' ? 3 : 0;
    case 'l':
      return end - p >= 3 && p[2] == 'l' ? 3 : 0;
    default:
      return 0;
  }
}

// The end of the GPT-2 word that begins at `at`, or kAskRegex if a non-ASCII character has a say in
// it.
size_t gpt2_word_end(std::string_view text, size_t at) {
  const char* const begin = text.data() + at;
  const char* const end = text.data() + text.size();
  const char* p = begin;
  if (*p == '\'') {
    if (const size_t length = contraction(p, end)) return at + length;
  }
  if (*p == ' ' && p + 1 < end && class_of(p[1]) != kSpace) ++p;  // " ?" before a run
  const CharClass run = class_of(*p);
  if (run == kNotAscii) return kAskRegex;
  while (++p < end && class_of(*p) == run) {
  }
  if (p < end && class_of(*p) == kNotAscii) return kAskRegex;
  // \s+(?!\S): white space before a word leaves its last character to that word, if it can.
  if (run == kSpace && p < end && p - begin > 1) --p;
  return at + static_cast<size_t>(p - begin);
}

// PCRE2's \s has U+180E, which Unicode no longer counts as white space, and neither do the engines
// these patterns were written for. Spelling the set out makes words agree with theirs on every code
// point.
std::string with_unicode_spaces(std::string_view pattern) {
  constexpr std::string_view kSet =
      R"(\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
  std::string result;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      if (escaped == 's') {
        result += in_class ? std::string(kSet) : "[" + std::string(kSet) + "]";
      } else if (escaped == 'S' && !in_class) {
        result += "[^" + std::string(kSet) + "]";
      } else {
        result += {c, escaped};
      }
      continue;
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    result += c;
  }
  return result;
}

}  // namespace

class Regex {
 public:
  Regex(std::string_view pattern, const std::string& source) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    const std::string spelled = with_unicode_spaces(pattern);
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(),
                          PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
    if (!code_) {
      PCRE2_UCHAR message[256];
      pcre2_get_error_message(error, message, sizeof(message));
      user_error(
          "{}: the pre-tokenizer's pattern {} is not a regular expression that PCRE2 accepts: {}",
          source, pattern, reinterpret_cast<const char*>(message));
    }
    pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);  // where there is no JIT, PCRE2 interprets
  }
  ~Regex() { pcre2_code_free(code_); }
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  const pcre2_code* code() const { return code_; }

 private:
  pcre2_code* code_;
};

namespace {

// One search at a time through one text, which must be well-formed UTF-8. Belongs to one call, so
// needs no locks.
class Matcher {
 public:
  explicit Matcher(const Regex& regex) : regex_(regex), data_(pcre2_match_data_create(1, nullptr)) {
    require(data_ != nullptr, "out of memory for a pattern match");
  }
  ~Matcher() { pcre2_match_data_free(data_); }
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  // The first match that is not empty, at or after `at`; the end of the text twice if there is
  // none.
  std::pair<size_t, size_t> find(std::string_view text, size_t at) {
    int result = match(text, at, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY);
    if (result ==
        PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter's stack is on the heap, and larger
      result = match(text, at, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY | PCRE2_NO_JIT);
    }
    if (result == PCRE2_ERROR_NOMATCH) return {text.size(), text.size()};
    if (result < 0) {
      user_error(
          "the pre-tokenizer's pattern gave up on a text of {} bytes (PCRE2 error {}); cut the "
          "document into "
          "smaller ones",
          text.size(), result);
    }
    const PCRE2_SIZE* const span = pcre2_get_ovector_pointer(data_);
    return {span[0], span[1]};
  }

 private:
  int match(std::string_view text, size_t at, uint32_t options) {
    return pcre2_match(regex_.code(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                       options, data_, nullptr);
  }

  const Regex& regex_;
  pcre2_match_data* data_;
};

void split_by_regex(const Regex& regex, std::string_view text, const PreTokenizer::Word& word) {
  Matcher matcher(regex);
  for (size_t at = 0; at < text.size();) {
    const auto [begin, end] = matcher.find(text, at);
    if (begin > at) word(text.substr(at, begin - at));
    if (end > begin) word(text.substr(begin, end - begin));
    at = end;
  }
}

void split_gpt2(const Regex& regex, std::string_view text, const PreTokenizer::Word& word) {
  std::optional<Matcher> matcher;  // made only for text that needs it
  for (size_t at = 0; at < text.size();) {
    size_t end = gpt2_word_end(text, at);
    if (end == kAskRegex) {
      if (!matcher) matcher.emplace(regex);
      end = matcher->find(text, at).second;  // this pattern matches at every position
    }
    word(text.substr(at, end - at));
    at = end;
  }
}

}  // namespace

void PreTokenizer::add_gpt2() {
  static const auto kRegex = std::make_shared<const Regex>(kGpt2Pattern, "GPT-2");
  stages_.push_back({true, kRegex});
}

void PreTokenizer::add_regex(std::string_view pattern, const std::string& source) {
  stages_.push_back({false, std::make_shared<const Regex>(pattern, source)});
}

void PreTokenizer::split_valid(size_t stage, std::string_view text, const Word& word) const {
  if (stage == stages_.size()) return word(text);
  const auto split = stages_[stage].gpt2 ? split_gpt2 : split_by_regex;
  if (stage + 1 == stages_.size()) return split(*stages_[stage].regex, text, word);
  split(*stages_[stage].regex, text,
        [&](std::string_view piece) { split_valid(stage + 1, piece, word); });
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
