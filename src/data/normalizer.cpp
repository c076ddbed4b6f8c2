#include "data/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "base/error.h"
#include "data/byte_level.h"
#include "data/characters.h"

namespace onefold {
namespace {

// Characters below U+0300, whose UTF-8 begins with a byte below 0xCC, are in NFC whatever follows,
// save for a combining mark, which is none of them.
bool surely_nfc(std::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<unsigned char>(c) >= 0xCC; });
}

bool is_ascii(std::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
}

// Calls `valid` for each longest part that is UTF-8 and appends all other bytes to `result`.
void for_valid(std::string_view text, std::string& result,
               const std::function<void(std::string_view)>& valid) {
  while (!text.empty()) {
    const size_t length = utf8_prefix(text);
    if (length > 0) valid(text.substr(0, length));
    text.remove_prefix(length);
    if (text.empty()) break;
    result.push_back(text[0]);
    text.remove_prefix(1);
  }
}

// Calls `visit` for each character of valid text with its code point.
template <typename Visit>
void for_characters(std::string_view valid, const Visit& visit) {
  for (size_t at = 0; at < valid.size();) {
    const size_t bytes = utf8_sequence(valid.substr(at));
    const std::string_view character = valid.substr(at, bytes);
    visit(character, code_point_of(character));
    at += bytes;
  }
}

void append_form(Normalizer::Form form, std::string_view valid, std::string& result) {
  if (valid.empty()) return;
  const bool compose = form == Normalizer::Form::kNfc || form == Normalizer::Form::kNfkc;
  const bool compatible = form == Normalizer::Form::kNfkc || form == Normalizer::Form::kNfkd;
  const int options = UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                      (compatible ? UTF8PROC_COMPAT : 0);
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(valid.data()),
                   static_cast<utf8proc_ssize_t>(valid.size()), &mapped,
                   static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  if (length < 0) {
    user_error(
        "a text of {} bytes could not be brought into a normal form of Unicode: {}; cut it into "
        "smaller documents",
        valid.size(), utf8proc_errmsg(length));
  }
  result.append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(length));
}

// A character that the normalizers do not know is none that is mapped, reordered or composed: what
// is before and after it may be normalized alone.
void append_form_of_known(Normalizer::Form form, std::string_view valid, std::string& result) {
  size_t begin = 0, at = 0;
  for_characters(valid, [&](std::string_view character, uint32_t point) {
    if (point >= 0x300 && is_unknown_to_normalizers(point)) {
      append_form(form, valid.substr(begin, at - begin), result);
      result.append(character);
      begin = at + character.size();
    }
    at += character.size();
  });
  append_form(form, valid.substr(begin), result);
}

std::string stripped(std::string_view text, bool left, bool right) {
  const auto space_at = [](std::string_view from) -> size_t {
    const size_t bytes = utf8_sequence(from);
    return bytes > 0 && is_space_character(code_point_of(from)) ? bytes : 0;
  };
  while (left && !text.empty() && space_at(text) > 0) text.remove_prefix(space_at(text));
  while (right && !text.empty()) {
    size_t bytes = 1;
    while (bytes < 4 && bytes < text.size() && (text[text.size() - bytes] & 0xC0) == 0x80) ++bytes;
    if (space_at(text.substr(text.size() - bytes)) != bytes) break;
    text.remove_suffix(bytes);
  }
  return std::string(text);
}

void append_nmt(std::string_view character, uint32_t c, std::string& result) {
  if ((c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F ||
      c == 0x9F)
    return;
  const bool space = c == 0x9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
                     (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                     c == 0xFEFF || c == 0xFFFD;
  result.append(space ? " " : character);
}

std::string without(bool (*dropped)(uint32_t), std::string_view text) {
  std::string result;
  for_valid(text, result, [&](std::string_view valid) {
    for_characters(valid, [&](std::string_view character, uint32_t point) {
      if (!dropped(point)) result.append(character);
    });
  });
  return result;
}

std::string lowered(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for_valid(text, result, [&](std::string_view valid) {
    for_characters(valid, [&](std::string_view, uint32_t point) { append_lower(point, result); });
  });
  return result;
}

std::string in_form(Normalizer::Form form, std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for_valid(text, result,
            [&](std::string_view valid) { append_form_of_known(form, valid, result); });
  return result;
}

std::string bert(const Normalizer::Bert& options, std::string_view text) {
  std::string result;
  for_valid(text, result, [&](std::string_view valid) {
    for_characters(valid, [&](std::string_view character, uint32_t point) {
      if (options.clean_text && is_removed_by_cleaning(point)) return;
      if (options.clean_text && point != 0x85 && is_space_character(point)) character = " ";
      const bool apart = options.handle_chinese && is_chinese_character(point);
      if (apart) result += ' ';
      result.append(character);
      if (apart) result += ' ';
    });
  });
  if (options.strip_accents)
    result = without(is_nonspacing_mark, in_form(Normalizer::Form::kNfd, result));
  return options.lowercase ? lowered(result) : result;
}

void require_size(const std::string& result, size_t most_bytes, std::string_view replaced) {
  if (result.size() <= most_bytes) return;
  user_error(
      "the tokenizer makes more than {} bytes of one text by replacing \"{}\"; its Replace steps "
      "feed each other",
      most_bytes, replaced);
}

}  // namespace

void append_replaced(std::string_view text, std::string_view from, std::string_view to,
                     size_t most_bytes, std::string& result) {
  for (size_t at = 0; at <= text.size();) {
    require_size(result, most_bytes, from);
    const size_t found = text.find(from, at);
    if (found == std::string_view::npos) {
      result.append(text.substr(at));
      return;
    }
    result.append(text.substr(at, found - at)).append(to);
    at = found + from.size();
  }
}

void append_replaced(std::string_view text, const Pattern& pattern, std::string_view to,
                     size_t most_bytes, std::string& result) {
  PatternSearch search(pattern, text);
  size_t at = 0;
  while (const auto match = search.next()) {
    require_size(result, most_bytes, "a pattern");
    result.append(text.substr(at, match->first - at)).append(to);
    at = match->second;
  }
  result.append(text.substr(at));
}

void Normalizer::add_form(Form form) {
  changes_.push_back({.type = Change::Type::kForm, .form = form});
}
void Normalizer::add_lowercase() { changes_.push_back({.type = Change::Type::kLowercase}); }
void Normalizer::add_strip_accents() { changes_.push_back({.type = Change::Type::kStripAccents}); }
void Normalizer::add_strip(bool left, bool right) {
  changes_.push_back({.type = Change::Type::kStrip, .left = left, .right = right});
}
void Normalizer::add_nmt() { changes_.push_back({.type = Change::Type::kNmt}); }
void Normalizer::add_bert(Bert options) {
  changes_.push_back({.type = Change::Type::kBert, .bert = options});
}
void Normalizer::add_prepend(std::string text) {
  changes_.push_back({.type = Change::Type::kPrepend, .to = std::move(text)});
}
void Normalizer::add_replace(std::string from, std::string to) {
  require(!from.empty(), "a replacement of nothing");
  changes_.push_back(
      {.type = Change::Type::kReplace, .from = std::move(from), .to = std::move(to)});
}
void Normalizer::add_replace(std::shared_ptr<const Pattern> pattern, std::string to) {
  changes_.push_back(
      {.type = Change::Type::kReplacePattern, .to = std::move(to), .pattern = std::move(pattern)});
}
void Normalizer::add_precompiled(std::shared_ptr<const PrecompiledMap> map) {
  changes_.push_back({.type = Change::Type::kPrecompiled, .map = std::move(map)});
}

bool Normalizer::surely_same(const Change& change, std::string_view text, bool continues) {
  switch (change.type) {
    case Change::Type::kForm:
      return change.form == Form::kNfc ? surely_nfc(text) : is_ascii(text);
    case Change::Type::kStripAccents:
      return is_ascii(text);
    case Change::Type::kPrepend:
      return continues || text.empty();
    case Change::Type::kReplace:
      return text.find(change.from) == std::string_view::npos;
    default:
      return text.empty();
  }
}

std::string Normalizer::changed(const Change& change, std::string_view text, size_t most_bytes) {
  std::string result;
  switch (change.type) {
    case Change::Type::kForm:
      return in_form(change.form, text);
    case Change::Type::kLowercase:
      return lowered(text);
    case Change::Type::kStripAccents:
      return without(is_accent, text);
    case Change::Type::kStrip:
      return stripped(text, change.left, change.right);
    case Change::Type::kBert:
      return bert(change.bert, text);
    case Change::Type::kNmt:
      for_valid(text, result, [&](std::string_view valid) {
        for_characters(valid, [&](std::string_view character, uint32_t point) {
          append_nmt(character, point, result);
        });
      });
      return result;
    case Change::Type::kPrepend:
      result.reserve(change.to.size() + text.size());
      return result.append(change.to).append(text);
    case Change::Type::kReplace:
      result.reserve(text.size() + text.size() / 2);
      append_replaced(text, change.from, change.to, most_bytes, result);
      return result;
    case Change::Type::kReplacePattern:
      for_valid(text, result, [&](std::string_view valid) {
        append_replaced(valid, *change.pattern, change.to, most_bytes, result);
      });
      return result;
    case Change::Type::kPrecompiled:
      for_valid(text, result, [&](std::string_view valid) {
        change.map->append(valid, result);
        require_size(result, most_bytes, "precompiled_charsmap");
      });
      return result;
  }
  internal_error("no normalizer {}", static_cast<int>(change.type));
}

std::string_view Normalizer::apply(std::string_view text, bool continues,
                                   std::string& buffer) const {
  const size_t most_bytes = most_replaced_bytes(text.size());
  for (const Change& change : changes_) {
    if (surely_same(change, text, continues)) continue;
    std::string next = changed(change, text, most_bytes);
    buffer = std::move(next);
    text = buffer;
  }
  return text;
}

bool Normalizer::cuts_before_spaces() const {
  return std::all_of(changes_.begin(), changes_.end(), [](const Change& change) {
    if (change.type == Change::Type::kStrip || change.type == Change::Type::kReplacePattern ||
        change.type == Change::Type::kPrecompiled)
      return false;
    return change.type != Change::Type::kReplace || change.from.find(' ', 1) == std::string::npos;
  });
}

}  // namespace onefold
