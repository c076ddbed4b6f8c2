#include "data/tokenizer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>

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

// The vocabulary as the model sees it: model.vocab, without tokens that are only added.
std::shared_ptr<const WordModel> model_of(const TokenizerParts& parts) {
  std::vector<VocabularyToken> vocabulary;
  std::vector<bool> only_added(parts.tokens.size());
  for (const AddedToken& token : parts.added)
    only_added[static_cast<size_t>(token.id)] = !token.in_vocabulary;
  const std::vector<std::string>& texts = parts.byte_level ? parts.tokens : parts.spellings;
  int32_t unknown = -1;
  for (size_t id = 0; id < texts.size(); ++id) {
    if (texts[id].empty() || only_added[id]) continue;
    vocabulary.push_back(
        {texts[id], static_cast<int32_t>(id), id < parts.scores.size() ? parts.scores[id] : 0});
    if (parts.spellings[id] == parts.unknown_token) unknown = static_cast<int32_t>(id);
  }
  switch (parts.model) {
    case TokenizerParts::Model::kUnigram:
      return make_unigram(vocabulary, unknown, parts.byte_fallback);
    case TokenizerParts::Model::kWordPiece:
      return make_word_piece(vocabulary, unknown, parts.piece_prefix, parts.most_characters);
    case TokenizerParts::Model::kWordLevel:
      return make_word_level(vocabulary, unknown);
    case TokenizerParts::Model::kBpe:
      break;
  }
  return std::make_shared<const BpeModel>(BpeModelParts{.byte_level = parts.byte_level,
                                                        .vocabulary = std::move(vocabulary),
                                                        .merges = parts.merges,
                                                        .ignore_merges = parts.ignore_merges,
                                                        .byte_fallback = parts.byte_fallback,
                                                        .fuse_unknown = parts.fuse_unknown,
                                                        .unknown = unknown,
                                                        .prefix = parts.piece_prefix,
                                                        .suffix = parts.word_suffix});
}

TokenizerParts completed(TokenizerParts parts) {
  if (parts.spellings.empty()) {
    parts.spellings.reserve(parts.tokens.size());
    for (const std::string& token : parts.tokens)
      parts.spellings.push_back(to_byte_alphabet(token));
  }
  return parts;
}

}  // namespace

std::string TokenizerParts::shown(const AddedToken& token) const {
  std::string buffer;
  return token.normalized ? std::string(normalizer.apply(token.text, false, buffer)) : token.text;
}

Tokenizer::Tokenizer(TokenizerParts parts)
    : parts_(std::make_shared<const TokenizerParts>(completed(std::move(parts)))),
      model_(model_of(*parts_)) {
  static std::atomic<uint32_t> next_number{1};
  number_ = next_number++;
  for (size_t id = 0; id < parts_->tokens.size(); ++id) {
    if (!parts_->tokens[id].empty()) ids_.emplace(parts_->tokens[id], static_cast<int32_t>(id));
  }
  std::set<std::string_view> specials;  // `tokenizers` knows a special token by its text alone
  for (const AddedToken& token : parts_->added)
    if (token.special) specials.insert(token.text);
  for (const AddedToken& token : parts_->added) {
    const std::string shown = parts_->shown(token);
    (token.normalized ? normalized_added_ : raw_added_).add(token, shown);
    shown_[token.id] = {shown, specials.contains(shown)};
  }
  for (const std::string_view name : {kEndOfText, std::string_view("<|end_of_text|>"),
                                      std::string_view("</s>"), std::string_view("<eos>")}) {
    if (end_of_text_ >= 0) break;
    for (const AddedToken& token : parts_->added) {
      if (token.text == name) set_end_of_text(token.id, "its name");
    }
  }
  cuts_before_spaces_ = may_cut_before_spaces();
}

Tokenizer Tokenizer::bytes() {
  TokenizerParts parts;
  for (int b = 0; b < 256; ++b) parts.tokens.emplace_back(1, static_cast<char>(b));
  parts.tokens.emplace_back(kEndOfText);
  parts.added.push_back({.id = 256, .text = std::string(kEndOfText)});
  parts.pretokenizer.add_gpt2();
  parts.decoder.add_byte_level();
  return Tokenizer(std::move(parts));
}

void Tokenizer::set_chat_template(ChatTemplateText text) {
  chat_template_ = std::make_shared<const ChatTemplateText>(std::move(text));
}

void Tokenizer::set_end_of_text(int32_t id, std::string source) {
  require(id >= 0 && id < vocab_size(), "end-of-text {} of {} tokens", id, vocab_size());
  end_of_text_ = id;
  end_of_text_source_ = std::move(source);
}

Tokenizer Tokenizer::load(const std::string& path) { return parse(read_plain_file(path), path); }

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

std::string Tokenizer::decode_text(std::span<const int32_t> ids, bool skip_specials) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    if (token_text(id).empty()) continue;
    const auto added = shown_.find(id);
    if (added == shown_.end()) {
      tokens.push_back(parts_->spellings[static_cast<size_t>(id)]);
    } else if (!skip_specials || !added->second.special) {
      tokens.push_back(added->second.text);
    }
  }
  return parts_->decoder.text_of(std::move(tokens));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, Specials specials) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 1);
  encode(text, specials, thread_cache(), ids);
  return ids;
}

void Tokenizer::encode(std::string_view text, Specials specials, WordCache& cache,
                       std::vector<int32_t>& ids, Place place) const {
  const bool match = specials == Specials::kMatch;
  std::string buffer;
  raw_added_.split(text, match, [&](std::string_view raw, const AddedToken* token) {
    if (token) return ids.push_back(token->id);
    const bool at_begin = raw.data() == text.data();
    const bool continues = at_begin && place == Place::kContinue;
    const std::string_view plain = parts_->normalizer.apply(raw, continues, buffer);
    normalized_added_.split(plain, match, [&](std::string_view piece, const AddedToken* found) {
      if (found) return ids.push_back(found->id);
      const bool first = at_begin && !continues && piece.data() == plain.data();
      encode_plain(piece, first, cache, ids);
    });
  });
}

// `first`: nothing of the text comes before this.
void Tokenizer::encode_plain(std::string_view text, bool first, WordCache& cache,
                             std::vector<int32_t>& ids) const {
  if (text.empty()) return;
  if (parts_->before_metaspace.empty()) return encode_part(text, first, cache, ids);
  parts_->before_metaspace.split(text, [&](std::string_view part) {
    encode_part(part, first && part.data() == text.data(), cache, ids);
  });
}

void Tokenizer::encode_part(std::string_view text, bool first, WordCache& cache,
                            std::vector<int32_t>& ids) const {
  std::string changed;
  if (const auto& metaspace = parts_->metaspace) {
    changed.reserve(text.size() + text.size() / 2);
    const bool wanted = metaspace->prepend == Metaspace::Prepend::kAlways ||
                        (metaspace->prepend == Metaspace::Prepend::kFirst && first);
    if (wanted && text[0] != ' ' && !text.starts_with(metaspace->mark)) changed += metaspace->mark;
    append_replaced(text, " ", metaspace->mark, most_replaced_bytes(text.size()), changed);
    text = changed;
  } else if (parts_->add_prefix_space && text[0] != ' ') {
    changed.append(1, ' ').append(text);
    text = changed;
  }
  if (parts_->byte_level) {
    return parts_->pretokenizer.split(
        text, [&](std::string_view word) { encode_word(word, cache, ids); });
  }
  const auto encode_cut = [&](std::string_view part) { encode_word(part, cache, ids); };
  if (parts_->pretokenizer.empty()) return model_->cut(text, encode_cut);
  parts_->pretokenizer.split(text, [&](std::string_view word) { model_->cut(word, encode_cut); });
}

void Tokenizer::encode_word(std::string_view word, WordCache& cache,
                            std::vector<int32_t>& ids) const {
  if (word.size() > WordCache::kMaxBytes) return model_->encode(word, ids);
  const PackedWord packed = pack(word);
  WordCache::Slot& slot =
      cache.slots_[mix(packed, word.size(), number_) & ((size_t{1} << WordCache::kSlotsLog2) - 1)];
  if (slot.low == packed.low && slot.high == packed.high && slot.bytes == word.size() &&
      slot.owner == number_) {
    ids.insert(ids.end(), slot.tokens.begin(), slot.tokens.begin() + slot.count);
    return;
  }
  const size_t before = ids.size();
  model_->encode(word, ids);
  const size_t count = ids.size() - before;
  if (count > WordCache::kMaxTokens) return;
  slot.low = packed.low;
  slot.high = packed.high;
  slot.owner = number_;
  slot.bytes = static_cast<uint8_t>(word.size());
  slot.count = static_cast<uint8_t>(count);
  std::copy(ids.end() - static_cast<ptrdiff_t>(count), ids.end(), slot.tokens.begin());
}

// Whether a text may be cut between any ASCII letter and a space after it.
bool Tokenizer::may_cut_before_spaces() const {
  const TokenizerParts& parts = *parts_;
  if (!raw_added_.cuts_before_spaces() || !normalized_added_.cuts_before_spaces() ||
      !parts.normalizer.cuts_before_spaces() || !parts.before_metaspace.empty())
    return false;
  if (parts.byte_level) return parts.pretokenizer.cuts_before_spaces();
  std::string buffer;  // what a space has become when words are cut
  std::string mark(parts.normalizer.apply(" ", true, buffer));
  if (parts.metaspace && mark == " ") mark = parts.metaspace->mark;
  return parts.pretokenizer.cuts_before(mark) ||
         (parts.pretokenizer.empty() && model_->cuts_before(mark));
}

size_t Tokenizer::safe_cut(std::string_view text, size_t at_least) const {
  if (!cuts_before_spaces_) return text.size();
  for (size_t at = std::max<size_t>(at_least, 1); at < text.size(); ++at) {
    const char before = static_cast<char>(text[at - 1] | 0x20);
    if (text[at] == ' ' && before >= 'a' && before <= 'z') return at;
  }
  return text.size();
}

}  // namespace onefold
