// Byte-pair merging of one word: the merge table, and the two loops that apply it in order of rank.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace onefold {

// (left, right) -> (rank, merged). Open addressing in one flat array at most half full: a lookup is
// one multiplication and, almost always, one cache line.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = kNoMerge;  // lower merges first
    int32_t merged = -1;
  };
  static constexpr uint32_t kNoMerge = UINT32_MAX;

  MergeTable() : MergeTable(0) {}
  explicit MergeTable(size_t merges);  // room for so many

  // A pair given again takes its new merge, as in `tokenizers`.
  void add(int32_t left, int32_t right, Merge merge);
  Merge find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t i = slot_of(key);; i = (i + 1) & mask_) {
      if (entries_[i].key == key) return entries_[i].merge;
      if (entries_[i].key == kEmpty) return {};
    }
  }

 private:
  struct Entry {
    uint64_t key = kEmpty;
    Merge merge;
  };
  static constexpr uint64_t kEmpty = UINT64_MAX;

  static uint64_t key_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const {
    return static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> shift_);
  }

  std::vector<Entry> entries_;
  size_t mask_ = 0;
  int shift_ = 63;
};

// Merges `symbols` in place until no pair has a merge: always the pair of lowest rank, the leftmost
// of equals.
void merge_symbols(const MergeTable& merges, std::vector<int32_t>& symbols);

}  // namespace onefold
