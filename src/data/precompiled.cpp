#include "data/precompiled.h"

#include <utf8proc.h>

#include <array>
#include <cstring>

#include "base/error.h"
#include "data/byte_level.h"
#include "data/characters.h"

namespace onefold {
namespace {

constexpr size_t kWholeGrapheme = 6;  // bytes; longer ones are taken character by character

// The length of the grapheme that `text` begins with.
size_t grapheme(std::string_view text) {
  utf8proc_int32_t state = 0;
  size_t at = utf8_sequence(text);
  auto before = static_cast<utf8proc_int32_t>(code_point_of(text));
  while (at < text.size()) {
    const auto here = static_cast<utf8proc_int32_t>(code_point_of(text.substr(at)));
    if (utf8proc_grapheme_break_stateful(before, here, &state)) break;
    at += utf8_sequence(text.substr(at));
    before = here;
  }
  return at;
}

}  // namespace

PrecompiledMap::PrecompiledMap(std::string_view bytes, const std::string& source) {
  uint32_t trie_bytes = 0;
  if (bytes.size() >= sizeof(trie_bytes)) std::memcpy(&trie_bytes, bytes.data(), 4);
  if (bytes.size() < sizeof(trie_bytes) || trie_bytes % 4 != 0 || trie_bytes > bytes.size() - 4)
    user_error("{}: precompiled_charsmap is not a map of SentencePiece's", source);
  units_.resize(trie_bytes / 4);
  if (trie_bytes > 0) std::memcpy(units_.data(), bytes.data() + 4, trie_bytes);
  texts_ = bytes.substr(4 + trie_bytes);
  if (utf8_prefix(texts_) != texts_.size())
    user_error("{}: precompiled_charsmap holds texts that are not UTF-8", source);
}

// A unit of Darts' double array: its label in the lowest byte, whether a value follows in bit 8,
// and where its children are, relative to it by exclusive or.
bool PrecompiledMap::find(std::string_view chunk, std::string_view& mapped) const {
  const auto offset = [](uint32_t unit) { return unit >> 10 << ((unit & 0x200) >> 6); };
  if (units_.empty()) return false;
  uint32_t at = offset(units_[0]);
  for (const unsigned char c : chunk) {
    if (c == 0) return false;
    at ^= c;
    if (at >= units_.size()) return false;
    const uint32_t unit = units_[at];
    if ((unit & 0x800000FFu) != c) return false;
    at ^= offset(unit);
    if ((unit >> 8 & 1) == 0) continue;
    if (at >= units_.size()) return false;
    const size_t begin = units_[at] & 0x7FFFFFFFu;
    if (begin > texts_.size()) return false;
    mapped = std::string_view(texts_).substr(begin);
    mapped = mapped.substr(0, mapped.find('\0'));
    return true;
  }
  return false;
}

void PrecompiledMap::append(std::string_view text, std::string& result) const {
  std::string_view mapped;
  while (!text.empty()) {
    const std::string_view whole = text.substr(0, grapheme(text));
    text.remove_prefix(whole.size());
    if (whole.size() < kWholeGrapheme && find(whole, mapped)) {
      result.append(mapped);
      continue;
    }
    for (size_t at = 0; at < whole.size();) {
      const std::string_view character = whole.substr(at, utf8_sequence(whole.substr(at)));
      result.append(find(character, mapped) ? mapped : character);
      at += character.size();
    }
  }
}

bool from_base64(std::string_view text, std::string& bytes) {
  static const std::array<int8_t, 256> kValues = [] {
    std::array<int8_t, 256> values{};
    values.fill(-1);
    constexpr std::string_view kLetters =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < kLetters.size(); ++i)
      values[static_cast<unsigned char>(kLetters[i])] = static_cast<int8_t>(i);
    return values;
  }();
  while (text.ends_with('=')) text.remove_suffix(1);
  bytes.clear();
  bytes.reserve(text.size() * 3 / 4);
  uint32_t held = 0;
  int bits = 0;
  for (const unsigned char c : text) {
    if (kValues[c] < 0) return false;
    held = held << 6 | static_cast<uint32_t>(kValues[c]);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes.push_back(static_cast<char>(held >> bits & 0xFF));
  }
  return bits < 6;
}

}  // namespace onefold
