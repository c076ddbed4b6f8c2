// The card's memory, and the host's that it copies to and from.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "base/thread_pool.h"
#include "cuda/card.h"
#include "tensor/memory_source.h"

namespace onefold::cuda {

// The driver's calls that reserve addresses and map memory to them, behind one card.
class MappedMemory {
 public:
  using Handle = unsigned long long;  // of a granule of the card's memory

  // Reserves addresses; takes no memory.
  explicit MappedMemory(const Card& card);
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  int64_t card_bytes() const { return card_bytes_; }
  char* begin() const { return begin_; }
  int64_t bytes() const { return bytes_; }
  int64_t granule_bytes() const { return granule_; }

  std::optional<Handle> create() const;  // none where the card has none left
  void release(Handle handle) const;
  void map(char* at, Handle handle) const;
  void unmap(char* at) const;  // nothing may use it any more

 private:
  const Card card_;
  char* begin_ = nullptr;
  int64_t bytes_ = 0, granule_ = 0, card_bytes_ = 0;
};

// Blocks of whole 512 bytes, cut from memory that is mapped, granule by granule, to reserved
// addresses. What is given back joins its free neighbours. Where no free block is large enough,
// more is mapped; near the peak of what was in use at once, or where the card has no more, whole
// granules of free blocks move to where they make one. Moving waits for all of the card's work, so
// a step that repeats must do without: until then the process may hold a little more than its peak.
//
// A block that is given back may be handed on at once: all work that uses it has been posted, and
// comes first in the order of the streams.
class DeviceMemory final : public MemorySource {
 public:
  explicit DeviceMemory(const Card& card);
  ~DeviceMemory() override;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  int64_t block_bytes(int64_t bytes) const override;
  void* take(int64_t block_bytes) override;
  void give_back(void* block, int64_t block_bytes) override;
  // What it holds of the card: blocks, and what is free between them.
  int64_t mapped_bytes();

 private:
  using Address = char*;
  using Handle = MappedMemory::Handle;
  // Free blocks by size, and among equals by address: which one is taken follows from what was
  // asked for before, and from nothing else.
  using BySize = std::set<std::pair<int64_t, Address>>;
  // Where to map how much; `before` it lies a free block of so many bytes.
  struct Place {
    Address at = nullptr;
    int64_t before = 0, granules = 0;
  };

  void* cut(int64_t bytes);
  bool grow(int64_t bytes);
  std::optional<Place> place_for(int64_t bytes) const;
  bool prepare(size_t granules, int64_t bound);
  void release_spares();
  bool create(size_t granules, int64_t bound);
  void reclaim(size_t granules);
  void unmap_granule(Address at);
  void map_granules(const Place& place);
  void add_free(Address begin, int64_t bytes);
  void erase_free(Address begin);

  const Card card_;
  std::mutex mutex_;
  const MappedMemory memory_;
  std::map<Address, Handle> granules_;   // mapped
  std::map<Address, int64_t> unmapped_;  // ranges of addresses
  std::vector<Handle> spare_;            // granules without an address
  std::map<Address, int64_t> free_;      // blocks, by their first byte: their size
  BySize by_size_;
  int64_t held_bytes_ = 0, peak_bytes_ = 0;
};

// The host's memory that the card copies to and from by itself: pinned. Large blocks are huge pages
// that many threads touch first: the driver's own take seconds for each few GB.
class PinnedMemory final : public MemorySource {
 public:
  PinnedMemory(const Card& card, ThreadPool& pool) : card_(card), pool_(pool) {}
  int64_t block_bytes(int64_t bytes) const override;
  void* take(int64_t block_bytes) override;
  void give_back(void* block, int64_t block_bytes) override;
  bool worth_keeping(int64_t) const override { return true; }  // pinning takes its time

 private:
  void* take_pages(int64_t bytes);

  const Card card_;
  ThreadPool& pool_;
  std::mutex mutex_;
  std::map<void*, std::pair<void*, size_t>> mapped_;  // large blocks: what was mapped for them
};

}  // namespace onefold::cuda
