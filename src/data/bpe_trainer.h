// Learns a byte-level BPE vocabulary from text. The result depends on the words and their counts
// alone: not on the order of the documents, the machine or the number of threads.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/thread_pool.h"
#include "data/pretokenizer.h"
#include "data/tokenizer.h"

namespace onefold {

struct BpeOptions {
  int64_t vocab_size = 4096;  // with the 256 bytes and <|endoftext|>
  int64_t min_frequency = 2;  // a pair seen less often is not merged
  // Called after each merge with the tokens made so far and the target.
  std::function<void(int64_t tokens, int64_t target)> progress = nullptr;
};

class BpeTrainer {
 public:
  explicit BpeTrainer(int threads = 0);  // 0: one for each core

  // Counts the words of a document. Memory grows with the number of distinct words, not with the
  // text.
  void add(std::string_view document);
  int64_t distinct_words() const;

  // Repeats: merge the most frequent pair of neighbouring tokens; of equally frequent pairs, the
  // one whose left token (then right token) comes first as a byte string. Ids: bytes 0-255,
  // <|endoftext|> 256, merges from 257 in order. The vocabulary is smaller than asked for if the
  // text has no more pairs to merge.
  Tokenizer train(const BpeOptions& options) const;

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  using Counts = std::unordered_map<std::string, int64_t, Hash, std::equal_to<>>;
  static constexpr size_t kShards = 16;

  void count_waiting() const;

  PreTokenizer pretokenizer_;
  std::unique_ptr<ThreadPool> pool_;
  // Text that is not counted yet, and the words that are, by their hash.
  mutable std::vector<std::string> waiting_;
  mutable size_t waiting_bytes_ = 0;
  mutable std::array<Counts, kShards> counts_;
};

}  // namespace onefold
