#include "tensor/memory_source.h"

#include <sys/mman.h>

#include <cstdlib>

#include "base/numa.h"
#include "tensor/ledger.h"

namespace onefold {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kMapped = int64_t{1}
                            << 20;  // blocks from this size on have a mapping of their own
constexpr int64_t kHugePage = int64_t{2} << 20;  // mappings from this size on ask for huge pages

int64_t rounded(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

int64_t host_block_bytes(int64_t bytes) {
  return rounded(bytes, bytes < kMapped ? Ledger::kAlignment : kPage);
}

class HostMemory final : public MemorySource {
 public:
  int64_t block_bytes(int64_t bytes) const override { return host_block_bytes(bytes); }

  void* take(int64_t bytes) override {
    if (bytes < kMapped) return std::aligned_alloc(Ledger::kAlignment, static_cast<size_t>(bytes));
    void* block = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) return nullptr;
    if (!nodes_.empty()) interleave_pages(block, bytes, nodes_);
    ask_for_huge_pages(block, bytes);
    return block;
  }

  void give_back(void* block, int64_t bytes) override {
    if (bytes < kMapped)
      std::free(block);
    else
      ::munmap(block, static_cast<size_t>(bytes));
  }

  // The pages move with their contents and their nodes: only what a block grows by costs faults.
  void* resize(void* block, int64_t from, int64_t to) override {
    if (from < kMapped || to < kMapped) return nullptr;
    void* moved =
        ::mremap(block, static_cast<size_t>(from), static_cast<size_t>(to), MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) return nullptr;
    ask_for_huge_pages(moved, to);
    return moved;
  }

  bool worth_keeping(int64_t bytes) const override { return bytes >= kMapped; }
  bool divisible() const override { return true; }
  void drop(void* block, int64_t bytes) override { ::munmap(block, static_cast<size_t>(bytes)); }

 private:
  static void ask_for_huge_pages(void* block, int64_t bytes) {
    if (bytes >= kHugePage) ::madvise(block, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  }

  // Of the thread that made this. Threads take work as they become free, so no part of a block is
  // nearer to one of them than to another.
  const std::vector<NumaNode> nodes_ = numa_nodes();
};

class DryMemory final : public MemorySource {
 public:
  explicit DryMemory(int64_t block) : block_(block) {}
  int64_t block_bytes(int64_t bytes) const override {
    return block_ > 0 ? rounded(bytes, block_) : host_block_bytes(bytes);
  }
  void* take(int64_t) override { return nullptr; }
  void give_back(void*, int64_t) override {}
  bool real() const override { return false; }

 private:
  const int64_t block_;
};

}  // namespace

std::unique_ptr<MemorySource> make_host_memory() { return std::make_unique<HostMemory>(); }
std::unique_ptr<MemorySource> make_dry_memory(int64_t block) {
  return std::make_unique<DryMemory>(block);
}

}  // namespace onefold
