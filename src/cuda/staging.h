// The way between the host's memory and the card's: pinned buffers, two of them, so that one is
// filled or emptied by the host while the other is copied.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <mutex>
#include <span>

#include "base/thread_pool.h"
#include "device/device.h"

namespace onefold::cuda {

struct StagingBuffer {
  std::byte* data = nullptr;
  cudaEvent_t copied = nullptr;  // the last copy to or from it
};

class Staging {
 public:
  // Copies are done in the order of this stream.
  explicit Staging(cudaStream_t stream);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // As Device::write(): returns when all is made, which may be before it is copied.
  void write(Tensor dst, const Device::Make& make, Device::Calls calls, ThreadPool& pool);
  // As Device::read().
  void read(Tensor src, const Device::Take& take);

 private:
  using Buffers = std::array<StagingBuffer, 2>;
  void free();
  // Room in a buffer that no copy needs any more.
  std::byte* room(size_t bytes);

  cudaStream_t stream_;
  std::mutex mutex_;
  Buffers buffers_;
  // What is written goes to a buffer behind what was written before, as long as there is room:
  // small tensors, of which a step begins with several, need not wait for each other.
  size_t buffer_ = 0, filled_ = 0;
};

// As Device::read_beside(), in the order of a stream of its own.
void read_beside(cudaStream_t stream, Tensor src, const Device::Take& take,
                 std::span<std::byte> staging);

}  // namespace onefold::cuda
