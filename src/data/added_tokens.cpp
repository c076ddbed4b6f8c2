#include "data/added_tokens.h"

#include <algorithm>

#include "data/byte_level.h"
#include "data/characters.h"

namespace onefold {
namespace {

bool ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// The character that `text` ends with; -1 if it ends with none.
int32_t last_character(std::string_view text, size_t& bytes) {
  for (bytes = 1; bytes <= std::min<size_t>(4, text.size()); ++bytes) {
    const std::string_view tail = text.substr(text.size() - bytes);
    if (utf8_sequence(tail) == bytes) return static_cast<int32_t>(code_point_of(tail));
  }
  return -1;
}

int32_t first_character(std::string_view text, size_t& bytes) {
  bytes = utf8_sequence(text);
  return bytes == 0 ? -1 : static_cast<int32_t>(code_point_of(text));
}

bool is_space(int32_t c) { return c >= 0 && is_space_character(static_cast<uint32_t>(c)); }
bool is_word(int32_t c) { return c >= 0 && is_word_character(static_cast<uint32_t>(c)); }

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
  // Whether it counts depends on the letter before its space.
  if (token.single_word && text[0] == ' ') cuts_before_spaces_ = false;
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
    // White space that the token before has taken is no token again.
    if (begin >= end) continue;
    if (plain < begin) visit(text.substr(plain, begin - plain), nullptr);
    visit(text.substr(begin, end - begin), token);
    plain = end;
  }
  if (plain < text.size()) visit(text.substr(plain), nullptr);
}

}  // namespace onefold
