// A source of the host's memory whose large blocks are lent to a disk for as long as they are
// mapped: what travels between the two then needs no pages looked up and pinned for each request.
#pragma once

#include "device/disk.h"

namespace onefold {

class LentMemory final : public MemorySource {
 public:
  LentMemory(MemorySource& source, Disk& disk) : source_(source), disk_(disk) {}

  int64_t block_bytes(int64_t bytes) const override { return source_.block_bytes(bytes); }
  void* take(int64_t bytes) override {
    void* const block = source_.take(bytes);
    lend(block, bytes);
    return block;
  }
  void give_back(void* block, int64_t bytes) override {
    take_back(block, bytes);
    source_.give_back(block, bytes);
  }
  void* resize(void* block, int64_t from, int64_t to) override {
    take_back(block, from);
    void* const resized = source_.resize(block, from, to);
    if (resized)
      lend(resized, to);
    else
      lend(block, from);
    return resized;
  }
  bool worth_keeping(int64_t bytes) const override { return source_.worth_keeping(bytes); }
  bool divisible() const override { return source_.divisible(); }
  void drop(void* block, int64_t bytes) override {
    take_back(block, bytes);
    source_.drop(block, bytes);
  }
  bool real() const override { return source_.real(); }

 private:
  // Blocks that are smaller than a request are not worth it, nor those that share pages.
  static constexpr int64_t kLeast = int64_t{1} << 20;
  static bool lends(const void* block, int64_t bytes) {
    return block && bytes >= kLeast && reinterpret_cast<uintptr_t>(block) % kDiskBlock == 0;
  }
  void lend(void* block, int64_t bytes) {
    if (lends(block, bytes))
      disk_.lend({static_cast<std::byte*>(block), static_cast<size_t>(bytes)});
  }
  // Any part of what was lent.
  void take_back(void* block, int64_t bytes) {
    disk_.take_back({static_cast<std::byte*>(block), static_cast<size_t>(bytes)});
  }

  MemorySource& source_;
  Disk& disk_;
};

}  // namespace onefold
