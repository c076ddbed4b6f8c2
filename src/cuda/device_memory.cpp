#include "cuda/device_memory.h"

#include <cuda_runtime_api.h>

namespace onefold::cuda {

int64_t DeviceMemory::block_bytes(int64_t bytes) const {
  constexpr int64_t kBlock = 512;
  return (bytes + kBlock - 1) / kBlock * kBlock;
}

void* DeviceMemory::take(int64_t block_bytes) {
  void* block = nullptr;
  if (cudaMalloc(&block, static_cast<size_t>(block_bytes)) == cudaSuccess) return block;
  (void)cudaGetLastError();  // a refusal is not the next call's error
  return nullptr;
}

// Nothing can be done about an error here, and the next call would meet it too.
void DeviceMemory::give_back(void* block, int64_t) { (void)cudaFree(block); }

}  // namespace onefold::cuda
