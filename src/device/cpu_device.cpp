#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "device/cuda_library.h"
#include "device/device.h"
#include "device/device_name.h"
#include "kernels/host_memory.h"

namespace onefold {
namespace {

// Values that are computed are shared out over the pool in pieces of this many bytes.
constexpr int64_t kPieceBytes = int64_t{1} << 20;

// Host memory is the device's memory: nothing is copied on the way.
class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads)
      : pool_(threads), kernels_(make_cpu_kernels(pool_)), memory_(make_host_memory()) {}

  const char* name() const override { return "cpu"; }
  Kernels& kernels() override { return *kernels_; }
  // The host tier is the same memory under other books; a disk is Tiers' affair.
  MemorySource* memory(Tier tier) override { return tier == Tier::disk ? nullptr : memory_.get(); }
  LaneQueue& compute() override { return compute_; }
  std::unique_ptr<LaneQueue> open_lane() override { return std::make_unique<ThreadLane>(); }
  Ticket copy(LaneQueue& lane, JobLabel label, void* dst, const void* src, int64_t bytes) override {
    return lane.post(std::move(label), [=] { copy_bytes(src, dst, bytes); });
  }
  void copy_now(void* dst, const void* src, int64_t bytes) override { copy_bytes(src, dst, bytes); }
  double now() const override { return now_seconds(); }
  int threads() const override { return pool_.threads(); }
  ThreadPool* pool() override { return &pool_; }
  bool memory_is_the_hosts() const override { return true; }

  void write(Tensor dst, const Make& make, Calls calls) override {
    const Tensor flat = dst.flat();
    const int64_t width = dtype_bytes(dst.dtype), piece = kPieceBytes / width;
    auto* base = static_cast<std::byte*>(flat.data);
    if (calls == Calls::in_order) return make(0, {base, static_cast<size_t>(flat.cols * width)});
    pool_.run((flat.cols + piece - 1) / piece, [&](int64_t chunk, int) {
      const int64_t first = chunk * piece, count = std::min(piece, flat.cols - first);
      make(first, {base + first * width, static_cast<size_t>(count * width)});
    });
  }

  void read(Tensor src, const Take& take) override {
    const Tensor flat = src.flat();
    take(0, {static_cast<const std::byte*>(flat.data),
             static_cast<size_t>(flat.cols * dtype_bytes(src.dtype))});
  }

 private:
  ThreadPool pool_;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<MemorySource> memory_;
  InlineLane compute_;
};

}  // namespace

std::unique_ptr<Device> open_device(const std::string& name, int threads) {
  const DeviceName device = parse_device(name);
  if (device.kind == "cuda") return open_cuda_device(device.card.value_or(0), threads);
  return std::make_unique<CpuDevice>(threads);
}

}  // namespace onefold
