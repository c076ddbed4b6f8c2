#include "data/tokenizer.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "data/byte_level.h"

namespace onefold {
namespace {

// A word of at most 16 bytes as two integers; with its length they identify it. Overlapping loads,
// because a copy of variable length costs more than the rest of a cache hit.
struct PackedWord {
  uint64_t low, high;
};

PackedWord pack(std::string_view word) {
  const char* const p = word.data();
  const size_t n = word.size();
  PackedWord packed{0, 0};
  if (n >= 8) {
    std::memcpy(&packed.low, p, 8);
    std::memcpy(&packed.high, p + n - 8, 8);
  } else if (n >= 4) {
    std::memcpy(&packed.low, p, 4);
    std::memcpy(&packed.high, p + n - 4, 4);
  } else {
    packed.low = static_cast<unsigned char>(p[0]) |
                 uint64_t{static_cast<unsigned char>(p[n / 2])} << 8 |
                 uint64_t{static_cast<unsigned char>(p[n - 1])} << 16;
  }
  return packed;
}

uint64_t mix(PackedWord word, size_t bytes, uint32_t owner) {
  uint64_t hash = (word.low ^ (uint64_t{bytes} << 56) ^ owner) * 0x9E3779B97F4A7C15u;
  hash = (hash ^ (hash >> 32) ^ word.high) * 0xC2B2AE3D27D4EB4Fu;
  return hash ^ (hash >> 29);
}

WordCache& thread_cache() {
  thread_local WordCache cache;
  return cache;
}

}  // namespace

Tokenizer::Tokenizer(TokenizerParts parts)
    : parts_(std::make_shared<const TokenizerParts>(std::move(parts))),
      merges_(parts_->merges.size()) {
  static std::atomic<uint32_t> next_number{1};
  number_ = next_number++;
  byte_ids_.fill(-1);
  for (size_t i = 0; i < parts_->tokens.size(); ++i) {
    const std::string& token = parts_->tokens[i];
    if (token.empty()) continue;
    ids_.emplace(token, static_cast<int32_t>(i));
  }
  is_added_.resize(parts_->tokens.size());
  for (const AddedToken& token : parts_->added) {
    is_added_[static_cast<size_t>(token.id)] = true;
    if (token.text.empty()) continue;
    added_.push_back(&token);
    added_starts_[static_cast<unsigned char>(token.text[0])] = true;
  }
  std::stable_sort(added_.begin(), added_.end(), [](const AddedToken* a, const AddedToken* b) {
    return a->text.size() > b->text.size();
  });
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    byte_ids_[static_cast<size_t>(b)] = token_id({&byte, 1});
    require(byte_ids_[static_cast<size_t>(b)] >= 0, "a tokenizer without a token for byte 0x{:02x}",
            b);
  }
  for (size_t rank = 0; rank < parts_->merges.size(); ++rank) {
    const auto& [left, right, merged] = parts_->merges[rank];
    merges_.add(left, right, {static_cast<uint32_t>(rank), merged});
  }
  for (const std::string_view name : {kEndOfText, std::string_view("<|end_of_text|>"),
                                      std::string_view("</s>"), std::string_view("<eos>")}) {
    if (end_of_text_ >= 0) break;
    for (const AddedToken& token : parts_->added) {
      if (token.text == name) end_of_text_ = token.id;
    }
  }
}

Tokenizer Tokenizer::bytes() {
  TokenizerParts parts;
  for (int b = 0; b < 256; ++b) parts.tokens.emplace_back(1, static_cast<char>(b));
  parts.tokens.emplace_back(kEndOfText);
  parts.added.push_back({.id = 256, .text = std::string(kEndOfText)});
  parts.pretokenizer.add_gpt2();
  return Tokenizer(std::move(parts));
}

Tokenizer Tokenizer::load(const std::string& path) { return parse(read_file(path), path); }

void Tokenizer::save(const std::string& path) const { write_file(path, to_json()); }

uint64_t Tokenizer::hash() const { return fnv1a64(to_json()); }

const std::string& Tokenizer::token_text(int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    user_error(
        "token {} is outside the tokenizer's vocabulary of {}; was the text made with another "
        "tokenizer?",
        id, vocab_size());
  }
  return parts_->tokens[static_cast<size_t>(id)];
}

int32_t Tokenizer::token_id(std::string_view bytes) const {
  const auto found = ids_.find(bytes);
  return found == ids_.end() ? -1 : found->second;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) text += token_text(id);
  return text;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, Specials specials) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 1);
  encode(text, specials, thread_cache(), ids);
  return ids;
}

void Tokenizer::encode(std::string_view text, Specials specials, WordCache& cache,
                       std::vector<int32_t>& ids) const {
  size_t plain = 0;  // start of the text not yet encoded
  const bool any = std::any_of(added_.begin(), added_.end(), [&](const AddedToken* token) {
    return !token->special || specials == Specials::kMatch;
  });
  for (size_t at = 0; any && at < text.size();) {
    const AddedToken* const token = added_at(text.substr(at), specials);
    if (!token) {
      ++at;
      continue;
    }
    encode_plain(text.substr(plain, at - plain), cache, ids);
    ids.push_back(token->id);
    at += token->text.size();
    plain = at;
  }
  encode_plain(text.substr(plain), cache, ids);
}

// The longest added token that `text` begins with.
const AddedToken* Tokenizer::added_at(std::string_view text, Specials specials) const {
  if (!added_starts_[static_cast<unsigned char>(text[0])]) return nullptr;
  for (const AddedToken* token : added_) {
    if ((!token->special || specials == Specials::kMatch) && text.starts_with(token->text))
      return token;
  }
  return nullptr;
}

void Tokenizer::encode_plain(std::string_view text, WordCache& cache,
                             std::vector<int32_t>& ids) const {
  if (text.empty()) return;
  std::string prefixed;
  if (parts_->add_prefix_space && text[0] != ' ') {
    prefixed.append(1, ' ').append(text);
    text = prefixed;
  }
  parts_->pretokenizer.split(text, [&](std::string_view word) { encode_word(word, cache, ids); });
}

void Tokenizer::encode_word(std::string_view word, WordCache& cache,
                            std::vector<int32_t>& ids) const {
  if (word.size() > WordCache::kMaxBytes) return merge_word(word, ids);
  const PackedWord packed = pack(word);
  WordCache::Slot& slot =
      cache.slots_[mix(packed, word.size(), number_) & ((size_t{1} << WordCache::kSlotsLog2) - 1)];
  if (slot.low == packed.low && slot.high == packed.high && slot.bytes == word.size() &&
      slot.owner == number_) {
    ids.insert(ids.end(), slot.tokens.begin(), slot.tokens.begin() + slot.count);
    return;
  }
  const size_t before = ids.size();
  merge_word(word, ids);
  const size_t count = ids.size() - before;
  if (count > WordCache::kMaxTokens) return;
  slot.low = packed.low;
  slot.high = packed.high;
  slot.owner = number_;
  slot.bytes = static_cast<uint8_t>(word.size());
  slot.count = static_cast<uint8_t>(count);
  std::copy(ids.end() - static_cast<ptrdiff_t>(count), ids.end(), slot.tokens.begin());
}

void Tokenizer::merge_word(std::string_view word, std::vector<int32_t>& ids) const {
  if (parts_->ignore_merges) {
    if (const int32_t id = token_id(word); id >= 0 && !is_added_[static_cast<size_t>(id)]) {
      ids.push_back(id);
      return;
    }
  }
  thread_local std::vector<int32_t> symbols;
  symbols.clear();
  for (const unsigned char b : word) symbols.push_back(byte_ids_[b]);
  merge_symbols(merges_, symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

size_t Tokenizer::safe_cut(std::string_view text, size_t at_least) const {
  const bool added_may_span = std::any_of(
      added_.begin(), added_.end(),
      [](const AddedToken* token) { return token->text.find(' ') != std::string::npos; });
  if (parts_->add_prefix_space || added_may_span || !parts_->pretokenizer.cuts_before_spaces())
    return text.size();
  for (size_t at = std::max<size_t>(at_least, 1); at < text.size(); ++at) {
    const char before = static_cast<char>(text[at - 1] | 0x20);
    if (text[at] == ' ' && before >= 'a' && before <= 'z') return at;
  }
  return text.size();
}

}  // namespace onefold
