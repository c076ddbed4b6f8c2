#include "data/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>

#include "data/byte_level.h"

namespace onefold {
namespace {

bool ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// The code point of the well-formed sequence that `text` is.
int32_t code_point(std::string_view text) {
  utf8proc_int32_t point = -1;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &point);
  return point;
}

// The character that `text` ends with; -1 if it ends with none.
int32_t last_character(std::string_view text, size_t& bytes) {
  for (bytes = 1; bytes <= std::min<size_t>(4, text.size()); ++bytes) {
    const std::string_view tail = text.substr(text.size() - bytes);
    if (utf8_sequence(tail) == bytes) return code_point(tail);
  }
  return -1;
}

int32_t first_character(std::string_view text, size_t& bytes) {
  bytes = utf8_sequence(text);
  return bytes == 0 ? -1 : code_point(text.substr(0, bytes));
}

// \s and \w of Rust's regular expressions, which are Unicode's White_Space and word characters.
bool is_space(int32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_word(int32_t c) {
  if (c < 0) return false;
  if (c == 0x200C || c == 0x200D) return true;  // joiners
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:  // letters in circles and squares are symbols by category, and alphabetic all the same
      return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
             (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  }
}

}  // namespace

void AddedTokenFinder::add(const AddedToken& token, std::string_view text) {
  if (text.empty()) return;
  starts_[static_cast<unsigned char>(text[0])] = true;
  uint32_t node = 0;
  for (const char c : text) {
    const auto& next = nodes_[node].next;
    const auto found =
        std::find_if(next.begin(), next.end(), [&](const auto& edge) { return edge.first == c; });
    if (found != next.end()) {
      node = found->second;
      continue;
    }
    const auto made = static_cast<uint32_t>(nodes_.size());
    nodes_[node].next.emplace_back(c, made);
    nodes_.emplace_back();
    node = made;
  }
  nodes_[node].token = token;
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == ' ' && ascii_letter(text[i - 1])) cuts_before_spaces_ = false;
  }
  if (token.rstrip && ascii_letter(text.back())) cuts_before_spaces_ = false;
}

std::pair<const AddedToken*, size_t> AddedTokenFinder::at(std::string_view text) const {
  const AddedToken* longest = nullptr;
  size_t length = 0;
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto& next = nodes_[node].next;
    const auto found = std::find_if(next.begin(), next.end(),
                                    [&](const auto& edge) { return edge.first == text[i]; });
    if (found == next.end()) break;
    node = found->second;
    if (nodes_[node].token.id >= 0) longest = &nodes_[node].token, length = i + 1;
  }
  return {longest, length};
}

void AddedTokenFinder::split(std::string_view text, bool specials, const Visit& visit) const {
  size_t plain = 0;  // start of the text not yet handed on
  for (size_t at_byte = 0; !empty() && at_byte < text.size();) {
    if (!starts_[static_cast<unsigned char>(text[at_byte])]) {
      ++at_byte;
      continue;
    }
    const auto [token, length] = at(text.substr(at_byte));
    if (!token) {
      ++at_byte;
      continue;
    }
    size_t begin = at_byte, end = at_byte + length, bytes = 0;
    at_byte = end;
    if (token->special && !specials) continue;
    if (token->single_word && (is_word(last_character(text.substr(0, begin), bytes)) ||
                               is_word(first_character(text.substr(end), bytes))))
      continue;
    if (token->lstrip) {
      while (begin > plain && is_space(last_character(text.substr(0, begin), bytes)))
        begin -= bytes;
      begin = std::max(begin, plain);
    }
    if (token->rstrip) {
      while (is_space(first_character(text.substr(end), bytes))) end += bytes;
    }
    if (plain < begin) visit(text.substr(plain, begin - plain), nullptr);
    visit(text.substr(begin, end - begin), token);
    plain = end;
  }
  if (plain < text.size()) visit(text.substr(plain), nullptr);
}

}  // namespace onefold
