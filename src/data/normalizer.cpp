#include "data/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "data/byte_level.h"

namespace onefold {
namespace {

// Characters below U+0300, whose UTF-8 begins with a byte below 0xCC, are in NFC whatever follows,
// save for a combining mark, which is none of them.
bool surely_nfc(std::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<unsigned char>(c) >= 0xCC; });
}

void append_nfc(std::string_view valid, std::string& result) {
  if (valid.empty()) return;
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(valid.data()),
                   static_cast<utf8proc_ssize_t>(valid.size()), &mapped,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  if (length < 0) {
    user_error(
        "a text of {} bytes could not be brought into NFC: {}; cut it into smaller documents",
        valid.size(), utf8proc_errmsg(length));
  }
  result.append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(length));
}

std::string nfc(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const size_t valid = utf8_prefix(text);
    append_nfc(text.substr(0, valid), result);
    text.remove_prefix(valid);
    if (text.empty()) break;
    result.push_back(text[0]);  // not UTF-8
    text.remove_prefix(1);
  }
  return result;
}

}  // namespace

void append_replaced(std::string_view text, std::string_view from, std::string_view to,
                     size_t most_bytes, std::string& result) {
  for (size_t at = 0; at <= text.size();) {
    if (result.size() > most_bytes)
      user_error(
          "the tokenizer makes more than {} bytes of one text by replacing \"{}\"; its Replace "
          "steps feed each other",
          most_bytes, from);
    const size_t found = text.find(from, at);
    if (found == std::string_view::npos) {
      result.append(text.substr(at));
      return;
    }
    result.append(text.substr(at, found - at)).append(to);
    at = found + from.size();
  }
}

void Normalizer::add_nfc() { changes_.push_back({.type = Change::Type::kNfc}); }

void Normalizer::add_prepend(std::string text) {
  changes_.push_back({.type = Change::Type::kPrepend, .to = std::move(text)});
}

void Normalizer::add_replace(std::string from, std::string to) {
  require(!from.empty(), "a replacement of nothing");
  changes_.push_back({Change::Type::kReplace, std::move(from), std::move(to)});
}

std::string_view Normalizer::apply(std::string_view text, bool continues,
                                   std::string& buffer) const {
  const size_t most_bytes = most_replaced_bytes(text.size());
  for (const Change& change : changes_) {
    std::string changed;
    switch (change.type) {
      case Change::Type::kNfc:
        if (surely_nfc(text)) continue;
        changed = nfc(text);
        break;
      case Change::Type::kPrepend:
        if (continues || text.empty()) continue;
        changed.reserve(change.to.size() + text.size());
        changed.append(change.to).append(text);
        break;
      case Change::Type::kReplace:
        if (text.find(change.from) == std::string_view::npos) continue;
        changed.reserve(text.size() + text.size() / 2);
        append_replaced(text, change.from, change.to, most_bytes, changed);
        break;
    }
    buffer = std::move(changed);
    text = buffer;
  }
  return text;
}

bool Normalizer::cuts_before_spaces() const {
  return std::all_of(changes_.begin(), changes_.end(), [](const Change& change) {
    return change.type != Change::Type::kReplace || change.from.find(' ', 1) == std::string::npos;
  });
}

}  // namespace onefold
