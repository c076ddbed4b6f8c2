#include "cuda/device_memory.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <iterator>

#include "device/cuda_scratch.h"

namespace onefold::cuda {
namespace {

int64_t whole_blocks(int64_t bytes) {
  return (bytes + kMemoryBlockBytes - 1) / kMemoryBlockBytes * kMemoryBlockBytes;
}

}  // namespace

// Nothing can be done about an error of cudaFree, and the next call would meet it too.
DeviceMemory::~DeviceMemory() {
  for (const auto& [begin, bytes] : segments_) (void)cudaFree(begin);
}

int64_t DeviceMemory::block_bytes(int64_t bytes) const { return whole_blocks(bytes); }

// The smallest free block that holds the request; what is left of it stays free.
void* DeviceMemory::take(int64_t bytes) {
  std::lock_guard lock(mutex_);
  Address block = nullptr;
  if (const auto found = by_size_.lower_bound({bytes, nullptr}); found != by_size_.end()) {
    const auto [size, begin] = *found;
    erase_free(begin);
    if (size > bytes) insert_free(begin + bytes, size - bytes);
    block = begin;
  } else {
    block = static_cast<Address>(take_segment(bytes));
  }
  if (!block) return nullptr;
  held_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, held_bytes_);
  return block;
}

void* DeviceMemory::take_segment(int64_t bytes) {
  card_.use();
  const auto refused = [&](void*& segment) {
    if (cudaMalloc(&segment, static_cast<size_t>(bytes)) == cudaSuccess) return false;
    (void)cudaGetLastError();  // a refusal is not the next call's error
    return true;
  };
  // As long as the process takes no more than it has needed at once, segments may stay.
  const int64_t bound = std::max(peak_bytes_, held_bytes_ + bytes);
  if (segment_bytes_ + bytes > bound) release_segments(segment_bytes_ + bytes - bound);
  void* segment = nullptr;
  if (refused(segment)) {
    release_segments(segment_bytes_);
    if (refused(segment)) return nullptr;
  }
  segments_.emplace(static_cast<Address>(segment), bytes);
  segment_bytes_ += bytes;
  return segment;
}

// Gives segments without a block in use back to the driver, until `bytes` are given.
void DeviceMemory::release_segments(int64_t bytes) {
  for (auto segment = segments_.begin(); segment != segments_.end() && bytes > 0;) {
    const auto [begin, size] = *segment;
    const auto whole = free_.find(begin);
    if (whole == free_.end() || whole->second != size) {
      ++segment;
      continue;
    }
    erase_free(begin);
    (void)cudaFree(begin);
    segment_bytes_ -= size;
    bytes -= size;
    segment = segments_.erase(segment);
  }
}

void DeviceMemory::give_back(void* block, int64_t bytes) {
  std::lock_guard lock(mutex_);
  held_bytes_ -= bytes;
  Address begin = static_cast<Address>(block);
  // Segments that happen to lie side by side stay apart: each goes back to the driver by itself.
  const auto segment = std::prev(segments_.upper_bound(begin));
  const Address end_of_segment = segment->first + segment->second;
  if (const auto next = free_.find(begin + bytes);
      next != free_.end() && next->first < end_of_segment) {
    bytes += next->second;
    erase_free(next->first);
  }
  if (const auto above = free_.lower_bound(begin); above != free_.begin()) {
    const auto [before, size] = *std::prev(above);
    if (before >= segment->first && before + size == begin) {
      erase_free(before);
      begin = before;
      bytes += size;
    }
  }
  insert_free(begin, bytes);
}

void DeviceMemory::insert_free(Address begin, int64_t bytes) {
  free_.emplace(begin, bytes);
  by_size_.emplace(bytes, begin);
}

int64_t PinnedMemory::block_bytes(int64_t bytes) const { return whole_blocks(bytes); }

void* PinnedMemory::take(int64_t bytes) {
  card_.use();
  constexpr int64_t kLarge = int64_t{32} << 20;
  if (bytes >= kLarge) return take_pages(bytes);
  void* block = nullptr;
  if (cudaMallocHost(&block, static_cast<size_t>(bytes)) == cudaSuccess) return block;
  (void)cudaGetLastError();  // a refusal is not the next call's error
  return nullptr;
}

void* PinnedMemory::take_pages(int64_t bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t mapped = static_cast<size_t>(bytes) + kHugePage;
  void* const map =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  const auto first = (reinterpret_cast<uintptr_t>(map) + kHugePage - 1) / kHugePage * kHugePage;
  auto* const block = reinterpret_cast<std::byte*>(first);
  (void)madvise(block, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  constexpr int64_t kPage = 4096, kPiece = int64_t{16} << 20;
  pool_.run((bytes + kPiece - 1) / kPiece, [&](int64_t piece, int) {
    for (int64_t at = piece * kPiece; at < std::min(bytes, (piece + 1) * kPiece); at += kPage)
      block[at] = std::byte{0};
  });
  if (cudaHostRegister(block, static_cast<size_t>(bytes), cudaHostRegisterPortable) !=
      cudaSuccess) {
    (void)cudaGetLastError();
    (void)munmap(map, mapped);
    return nullptr;
  }
  std::lock_guard lock(mutex_);
  mapped_[block] = {map, mapped};
  return block;
}

void PinnedMemory::give_back(void* block, int64_t) {
  std::lock_guard lock(mutex_);
  const auto found = mapped_.find(block);
  if (found == mapped_.end()) return (void)cudaFreeHost(block);
  (void)cudaHostUnregister(block);
  (void)munmap(found->second.first, found->second.second);
  mapped_.erase(found);
}

void DeviceMemory::erase_free(Address begin) {
  const auto found = free_.find(begin);
  by_size_.erase({found->second, begin});
  free_.erase(found);
}

}  // namespace onefold::cuda
