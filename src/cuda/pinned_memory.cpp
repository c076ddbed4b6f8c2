#include "cuda/pinned_memory.h"

#include <cuda_runtime_api.h>

namespace onefold::cuda {
namespace {

// Small blocks share pages with others, and are copied quickly enough as they are.
bool is_pinned(const MemorySource& host, int64_t bytes) { return host.worth_keeping(bytes); }

}  // namespace

// Memory that the driver refuses to pin (a limit on locked memory, for instance) still serves.
void* PinnedMemory::take(int64_t bytes) {
  void* const block = host_->take(bytes);
  if (block && is_pinned(*host_, bytes) &&
      cudaHostRegister(block, static_cast<size_t>(bytes), cudaHostRegisterPortable) != cudaSuccess)
    (void)cudaGetLastError();
  return block;
}

void PinnedMemory::give_back(void* block, int64_t bytes) {
  if (is_pinned(*host_, bytes) && cudaHostUnregister(block) != cudaSuccess)
    (void)cudaGetLastError();
  host_->give_back(block, bytes);
}

}  // namespace onefold::cuda
