// The card's memory.
#pragma once

#include "tensor/memory_source.h"

namespace onefold::cuda {

// Blocks of whole 512 bytes, to which the driver aligns them. Giving one back to the driver waits
// for all of the card's work, so the ledger keeps them.
class DeviceMemory final : public MemorySource {
 public:
  int64_t block_bytes(int64_t bytes) const override;
  void* take(int64_t block_bytes) override;
  void give_back(void* block, int64_t block_bytes) override;
  bool worth_keeping(int64_t) const override { return true; }
};

}  // namespace onefold::cuda
