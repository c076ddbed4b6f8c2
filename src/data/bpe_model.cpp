#include "data/bpe_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "data/byte_level.h"

namespace onefold {

std::string byte_token_name(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

int byte_of_token_name(std::string_view name) {
  if (name.size() != 6 || !name.starts_with("<0x") || !name.ends_with('>')) return -1;
  int byte = -1;
  const auto [end, error] = std::from_chars(name.data() + 3, name.data() + 5, byte, 16);
  return error == std::errc() && end == name.data() + 5 ? byte : -1;
}

BpeModel::BpeModel(const BpeModelParts& parts)
    : byte_level_(parts.byte_level),
      byte_fallback_(parts.byte_fallback),
      fuse_unknown_(parts.fuse_unknown),
      unknown_(parts.unknown),
      prefix_(parts.prefix),
      suffix_(parts.suffix),
      merges_(parts.merges.size()) {
  byte_ids_.fill(-1);
  const bool affixes = !prefix_.empty() || !suffix_.empty();
  for (const auto& [text, id, score] : parts.vocabulary) {
    if (parts.ignore_merges) words_.emplace(text, id);
    if (affixes) characters_.emplace(text, id);
    if (byte_level_) {
      if (text.size() == 1) byte_ids_[static_cast<unsigned char>(text[0])] = id;
      continue;
    }
    if (utf8_sequence(text) == text.size()) characters_.emplace(text, id);
    if (const int byte = byte_of_token_name(text); byte >= 0 && byte_fallback_) {
      if (text == byte_token_name(static_cast<unsigned char>(byte)))  // in capitals
        byte_ids_[static_cast<size_t>(byte)] = id;
    }
  }
  for (size_t rank = 0; rank < parts.merges.size(); ++rank) {
    const auto& [left, right, merged] = parts.merges[rank];
    merges_.add(left, right, {static_cast<uint32_t>(rank), merged});
  }
  if (!byte_level_ && !affixes) find_cuts(parts);
}

void BpeModel::find_cuts(const BpeModelParts& parts) {
  // An unknown token joins neighbours without a merge, and so does a word that is a token.
  const bool complete = std::find(byte_ids_.begin(), byte_ids_.end(), -1) == byte_ids_.end();
  if (!complete || parts.ignore_merges) return;
  std::unordered_map<int32_t, std::string_view> texts;
  for (const auto& [text, id, score] : parts.vocabulary) texts.emplace(id, text);
  std::vector<std::bitset<kClasses>> joins(kClasses);
  const auto note = [&](std::string_view text) {
    size_t before = kClasses;
    for (size_t at = 0, bytes = 0; at < text.size(); at += bytes) {
      const size_t here = class_at(text, at, bytes);
      if (before != kClasses) joins[before].set(here);
      before = here;
    }
  };
  for (const auto& [left, right, merged] : parts.merges) {
    for (const int32_t side : {left, right}) {  // merges of byte tokens have other neighbours
      if (std::find(byte_ids_.begin(), byte_ids_.end(), side) != byte_ids_.end()) return;
    }
    note(texts[merged]);
  }
  joins_ = std::move(joins);
}

size_t BpeModel::class_at(std::string_view text, size_t at, size_t& bytes) {
  const auto c = static_cast<unsigned char>(text[at]);
  bytes = 1;
  if (c < 0x80) return c;
  bytes = std::max<size_t>(utf8_sequence(text.substr(at)), 1);
  return text.substr(at, bytes) == "\u2581" ? kMark : kOther;
}

void BpeModel::cut(std::string_view word, const std::function<void(std::string_view)>& part) const {
  if (joins_.empty() || word.empty()) return part(word);
  size_t begin = 0, bytes = 0;
  size_t before = class_at(word, 0, bytes);
  for (size_t at = bytes; at < word.size(); at += bytes) {
    const size_t here = class_at(word, at, bytes);
    if (!joins_[before][here]) {
      part(word.substr(begin, at - begin));
      begin = at;
    }
    before = here;
  }
  part(word.substr(begin));
}

bool BpeModel::cuts_before(std::string_view mark) const {
  if (joins_.empty() || mark.empty()) return false;
  size_t bytes = 0;
  const size_t here = class_at(mark, 0, bytes);
  for (char c = 'a'; c <= 'z'; ++c) {
    if (joins_[static_cast<size_t>(c)][here] || joins_[static_cast<size_t>(c - 0x20)][here])
      return false;
  }
  return true;
}

void BpeModel::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (!words_.empty()) {
    if (const auto found = words_.find(word); found != words_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  thread_local std::vector<int32_t> symbols;
  symbols.clear();
  if (byte_level_ && prefix_.empty() && suffix_.empty()) {
    byte_symbols(word, symbols);
  } else {
    character_symbols(word, symbols);
  }
  merge_symbols(merges_, symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

std::string BpeModel::affixed(std::string_view symbol, bool first, bool last) const {
  std::string text(first ? "" : prefix_);
  text.append(symbol);
  return last ? text + suffix_ : text;
}

void BpeModel::byte_symbols(std::string_view word, std::vector<int32_t>& symbols) const {
  for (const char c : word) symbols.push_back(byte_ids_[static_cast<unsigned char>(c)]);
}

bool BpeModel::fall_back(std::string_view character, std::vector<int32_t>& symbols) const {
  if (!byte_fallback_) return false;
  const auto has_token = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)] >= 0; };
  if (!std::all_of(character.begin(), character.end(), has_token)) return false;
  byte_symbols(character, symbols);
  return true;
}

// The unknown token is appended only before the next known character, so that neighbours can be
// fused. Byte tokens do not count as known: `tokenizers` puts them before the unknown characters
// they follow.
void BpeModel::character_symbols(std::string_view word, std::vector<int32_t>& symbols) const {
  bool waiting = false;
  for (size_t at = 0; at < word.size();) {
    const size_t bytes = byte_level_ ? 1 : std::max<size_t>(utf8_sequence(word.substr(at)), 1);
    const std::string_view character = word.substr(at, bytes);
    const bool first = at == 0;
    at += bytes;
    const auto found = prefix_.empty() && suffix_.empty()
                           ? characters_.find(character)
                           : characters_.find(affixed(character, first, at == word.size()));
    if (found != characters_.end()) {
      if (waiting) symbols.push_back(unknown_);
      waiting = false;
      symbols.push_back(found->second);
    } else if (!fall_back(character, symbols) && unknown_ >= 0) {
      if (waiting && !fuse_unknown_) symbols.push_back(unknown_);
      waiting = true;
    }
  }
  if (waiting) symbols.push_back(unknown_);
}

}  // namespace onefold
