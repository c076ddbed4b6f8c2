#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/pattern.h"

#include <pcre2.h>

#include "base/error.h"

namespace onefold {
namespace {

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

Pattern::Pattern(std::string_view pattern, const std::string& source) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::string spelled = with_unicode_spaces(pattern);
  pcre2_code* const code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(),
                    PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  if (!code) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(error, message, sizeof(message));
    user_error(
        "{}: the pre-tokenizer's pattern {} is not a regular expression that PCRE2 accepts: {}",
        source, pattern, reinterpret_cast<const char*>(message));
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where there is no JIT, PCRE2 interprets
  code_ = code;
}

Pattern::~Pattern() { pcre2_code_free(static_cast<pcre2_code*>(code_)); }

PatternSearch::PatternSearch(const Pattern& pattern)
    : pattern_(pattern), data_(pcre2_match_data_create(1, nullptr)) {
  require(data_ != nullptr, "out of memory for a pattern match");
}

PatternSearch::~PatternSearch() { pcre2_match_data_free(static_cast<pcre2_match_data*>(data_)); }

std::pair<size_t, size_t> PatternSearch::find(std::string_view text, size_t at) {
  int result = match(text, at, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter's stack is on the heap, and larger
    result = match(text, at, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY | PCRE2_NO_JIT);
  }
  if (result == PCRE2_ERROR_NOMATCH) return {text.size(), text.size()};
  if (result < 0) {
    user_error(
        "the pre-tokenizer's pattern gave up on a text of {} bytes (PCRE2 error {}); cut the "
        "document into smaller ones",
        text.size(), result);
  }
  const PCRE2_SIZE* const span = pcre2_get_ovector_pointer(static_cast<pcre2_match_data*>(data_));
  return {span[0], span[1]};
}

int PatternSearch::match(std::string_view text, size_t at, unsigned options) {
  return pcre2_match(static_cast<const pcre2_code*>(pattern_.code_),
                     reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, options,
                     static_cast<pcre2_match_data*>(data_), nullptr);
}

}  // namespace onefold
