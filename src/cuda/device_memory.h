// The card's memory.
#pragma once

#include <map>
#include <mutex>
#include <set>

#include "base/thread_pool.h"
#include "cuda/card.h"
#include "tensor/memory_source.h"

namespace onefold::cuda {

// Blocks of whole 512 bytes. The driver gives segments, and blocks are cut from them: what is given
// back joins its free neighbours, and a later request of any size that fits is cut from it again.
// Returning a segment to the driver waits for all of the card's work, so a step that repeats must
// do without; segments go back only where a request would take the process above its peak.
//
// A block that is given back may be handed on at once: all work that uses it has been posted, and
// comes first in the order of the streams.
class DeviceMemory final : public MemorySource {
 public:
  explicit DeviceMemory(const Card& card) : card_(card) {}
  ~DeviceMemory() override;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  int64_t block_bytes(int64_t bytes) const override;
  void* take(int64_t block_bytes) override;
  void give_back(void* block, int64_t block_bytes) override;

 private:
  using Address = char*;
  // Free blocks by size, and among equals by address: which one is taken follows from what was
  // asked for before, and from nothing else.
  using BySize = std::set<std::pair<int64_t, Address>>;

  void* take_segment(int64_t bytes);
  void release_segments(int64_t bytes);
  void insert_free(Address begin, int64_t bytes);
  void erase_free(Address begin);

  const Card card_;
  std::mutex mutex_;
  std::map<Address, int64_t> segments_;  // by their first byte: their size
  std::map<Address, int64_t> free_;      // the same of free blocks
  BySize by_size_;
  int64_t segment_bytes_ = 0, held_bytes_ = 0, peak_bytes_ = 0;
};

// The host's memory that the card copies to and from by itself: pinned. Large blocks are huge pages
// that many threads touch first: the driver's own take seconds for each few GB.
class PinnedMemory final : public MemorySource {
 public:
  PinnedMemory(const Card& card, ThreadPool& pool) : card_(card), pool_(pool) {}
  int64_t block_bytes(int64_t bytes) const override;
  void* take(int64_t block_bytes) override;
  void give_back(void* block, int64_t block_bytes) override;

 private:
  void* take_pages(int64_t bytes);

  const Card card_;
  ThreadPool& pool_;
  std::mutex mutex_;
  std::map<void*, std::pair<void*, size_t>> mapped_;  // large blocks: what was mapped for them
};

}  // namespace onefold::cuda
