// The part of learning a vocabulary that merges: distinct words with their counts, and the most
// frequent pair of neighbouring tokens again and again. Private to BpeTrainer.
//
// All words lie one after the other in one array with a slot for each byte, as they did before any
// merge: a token's number is in the slot of its first byte, its length (negative) in that of its
// last, so that both neighbours of a token are found without links. For each pair there is a list
// of the places where it was seen. A merge visits these places alone, whatever the length of the
// words.
#pragma once

#include <cstdint>
#include <queue>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace onefold {

class BpeMerger {
 public:
  struct Pair {
    int32_t left, right;
  };
  struct Word {
    std::string_view bytes;
    int64_t count;
  };

  // `tokens` are those that there are before the first merge; the first 256 are the bytes. Pairs
  // that are seen less often than `least` are never merged.
  BpeMerger(std::vector<Word> words, std::vector<std::string> tokens, int64_t least);

  // The most frequent pair and its count; of equally frequent ones that whose left token, then
  // right token, comes first as a byte string. A count of 0 if none is left.
  std::pair<Pair, int64_t> top();
  // Merges it everywhere, from left to right, and returns the token that it becomes.
  int32_t merge(Pair pair);

  const std::vector<std::string>& tokens() const { return tokens_; }

 private:
  struct Entry {
    int64_t count;
    Pair pair;
  };
  // True if `a` is merged later than `b`.
  struct Later {
    const BpeMerger* merger;
    bool operator()(const Entry& a, const Entry& b) const;
  };
  // Places that no longer hold the pair may be among them.
  struct Seen {
    int64_t count = 0;
    std::vector<uint32_t> places;
    bool risen = false;  // is listed in risen_
  };
  struct PairHash {
    size_t operator()(uint64_t key) const {
      return static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> 16);
    }
  };

  static uint64_t key_of(Pair pair) {
    return uint64_t{static_cast<uint32_t>(pair.left)} << 32 | static_cast<uint32_t>(pair.right);
  }
  void lay_out(std::vector<Word>& words);
  void count_first_pairs();
  int64_t count_at(uint32_t place) const;
  int32_t length(int32_t token) const { return lengths_[static_cast<size_t>(token)]; }
  void change(Pair pair, int64_t by, uint32_t place);
  void add_token(std::string bytes);
  int32_t token_for(const std::string& bytes);
  int order(int32_t a, int32_t b) const;

  const int64_t least_;
  std::vector<int32_t> slots_;
  // Words are laid out by falling count: from each place on, the count.
  std::vector<std::pair<uint32_t, int64_t>> counts_;
  std::vector<std::string> tokens_;
  std::vector<int32_t> lengths_;
  std::vector<uint64_t> starts_;  // a token's first 8 bytes as a number, which compares as they do
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<uint64_t, Seen, PairHash> pairs_;
  std::vector<Pair> risen_;  // pairs that were seen more often by the merge under way
  std::priority_queue<Entry, std::vector<Entry>, Later> heap_;
};

}  // namespace onefold
