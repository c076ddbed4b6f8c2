#include "data/byte_level.h"

#include <array>
#include <cstring>

namespace onefold {
namespace {

// Printable Latin-1 bytes stand for themselves; the other 68 get the code points from 256 up, in
// order.
struct Alphabet {
  std::array<uint16_t, 256> code_point{};
  std::array<int16_t, 256 + 68> byte{};

  Alphabet() {
    byte.fill(-1);
    int next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const int point = printable ? b : next++;
      code_point[static_cast<size_t>(b)] = static_cast<uint16_t>(point);
      byte[static_cast<size_t>(point)] = static_cast<int16_t>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet kAlphabet;
  return kAlphabet;
}

bool continues(unsigned char c) { return (c & 0xC0) == 0x80; }

}  // namespace

std::string to_byte_alphabet(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const unsigned char b : bytes) {
    const unsigned point = alphabet().code_point[b];
    if (point < 0x80) {
      text.push_back(static_cast<char>(point));
    } else {
      text.push_back(static_cast<char>(0xC0 | (point >> 6)));
      text.push_back(static_cast<char>(0x80 | (point & 0x3F)));
    }
  }
  return text;
}

bool from_byte_alphabet(std::string_view text, std::string& bytes) {
  bytes.clear();
  while (!text.empty()) {
    const size_t length = utf8_sequence(text);
    if (length == 0 || length > 2) return false;  // the alphabet ends below U+0800
    unsigned point = static_cast<unsigned char>(text[0]);
    if (length == 2) point = (point & 0x1F) << 6 | (static_cast<unsigned char>(text[1]) & 0x3F);
    if (point >= alphabet().byte.size() || alphabet().byte[point] < 0) return false;
    bytes.push_back(static_cast<char>(alphabet().byte[point]));
    text.remove_prefix(length);
  }
  return true;
}

size_t utf8_sequence(std::string_view text) {
  if (text.empty()) return 0;
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char c = at(0);
  if (c < 0x80) return 1;
  if (c < 0xC2 || c > 0xF4) return 0;  // a continuation byte, an overlong form, or beyond Unicode
  if (c < 0xE0) return text.size() >= 2 && continues(at(1)) ? 2 : 0;
  if (c < 0xF0) {
    if (text.size() < 3 || !continues(at(1)) || !continues(at(2))) return 0;
    if (c == 0xE0 && at(1) < 0xA0) return 0;   // overlong
    if (c == 0xED && at(1) >= 0xA0) return 0;  // a surrogate
    return 3;
  }
  if (text.size() < 4 || !continues(at(1)) || !continues(at(2)) || !continues(at(3))) return 0;
  if (c == 0xF0 && at(1) < 0x90) return 0;   // overlong
  if (c == 0xF4 && at(1) >= 0x90) return 0;  // above U+10FFFF
  return 4;
}

size_t utf8_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight;
    if (at + sizeof(eight) <= text.size()) {  // most text is ASCII: take it eight bytes at a time
      std::memcpy(&eight, text.data() + at, sizeof(eight));
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof(eight);
        continue;
      }
    }
    const size_t length = utf8_sequence(text.substr(at));
    if (length == 0) break;
    at += length;
  }
  return at;
}

// What a decoder that has read `text` so far would still call the start of a character: Unicode's
// "maximal subpart", of at least one byte.
static size_t ill_formed_part(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char c = at(0);
  const size_t wanted = c >= 0xC2 && c < 0xE0    ? 2
                        : c >= 0xE0 && c < 0xF0  ? 3
                        : c >= 0xF0 && c <= 0xF4 ? 4
                                                 : 1;
  if (wanted < 2 || text.size() < 2 || !continues(at(1))) return 1;
  if ((c == 0xE0 && at(1) < 0xA0) || (c == 0xED && at(1) >= 0xA0) || (c == 0xF0 && at(1) < 0x90) ||
      (c == 0xF4 && at(1) >= 0x90))
    return 1;
  size_t length = 2;
  while (length < wanted - 1 && length < text.size() && continues(at(length))) ++length;
  return length;
}

std::string utf8_lossy(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t valid = utf8_prefix(text);
    result.append(text.substr(0, valid));
    text.remove_prefix(valid);
    if (text.empty()) break;
    result += "\uFFFD";
    text.remove_prefix(ill_formed_part(text));
  }
  return result;
}

uint64_t fnv1a64(std::string_view bytes) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const unsigned char b : bytes) hash = (hash ^ b) * 0x100000001B3u;
  return hash;
}

}  // namespace onefold
