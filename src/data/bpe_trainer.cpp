#include "data/bpe_trainer.h"

#include <algorithm>

#include "base/error.h"
#include "data/bpe_merger.h"
#include "data/byte_level.h"
#include "data/characters.h"

namespace onefold {
namespace {

// A run of letters without end (encoded data) would be one word of any length; no useful token is
// this long.
constexpr size_t kMaxWordBytes = 256;
constexpr int64_t kFirstMerge = 257;
constexpr size_t kBatchBytes = size_t{8} << 20;    // of text that is counted at once
constexpr size_t kCountedBytes = size_t{1} << 18;  // of text that one thread counts at a time

// True if no word of GPT-2's pattern spans the place before `at`: a line end stands there alone
// between two characters that are not white space.
bool parts_words(std::string_view text, size_t at) {
  if (at < 2 || at >= text.size() || text[at - 1] != '\n') return false;
  const size_t next = utf8_sequence(text.substr(at));
  if (next == 0 || is_space_character(code_point_of(text.substr(at)))) return false;
  size_t before = at - 2;
  while (before > 0 && at - before < 6 && (text[before] & 0xC0) == 0x80) --before;
  const size_t bytes = utf8_sequence(text.substr(before));
  return bytes == at - 1 - before && !is_space_character(code_point_of(text.substr(before)));
}

}  // namespace

BpeTrainer::BpeTrainer(int threads) : pool_(std::make_unique<ThreadPool>(threads)) {
  pretokenizer_.add_gpt2();
}

void BpeTrainer::add(std::string_view document) {
  while (!document.empty()) {
    size_t end = std::min(document.size(), kCountedBytes);
    while (end < document.size() && !parts_words(document, end)) ++end;
    waiting_.emplace_back(document.substr(0, end));
    waiting_bytes_ += end;
    document.remove_prefix(end);
    if (waiting_bytes_ >= kBatchBytes) count_waiting();
  }
}

// Each thread counts pieces into tables of its own; then each shard of all words takes what is its.
void BpeTrainer::count_waiting() const {
  std::vector<std::array<Counts, kShards>> local(static_cast<size_t>(pool_->threads()));
  pool_->run(static_cast<int64_t>(waiting_.size()), [&](int64_t piece, int thread) {
    auto& shards = local[static_cast<size_t>(thread)];
    pretokenizer_.split(waiting_[static_cast<size_t>(piece)], [&](std::string_view word) {
      for (; !word.empty(); word.remove_prefix(std::min(word.size(), kMaxWordBytes))) {
        const std::string_view part = word.substr(0, kMaxWordBytes);
        Counts& counts = shards[Hash()(part) % kShards];
        const auto found = counts.find(part);
        if (found != counts.end())
          ++found->second;
        else
          counts.emplace(part, 1);
      }
    });
  });
  pool_->run(kShards, [&](int64_t shard, int) {
    const auto at = static_cast<size_t>(shard);
    for (auto& shards : local) {
      while (!shards[at].empty()) {
        auto word = shards[at].extract(shards[at].begin());
        const auto inserted = counts_[at].insert(std::move(word));
        if (!inserted.inserted) inserted.position->second += inserted.node.mapped();
      }
    }
  });
  waiting_.clear();
  waiting_bytes_ = 0;
}

int64_t BpeTrainer::distinct_words() const {
  count_waiting();
  int64_t words = 0;
  for (const Counts& counts : counts_) words += static_cast<int64_t>(counts.size());
  return words;
}

Tokenizer BpeTrainer::train(const BpeOptions& options) const {
  if (options.vocab_size < kFirstMerge) {
    user_error("a vocabulary of {} tokens is too small: the 256 bytes and {} take {}",
               options.vocab_size, kEndOfText, kFirstMerge);
  }
  if (distinct_words() == 0) user_error("there is no text to learn a vocabulary from");
  TokenizerParts parts;
  for (int b = 0; b < 256; ++b) parts.tokens.emplace_back(1, static_cast<char>(b));
  parts.tokens.emplace_back(kEndOfText);

  std::vector<BpeMerger::Word> words;
  for (const Counts& counts : counts_)
    for (const auto& [text, count] : counts)
      if (text.size() >= 2) words.push_back({text, count});
  const int64_t least = std::max<int64_t>(options.min_frequency, 1);
  BpeMerger merger(std::move(words), parts.tokens, least);
  while (static_cast<int64_t>(merger.tokens().size()) < options.vocab_size) {
    const auto [pair, count] = merger.top();
    if (count < least) break;
    parts.merges.push_back({pair.left, pair.right, merger.merge(pair)});
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
