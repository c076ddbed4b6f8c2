// Where a tier's memory comes from: the system, a card's driver, a file, or (dry) nowhere. Only
// the ledger takes blocks from it, and books them.
#pragma once

#include <cstdint>
#include <memory>

namespace onefold {

class MemorySource {
 public:
  virtual ~MemorySource() = default;

  // The size of the block that a request of `bytes` gets: what is booked. A function of `bytes`
  // alone, and the same on the dry source that stands for this one.
  virtual int64_t block_bytes(int64_t bytes) const = 0;

  // A block of exactly this size, which block_bytes() has returned; contents are undefined. Null if
  // the system refuses, or (not real()) because there is no memory.
  virtual void* take(int64_t block_bytes) = 0;
  virtual void give_back(void* block, int64_t block_bytes) = 0;

  // Turns a block into one of another size, keeping the pages that both have; null if this source
  // cannot, or the block is of a kind that cannot: then nothing has changed.
  virtual void* resize(void* /*block*/, int64_t /*from*/, int64_t /*to*/) { return nullptr; }
  // Whether blocks given back are worth keeping for a later request (fresh ones cost page faults).
  virtual bool worth_keeping(int64_t /*block_bytes*/) const { return false; }

  // Whether blocks worth keeping may be cut into others, and neighbours taken for one; any part of
  // them, of whole pages, is then given back by drop().
  virtual bool divisible() const { return false; }
  virtual void drop(void* block, int64_t bytes) { give_back(block, bytes); }

  virtual bool real() const { return true; }
};

// The system's memory. Blocks of a megabyte and more are whole pages of their own mapping (on huge
// pages where the system grants them); smaller ones come from the C library, aligned to
// Ledger::kAlignment. Where the calling thread may use several NUMA nodes (base/numa.h), pages of
// large blocks lie on them in turn.
std::unique_ptr<MemorySource> make_host_memory();

// Books blocks, and has none: of the sizes of the system's memory, or of whole `block` bytes.
std::unique_ptr<MemorySource> make_dry_memory(int64_t block = 0);

// A block of the disk tier is whole blocks of a file.
inline constexpr int64_t kDiskBlock = 4096;
inline int64_t disk_block_bytes(int64_t bytes) {
  return (bytes + kDiskBlock - 1) / kDiskBlock * kDiskBlock;
}

}  // namespace onefold
