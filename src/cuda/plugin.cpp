// libonefold_cuda.so: the device cuda. A plugin, so that the program starts where CUDA is missing.
#include <cuda_runtime_api.h>
#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "cuda/check.h"
#include "cuda/cuda_kernels.h"
#include "cuda/device_memory.h"
#include "cuda/pinned_memory.h"
#include "cuda/staging.h"
#include "cuda/stream_lane.h"
#include "device/cuda_api.h"
#include "device/device.h"
#include "interface_hash.h"

namespace onefold::cuda {
namespace {

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int threads)
      : pool_(threads), kernels_(make_kernels(compute_.stream())), staging_(compute_.stream()) {}

  const char* name() const override { return "cuda"; }
  Kernels& kernels() override { return *kernels_; }
  MemorySource* memory(Tier tier) override {
    if (tier == Tier::host) return &host_;
    return tier == Tier::device ? &memory_ : nullptr;
  }
  LaneQueue& compute() override { return compute_; }
  std::unique_ptr<LaneQueue> open_lane() override { return std::make_unique<StreamLane>(); }
  Ticket copy(LaneQueue& lane, JobLabel label, void* dst, const void* src, int64_t bytes) override {
    return lane.post(std::move(label), [=, stream = static_cast<StreamLane&>(lane).stream()] {
      check(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyDefault, stream),
            "copy between the card and the host");
    });
  }
  double now() const override { return now_seconds(); }
  int threads() const override { return pool_.threads(); }
  ThreadPool* pool() override { return &pool_; }

  void write(Tensor dst, const Make& make, Calls calls) override {
    staging_.write(dst, make, calls, pool_);
  }
  void read(Tensor src, const Take& take) override { staging_.read(src, take); }

 private:
  ThreadPool pool_;
  DeviceMemory memory_;
  PinnedMemory host_;
  StreamLane compute_;
  std::unique_ptr<Kernels> kernels_;
  Staging staging_;
};

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// That there is a driver, a card, and code for it.
void check_machine() {
  int driver = 0, runtime = 0, cards = 0;
  (void)cudaRuntimeGetVersion(&runtime);
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    user_error(
        "the device cuda needs NVIDIA's driver, which this machine does not have; install a driver "
        "for CUDA {} or later, or use the device cpu",
        version_text(runtime));
  if (driver / 1000 < runtime / 1000)
    user_error(
        "the device cuda needs a driver for CUDA {} or later; this machine's is for {}; update it, "
        "or use the device cpu",
        version_text(runtime), version_text(driver));
  if (const cudaError_t status = cudaGetDeviceCount(&cards); status != cudaSuccess || cards == 0)
    user_error(
        "the device cuda needs a card that this process may use, and there is none ({}); see that "
        "nvidia-smi lists one and that CUDA_VISIBLE_DEVICES does not hide it, or use the device "
        "cpu",
        status == cudaSuccess ? "no card" : cudaGetErrorString(status));
  cudaDeviceProp card{};
  check(cudaGetDeviceProperties(&card, 0), "describe the card");
  constexpr int kLeastMajor = 9;  // of what the kernels are compiled for
  if (card.major < kLeastMajor)
    user_error(
        "the card ({}) has compute capability {}.{}, and the device cuda needs {}.0 or later; use "
        "the device cpu",
        card.name, card.major, card.minor, kLeastMajor);
}

Device* open(int threads) {
  check_machine();
  return new CudaDevice(threads);
}

int64_t free_bytes() {
  check_machine();
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "ask for the card's free memory");
  // Libraries load kernels as they are first used, into memory that is not ours to book.
  constexpr int64_t kForLibraries = int64_t{1} << 30;
  return std::max<int64_t>(0, static_cast<int64_t>(free) - kForLibraries);
}

constexpr CudaApi kApi = {ONEFOLD_INTERFACE_HASH, open, free_bytes};

}  // namespace
}  // namespace onefold::cuda

extern "C" __attribute__((visibility("default"))) const onefold::CudaApi* onefold_cuda_api() {
  return &onefold::cuda::kApi;
}
