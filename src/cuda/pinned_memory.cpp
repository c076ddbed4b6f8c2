#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>

#include "cuda/device_memory.h"
#include "device/cuda_scratch.h"

namespace onefold::cuda {

int64_t PinnedMemory::block_bytes(int64_t bytes) const { return whole_memory_blocks(bytes); }

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

}  // namespace onefold::cuda
