#include "data/pattern.h"

#include <fmt/format.h>
#include <oniguruma.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <climits>
#include <functional>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "data/byte_level.h"
#include "data/characters.h"

namespace onefold {
namespace {

// How a property's name is compared: without case, spaces, "_" and "-".
std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : name)
    if (c != ' ' && c != '_' && c != '-')
      plain.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  return plain;
}

// "Lu" or "L" of "uppercaseletter"; itself if it is no long name.
std::string category_named(const std::string& name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 23> kLong = {
      {{"letter", "l"},
       {"uppercaseletter", "lu"},
       {"lowercaseletter", "ll"},
       {"modifierletter", "lm"},
       {"otherletter", "lo"},
       {"mark", "m"},
       {"nonspacingmark", "mn"},
       {"spacingmark", "mc"},
       {"combiningmark", "m"},
       {"number", "n"},
       {"decimalnumber", "nd"},
       {"othernumber", "no"},
       {"punctuation", "p"},
       {"dashpunctuation", "pd"},
       {"otherpunctuation", "po"},
       {"symbol", "s"},
       {"mathsymbol", "sm"},
       {"othersymbol", "so"},
       {"format", "cf"},
       {"casedletter", "lc"},
       {"other", "c"},
       {"unassigned", "cn"},
       {"word", "w"}}};
  for (const auto& [spelt, category] : kLong)
    if (name == spelt) return std::string(category);
  return name;
}

bool lowers_to(std::string_view category, std::string_view name) {
  return category.size() == name.size() && plain_name(category) == name;
}

// Whether a newer character belongs to the property of this plain name.
bool belongs(const NewerCharacters& range, const std::string& name) {
  const std::string_view category = range.category;
  const auto group = [&](char c) { return category[0] == c; };
  if (name == range.script) return true;
  if (name == "alphabetic" || name == "alpha") return range.alphabetic;
  if (name == "alnum") return range.alphabetic || category == "Nd";
  if (name == "uppercase" || name == "upper") return category == "Lu";
  if (name == "lowercase" || name == "lower") return category == "Ll" || range.first == 0x1E030;
  if (name == "digit") return category == "Nd";
  if (name == "punct") return group('P') || group('S');
  if (name == "emoji") return range.emoji;
  if (name == "graph" || name == "print" || name == "assigned") return true;
  if (name == "w") return group('L') || group('M') || category == "Nd" || category == "Pc";
  if (name == "lc") return category == "Lu" || category == "Ll";
  if (name.size() == 1) return std::tolower(category[0]) == name[0];
  return lowers_to(category, name);
}

std::string ranges_of(const std::function<bool(const NewerCharacters&)>& chosen) {
  std::string text;
  for (const NewerCharacters& range : newer_characters())
    if (chosen(range)) text += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", range.first, range.last);
  return text;
}

// A class for the property, which may stand alone or within another; "" if no newer character
// belongs to it. `spelt` is how the library names it.
std::string widened(std::string_view spelt, std::string_view property, bool negated) {
  const std::string name = category_named(plain_name(property));
  const char* const mark = negated ? "^" : "";
  if (name == "cn" || name == "c") {  // what was not assigned
    const std::string gone =
        ranges_of([&](const NewerCharacters& range) { return !belongs(range, name); });
    return fmt::format("[{}[{}&&[^{}]]]", mark, spelt, gone);
  }
  if (name == "punct")  // symbols too, in the version that `tokenizers` has
    return fmt::format("[{}\\p{{P}}\\p{{S}}{}]", mark, ranges_of([&](const NewerCharacters& range) {
                         return belongs(range, name);
                       }));
  const std::string added =
      ranges_of([&](const NewerCharacters& range) { return belongs(range, name); });
  if (added.empty()) return "";
  constexpr std::array<std::string_view, 9> kNewScripts = {"kawi",        "nagmundari",   "garay",
                                                           "gurungkhema", "kiratrai",     "olonal",
                                                           "sunuwar",     "tulutigalari", "todhri"};
  const bool whole = std::find(kNewScripts.begin(), kNewScripts.end(), name) != kNewScripts.end();
  return fmt::format("[{}{}{}]", mark, whole ? std::string_view() : spelt, added);
}

// Options that make classes ASCII's: (?W), (?D), (?S), (?P).
bool narrows_classes(std::string_view pattern) {
  for (size_t at = 0; (at = pattern.find("(?", at)) != pattern.npos;) {
    for (at += 2; at < pattern.size(); ++at) {
      const char c = pattern[at];
      if (c == 'W' || c == 'D' || c == 'S' || c == 'P') return true;
      if (std::string_view("imxaCILy-").find(c) == std::string_view::npos) break;
    }
  }
  return false;
}

OnigRegion* region_of(void* region) { return static_cast<OnigRegion*>(region); }

const OnigUChar* bytes_of(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}

std::string message_of(int error, OnigErrorInfo* info) {
  OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int bytes =
      info ? onig_error_code_to_str(text, error, info) : onig_error_code_to_str(text, error);
  return utf8_lossy({reinterpret_cast<const char*>(text), static_cast<size_t>(bytes)});
}

void start_library() {
  static std::once_flag once;
  std::call_once(once, [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
    onig_set_warn_func(onig_null_warn);
    onig_set_verb_warn_func(onig_null_warn);
  });
}

}  // namespace

std::string with_newer_characters(std::string_view pattern) {
  if (narrows_classes(pattern)) return std::string(pattern);
  std::string result;
  const auto put = [&](std::string_view spelt, std::string_view name, bool negated) {
    const std::string positive =
        spelt.starts_with("[:") ? fmt::format("[:{}:]", name)
        : name.size() == 1 && spelt.size() == 2
            ? fmt::format("\\{}", static_cast<char>(std::tolower(spelt[1])))
            : fmt::format("\\p{{{}}}", name);
    const std::string wider = widened(positive, name, negated);
    result += wider.empty() ? std::string(spelt) : wider;
  };
  int depth = 0;  // of classes
  for (size_t i = 0; i < pattern.size();) {
    const std::string_view rest = pattern.substr(i);
    if (rest[0] == '\\' && rest.size() > 1) {
      const char c = rest[1];
      const size_t close = rest.find('}');
      if ((c == 'p' || c == 'P') && rest.size() > 2 && rest[2] == '{' && close != rest.npos) {
        std::string_view name = rest.substr(3, close - 3);
        bool negated = c == 'P';
        if (name.starts_with('^')) name.remove_prefix(1), negated = !negated;
        put(rest.substr(0, close + 1), name, negated);
        i += close + 1;
        continue;
      }
      if (depth == 0 && (c == 'w' || c == 'W' || c == 'b' || c == 'B')) {
        // Alone, to the library, superscripts and fractions of Latin-1 are letters of words, and
        // within a class they are not: so it must stay alone.
        const std::string newer = ranges_of([](const auto& range) { return belongs(range, "w"); });
        const std::string word = fmt::format("(?:\\w|[{}])", newer);
        result += c == 'w'   ? word
                  : c == 'W' ? fmt::format("(?:(?![{}])\\W)", newer)
                  : c == 'b' ? fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word)
                             : fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word);
      } else if (c == 'w' || c == 'W' || c == 'd' || c == 'D') {
        const std::string wider = widened(c == 'w' || c == 'W' ? "\\w" : "\\d",
                                          c == 'w' || c == 'W' ? "w" : "nd", c == 'W' || c == 'D');
        result += wider;
      } else {
        result += rest.substr(0, 2);
      }
      i += 2;
      continue;
    }
    if (depth > 0 && rest.starts_with("[:")) {
      if (const size_t close = rest.find(":]"); close != rest.npos && close < 20) {
        std::string_view name = rest.substr(2, close - 2);
        const bool negated = name.starts_with('^');
        if (negated) name.remove_prefix(1);
        put(rest.substr(0, close + 2), name, negated);
        i += close + 2;
        continue;
      }
    }
    if (rest[0] == '[') {
      ++depth;
      result += '[';
      i += 1;
      if (pattern.substr(i).starts_with('^')) result += '^', i += 1;
      if (pattern.substr(i).starts_with(']')) result += ']', i += 1;  // the character itself
      continue;
    }
    if (rest[0] == ']' && depth > 0) --depth;
    result += rest[0];
    i += 1;
  }
  return result;
}

namespace {

// Characters as readers see them have rules of their own in each version of Unicode, which cannot
// be written out as classes can.
void refuse_clusters(std::string_view pattern, const std::string& source) {
  for (size_t i = 0; i + 1 < pattern.size(); ++i) {
    if (pattern[i] != '\\') continue;
    const char c = pattern[++i];
    if (c == 'X' || c == 'y' || c == 'Y')
      user_error(
          "{}: the pattern {} has \\{}, whose meaning depends on the library's version of Unicode; "
          "it is not supported",
          source, pattern, c);
  }
}

}  // namespace

Pattern::Pattern(std::string_view pattern, const std::string& source) {
  start_library();
  refuse_clusters(pattern, source);
  const std::string spelt = with_newer_characters(pattern);
  regex_t* regex = nullptr;
  OnigErrorInfo info;
  const int result =
      utf8_prefix(spelt) != spelt.size()
          ? ONIGERR_INVALID_WIDE_CHAR_VALUE
          : onig_new(&regex, bytes_of(spelt), bytes_of(spelt) + spelt.size(), ONIG_OPTION_NONE,
                     ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
  if (result != ONIG_NORMAL)
    user_error("{}: the pattern {} is not a regular expression that Oniguruma accepts: {}", source,
               pattern, message_of(result, &info));
  code_ = regex;
}

Pattern::~Pattern() { onig_free(static_cast<regex_t*>(code_)); }

PatternSearch::PatternSearch(const Pattern& pattern, std::string_view text)
    : pattern_(pattern), text_(text), region_(onig_region_new()) {
  require(region_ != nullptr, "out of memory for a pattern match");
}

PatternSearch::~PatternSearch() { onig_region_free(region_of(region_), 1); }

std::optional<std::pair<size_t, size_t>> PatternSearch::find() {
  if (at_ > text_.size()) return std::nullopt;
  if (text_.size() > INT_MAX)
    user_error("a text of {} bytes is too long for a pattern; cut it into smaller documents",
               text_.size());
  const OnigUChar* const begin = bytes_of(text_);
  const OnigUChar* const end = begin + text_.size();
  onig_region_clear(region_of(region_));
  const int result = onig_search(static_cast<regex_t*>(pattern_.code_), begin, end, begin + at_,
                                 end, region_of(region_), ONIG_OPTION_NONE);
  if (result == ONIG_MISMATCH) return std::nullopt;
  if (result < 0)
    user_error(
        "a pattern of the tokenizer gave up on a text of {} bytes ({}); cut the document into "
        "smaller ones",
        text_.size(), message_of(result, nullptr));
  return std::pair{static_cast<size_t>(region_of(region_)->beg[0]),
                   static_cast<size_t>(region_of(region_)->end[0])};
}

// As the search of `tokenizers` goes on: from the end of a match, and past one character where that
// finds nothing but the empty match at the same place.
std::optional<std::pair<size_t, size_t>> PatternSearch::next() {
  while (const auto match = find()) {
    const auto [begin, end] = *match;
    if (begin != end || end != last_end_) {
      at_ = last_end_ = end;
      return match;
    }
    at_ += at_ < text_.size() ? utf8_sequence(text_.substr(at_)) : 1;
  }
  return std::nullopt;
}

}  // namespace onefold
