#include "data/bpe_trainer.h"

#include <algorithm>
#include <queue>

#include "base/error.h"

namespace onefold {
namespace {

// A run of letters without end (encoded data) would be walked anew for each merge; no useful token
// is this long.
constexpr size_t kMaxWordBytes = 256;
constexpr int64_t kFirstMerge = 257;

struct Word {
  std::vector<int32_t> symbols;
  int64_t count;
};

struct Pair {
  int32_t left, right;
  bool operator==(const Pair&) const = default;
};

struct PairHash {
  size_t operator()(Pair pair) const {
    const uint64_t key =
        uint64_t{static_cast<uint32_t>(pair.left)} << 32 | static_cast<uint32_t>(pair.right);
    return static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> 16);
  }
};

// Where a pair occurs. `words` may name a word more than once, or one that has lost the pair: both
// do no harm, and cheaper than keeping a set.
struct Occurrences {
  int64_t count = 0;
  std::vector<uint32_t> words;
};

class Merger {
 public:
  Merger(std::vector<Word> words, std::vector<std::string> tokens)
      : words_(std::move(words)), tokens_(std::move(tokens)), heap_(Later{&tokens_}) {
    for (size_t id = 0; id < tokens_.size(); ++id)
      ids_.emplace(tokens_[id], static_cast<int32_t>(id));
    for (uint32_t w = 0; w < words_.size(); ++w) count_pairs(w, +1);
    for (const auto& [pair, seen] : pairs_) heap_.push({seen.count, pair});
  }

  // The most frequent pair and its count; a count of 0 if none is left.
  std::pair<Pair, int64_t> top() {
    while (!heap_.empty()) {
      const Entry entry = heap_.top();
      const int64_t count = pairs_[entry.pair].count;
      if (count == entry.count) return {entry.pair, count};
      // Stale: the count has changed since. A rise was pushed when it happened; a fall is put back
      // here.
      heap_.pop();
      if (count > 0 && count < entry.count) heap_.push({count, entry.pair});
    }
    return {{0, 0}, 0};
  }

  TokenizerParts::Merge merge(Pair pair) {
    const int32_t merged = token_for(tokens_[static_cast<size_t>(pair.left)] +
                                     tokens_[static_cast<size_t>(pair.right)]);
    const std::vector<uint32_t> where = std::move(pairs_[pair].words);
    risen_.clear();
    for (const uint32_t w : where) {
      if (!holds(words_[w], pair)) continue;
      count_pairs(w, -1);
      replace(words_[w], pair, merged);
      count_pairs(w, +1);
    }
    pairs_.erase(pair);
    for (const Pair changed : risen_) {
      const auto found = pairs_.find(changed);
      if (found != pairs_.end() && found->second.count > 0)
        heap_.push({found->second.count, changed});
    }
    return {pair.left, pair.right, merged};
  }

  const std::vector<std::string>& tokens() const { return tokens_; }

 private:
  struct Entry {
    int64_t count;
    Pair pair;
  };
  // True if `a` is merged later than `b`.
  struct Later {
    const std::vector<std::string>* tokens;
    bool operator()(const Entry& a, const Entry& b) const {
      if (a.count != b.count) return a.count < b.count;
      if (a.pair.left != b.pair.left) return text(a.pair.left) > text(b.pair.left);
      return text(a.pair.right) > text(b.pair.right);
    }
    const std::string& text(int32_t id) const { return (*tokens)[static_cast<size_t>(id)]; }
  };

  // Two merges can spell the same token ("a"+"bc", "ab"+"c"); it keeps its first id.
  int32_t token_for(const std::string& bytes) {
    const auto [found, is_new] = ids_.emplace(bytes, static_cast<int32_t>(tokens_.size()));
    if (is_new) tokens_.push_back(bytes);
    return found->second;
  }

  static bool holds(const Word& word, Pair pair) {
    for (size_t i = 0; i + 1 < word.symbols.size(); ++i) {
      if (word.symbols[i] == pair.left && word.symbols[i + 1] == pair.right) return true;
    }
    return false;
  }

  static void replace(Word& word, Pair pair, int32_t merged) {
    size_t kept = 0;
    for (size_t i = 0; i < word.symbols.size(); ++kept) {
      const bool here = i + 1 < word.symbols.size() && word.symbols[i] == pair.left &&
                        word.symbols[i + 1] == pair.right;
      word.symbols[kept] = here ? merged : word.symbols[i];
      i += here ? 2 : 1;
    }
    word.symbols.resize(kept);
  }

  void count_pairs(uint32_t w, int sign) {
    const Word& word = words_[w];
    for (size_t i = 0; i + 1 < word.symbols.size(); ++i) {
      const Pair pair{word.symbols[i], word.symbols[i + 1]};
      Occurrences& seen = pairs_[pair];
      seen.count += sign * word.count;
      if (sign < 0) continue;
      if (seen.words.empty() || seen.words.back() != w) seen.words.push_back(w);
      risen_.push_back(pair);
    }
  }

  std::vector<Word> words_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<Pair, Occurrences, PairHash> pairs_;
  std::vector<Pair> risen_;  // pairs that gained occurrences in the merge under way
  std::priority_queue<Entry, std::vector<Entry>, Later> heap_;
};

}  // namespace

BpeTrainer::BpeTrainer() { pretokenizer_.add_gpt2(); }

void BpeTrainer::add(std::string_view document) {
  pretokenizer_.split(document, [&](std::string_view word) {
    for (; !word.empty(); word.remove_prefix(std::min(word.size(), kMaxWordBytes))) {
      const std::string_view piece = word.substr(0, kMaxWordBytes);
      const auto found = counts_.find(piece);
      if (found != counts_.end()) {
        ++found->second;
      } else {
        counts_.emplace(piece, 1);
      }
    }
  });
}

Tokenizer BpeTrainer::train(const BpeOptions& options) const {
  if (options.vocab_size < kFirstMerge) {
    user_error("a vocabulary of {} tokens is too small: the 256 bytes and {} take {}",
               options.vocab_size, kEndOfText, kFirstMerge);
  }
  if (counts_.empty()) user_error("there is no text to learn a vocabulary from");
  TokenizerParts parts;
  for (int b = 0; b < 256; ++b) parts.tokens.emplace_back(1, static_cast<char>(b));
  parts.tokens.emplace_back(kEndOfText);

  std::vector<Word> words;
  words.reserve(counts_.size());
  for (const auto& [text, count] : counts_) {
    if (text.size() < 2) continue;
    Word& word = words.emplace_back(Word{{}, count});
    for (const unsigned char b : text) word.symbols.push_back(b);
  }
  Merger merger(std::move(words), parts.tokens);
  const int64_t least = std::max<int64_t>(options.min_frequency, 1);
  while (static_cast<int64_t>(merger.tokens().size()) < options.vocab_size) {
    const auto [pair, count] = merger.top();
    if (count < least) break;
    parts.merges.push_back(merger.merge(pair));
    if (options.progress)
      options.progress(static_cast<int64_t>(merger.tokens().size()), options.vocab_size);
  }
  parts.tokens = merger.tokens();
  parts.added.push_back({.id = 256, .text = std::string(kEndOfText)});
  parts.pretokenizer = pretokenizer_;
  parts.decoder.add_byte_level();
  return Tokenizer(std::move(parts));
}

}  // namespace onefold
