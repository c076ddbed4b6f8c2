#include "data/bpe.h"

#include <bit>
#include <queue>

#include "base/error.h"

namespace onefold {
namespace {

using Merge = MergeTable::Merge;

// Words are short: a scan of an array for the lowest rank beats any heap. Quadratic, so only up to
// kShort symbols.
constexpr size_t kShort = 64;

void merge_short(const MergeTable& merges, std::vector<int32_t>& symbols) {
  Merge found[kShort];  // found[i]: the merge of symbols i and i + 1
  size_t n = symbols.size();
  for (size_t i = 0; i + 1 < n; ++i) found[i] = merges.find(symbols[i], symbols[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (found[i].rank < found[best].rank) best = i;
    }
    if (found[best].rank == MergeTable::kNoMerge) break;
    symbols[best] = found[best].merged;
    for (size_t i = best + 1; i + 1 < n; ++i) {
      symbols[i] = symbols[i + 1];
      found[i - 1] = found[i];
    }
    --n;
    if (best > 0) found[best - 1] = merges.find(symbols[best - 1], symbols[best]);
    if (best + 1 < n) found[best] = merges.find(symbols[best], symbols[best + 1]);
  }
  symbols.resize(n);
}

// For long words (a pattern without cuts, a megabyte of one letter): a heap over a linked list, n
// log n. Entries go stale when a neighbour merges; they carry the pair they were made for, and are
// dropped if it is no longer there.
void merge_long(const MergeTable& merges, std::vector<int32_t>& symbols) {
  struct Candidate {
    uint32_t rank, at;
    int32_t left, right, merged;
    bool operator<(const Candidate& other) const {  // priority_queue takes the largest first
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  constexpr uint32_t kEnd = UINT32_MAX;
  constexpr int32_t kGone = -1;
  const size_t n = symbols.size();
  if (n >= kEnd)
    user_error("one word of the text has {} bytes; a word must be shorter than 4 GiB", n);
  std::vector<uint32_t> next(n), previous(n);
  std::priority_queue<Candidate> heap;
  const auto consider = [&](uint32_t at) {
    if (at == kEnd || next[at] == kEnd) return;
    const int32_t left = symbols[at], right = symbols[next[at]];
    const Merge merge = merges.find(left, right);
    if (merge.rank != MergeTable::kNoMerge) heap.push({merge.rank, at, left, right, merge.merged});
  };
  for (uint32_t i = 0; i < n; ++i) {
    previous[i] = i == 0 ? kEnd : i - 1;
    next[i] = i + 1 == n ? kEnd : i + 1;
  }
  for (uint32_t i = 0; i < n; ++i) consider(i);
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    const uint32_t right = next[top.at];
    if (symbols[top.at] != top.left || right == kEnd || symbols[right] != top.right) continue;
    symbols[top.at] = top.merged;
    symbols[right] = kGone;
    next[top.at] = next[right];
    if (next[right] != kEnd) previous[next[right]] = top.at;
    consider(previous[top.at]);
    consider(top.at);
  }
  std::erase(symbols, kGone);
}

}  // namespace

MergeTable::MergeTable(size_t merges) {
  const size_t size = std::bit_ceil(std::max<size_t>(2 * merges, 2));
  entries_.resize(size);
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
}

void MergeTable::add(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = key_of(left, right);
  size_t i = slot_of(key);
  while (entries_[i].key != kEmpty && entries_[i].key != key) i = (i + 1) & mask_;
  entries_[i] = {key, merge};
}

void merge_symbols(const MergeTable& merges, std::vector<int32_t>& symbols) {
  if (symbols.size() <= kShort) return merge_short(merges, symbols);
  merge_long(merges, symbols);
}

}  // namespace onefold
