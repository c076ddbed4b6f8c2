#include "data/word_model.h"

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>

#include "data/bpe_model.h"
#include "data/byte_level.h"

namespace onefold {
namespace {

using Vocabulary = std::unordered_map<std::string_view, int32_t>;

// The last of several tokens with one text counts, as in `tokenizers`.
Vocabulary map_of(std::span<const VocabularyToken> tokens) {
  Vocabulary vocabulary;
  vocabulary.reserve(tokens.size());
  for (const VocabularyToken& token : tokens) vocabulary[token.text] = token.id;
  return vocabulary;
}

size_t character_at(std::string_view text, size_t at) {
  return std::max<size_t>(utf8_sequence(text.substr(at)), 1);
}

class Unigram final : public WordModel {
 public:
  Unigram(std::span<const VocabularyToken> tokens, int32_t unknown, bool byte_fallback)
      : ids_(map_of(tokens)), unknown_(unknown) {
    double lowest = std::numeric_limits<double>::infinity();
    std::unordered_map<int32_t, double> scores;
    for (const VocabularyToken& token : tokens) {
      lowest = std::min(lowest, token.score);
      scores[token.id] = token.score;
    }
    unknown_score_ = lowest - kUnknownPenalty;
    for (const auto& [text, id] : ids_)
      if (!text.empty()) sorted_.push_back({text, id, scores[id]});
    std::sort(sorted_.begin(), sorted_.end(),
              [](const auto& a, const auto& b) { return a.text < b.text; });
    for (size_t b = 0; b < 256; ++b) {
      const auto found = ids_.find(byte_token_name(static_cast<unsigned char>(b)));
      byte_ids_[b] = byte_fallback && found != ids_.end() ? found->second : -1;
    }
  }

  void encode(std::string_view word, std::vector<int32_t>& ids) const override {
    thread_local std::vector<Node> best;
    find_best(word, best);
    thread_local std::vector<std::string_view> pieces;
    pieces.clear();
    // Neighbouring unknown characters are one piece.
    bool fusing = false;
    for (size_t end = word.size(); end > 0; end = best[end].begin) {
      const Node& node = best[end];
      const std::string_view piece = word.substr(node.begin, end - node.begin);
      const bool unknown = unknown_ >= 0 && node.id == unknown_;
      if (unknown && fusing)
        pieces.back() = {piece.data(), piece.size() + pieces.back().size()};
      else
        pieces.push_back(piece);
      fusing = unknown;
    }
    for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) append(*piece, ids);
  }

 private:
  static constexpr double kUnknownPenalty = 10.0;
  // The best path to a place in a word: its last token and where that begins.
  struct Node {
    double score = 0;
    size_t begin = kNowhere;
    int32_t id = 0;
  };
  static constexpr size_t kNowhere = SIZE_MAX;

  void find_best(std::string_view word, std::vector<Node>& best) const {
    best.assign(word.size() + 1, {});
    const auto offer = [&](size_t begin, size_t end, double score, int32_t id) {
      Node& node = best[end];
      const double sum = score + best[begin].score;
      if (node.begin == kNowhere || sum > node.score) node = {sum, begin, id};
    };
    for (size_t at = 0; at < word.size();) {
      const size_t character = character_at(word, at);
      bool single = false;
      for_prefixes(word.substr(at), [&](const VocabularyToken& token) {
        offer(at, at + token.text.size(), token.score, token.id);
        single |= token.text.size() == character;
      });
      if (!single) offer(at, at + character, unknown_score_, std::max(unknown_, 0));
      at += character;
    }
  }

  // Tokens that `text` begins with, shortest first: the range of sorted tokens with one more byte
  // in common, again and again.
  template <typename Visit>
  void for_prefixes(std::string_view text, const Visit& visit) const {
    auto first = sorted_.begin(), last = sorted_.end();
    for (size_t length = 1; length <= text.size(); ++length) {
      const auto c = static_cast<unsigned char>(text[length - 1]);
      const auto byte = [&](const VocabularyToken& token) {
        return token.text.size() < length ? -1 : static_cast<unsigned char>(token.text[length - 1]);
      };
      first = std::partition_point(first, last, [&](const auto& token) { return byte(token) < c; });
      last = std::partition_point(first, last, [&](const auto& token) { return byte(token) <= c; });
      if (first == last) return;
      if (first->text.size() == length) visit(*first);
    }
  }

  void append(std::string_view piece, std::vector<int32_t>& ids) const {
    if (const auto found = ids_.find(piece); found != ids_.end()) {
      ids.push_back(found->second);
      return;
    }
    const auto id_of = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
    if (std::all_of(piece.begin(), piece.end(), [&](char c) { return id_of(c) >= 0; }))
      std::transform(piece.begin(), piece.end(), std::back_inserter(ids), id_of);
    else if (unknown_ >= 0)
      ids.push_back(unknown_);
  }

  const Vocabulary ids_;
  const int32_t unknown_;
  double unknown_score_ = 0;
  std::vector<VocabularyToken> sorted_;
  std::array<int32_t, 256> byte_ids_{};
};

class WordPiece final : public WordModel {
 public:
  WordPiece(std::span<const VocabularyToken> tokens, int32_t unknown, std::string prefix,
            int64_t most_characters)
      : ids_(map_of(tokens)),
        unknown_(unknown),
        prefix_(std::move(prefix)),
        most_characters_(most_characters) {
    for (const VocabularyToken& token : tokens) longest_ = std::max(longest_, token.text.size());
  }

  void encode(std::string_view word, std::vector<int32_t>& ids) const override {
    const size_t before = ids.size();
    int64_t characters = 0;
    for (size_t at = 0; at < word.size(); at += character_at(word, at)) ++characters;
    bool spelt = characters <= most_characters_;
    std::string piece;
    for (size_t begin = 0; spelt && begin < word.size();) {
      spelt = false;
      size_t end = std::min(word.size(), begin + longest_);
      for (; end > begin; --end) {
        if (end < word.size() && (word[end] & 0xC0) == 0x80) continue;  // inside a character
        piece.assign(begin > 0 ? prefix_ : "").append(word.substr(begin, end - begin));
        const auto found = ids_.find(piece);
        if (found == ids_.end()) continue;
        ids.push_back(found->second);
        spelt = true;
        break;
      }
      begin = end;
    }
    if (spelt) return;
    ids.resize(before);
    if (unknown_ >= 0) ids.push_back(unknown_);
  }

 private:
  const Vocabulary ids_;
  const int32_t unknown_;
  const std::string prefix_;
  const int64_t most_characters_;
  size_t longest_ = 0;
};

class WordLevel final : public WordModel {
 public:
  WordLevel(std::span<const VocabularyToken> tokens, int32_t unknown)
      : ids_(map_of(tokens)), unknown_(unknown) {}

  void encode(std::string_view word, std::vector<int32_t>& ids) const override {
    const auto found = ids_.find(word);
    const int32_t id = found == ids_.end() ? unknown_ : found->second;
    if (id >= 0) ids.push_back(id);
  }

 private:
  const Vocabulary ids_;
  const int32_t unknown_;
};

}  // namespace

std::unique_ptr<WordModel> make_unigram(std::span<const VocabularyToken> vocabulary,
                                        int32_t unknown, bool byte_fallback) {
  return std::make_unique<Unigram>(vocabulary, unknown, byte_fallback);
}

std::unique_ptr<WordModel> make_word_piece(std::span<const VocabularyToken> vocabulary,
                                           int32_t unknown, std::string prefix,
                                           int64_t most_characters) {
  return std::make_unique<WordPiece>(vocabulary, unknown, std::move(prefix), most_characters);
}

std::unique_ptr<WordModel> make_word_level(std::span<const VocabularyToken> vocabulary,
                                           int32_t unknown) {
  return std::make_unique<WordLevel>(vocabulary, unknown);
}

}  // namespace onefold
