// The host tier beside a card: the host's memory, pinned, so that the card reads and writes it by
// itself while it computes.
#pragma once

#include <memory>

#include "tensor/memory_source.h"

namespace onefold::cuda {

class PinnedMemory final : public MemorySource {
 public:
  int64_t block_bytes(int64_t bytes) const override { return host_->block_bytes(bytes); }
  void* take(int64_t block_bytes) override;
  void give_back(void* block, int64_t block_bytes) override;
  // Pinning takes longer than a step can spare.
  bool worth_keeping(int64_t block_bytes) const override {
    return host_->worth_keeping(block_bytes);
  }

 private:
  std::unique_ptr<MemorySource> host_ = make_host_memory();
};

}  // namespace onefold::cuda
