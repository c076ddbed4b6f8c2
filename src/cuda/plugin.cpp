// libonefold_cuda.so: the device cuda. A plugin, so that the program starts where CUDA is missing.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "cuda/card.h"
#include "cuda/check.h"
#include "cuda/cuda_kernels.h"
#include "cuda/device_memory.h"
#include "cuda/issued_lane.h"
#include "cuda/ranges.h"
#include "cuda/rank_memory.h"
#include "cuda/staging.h"
#include "cuda/stream_lane.h"
#include "device/cuda_api.h"
#include "device/cuda_architectures.h"
#include "device/device.h"
#include "interface_hash.h"

namespace onefold::cuda {
namespace {

// Threads other than the one that opened it may reach it: whatever leads to calls of CUDA chooses
// the card first.
class CudaDevice final : public Device {
 public:
  CudaDevice(const Card& card, int threads)
      : card_(card),
        pool_(threads),
        memory_(card),
        pinned_(card, pool_),
        kernels_(make_kernels(compute_.stream())),
        staging_(compute_.stream()) {}
  ~CudaDevice() override { card_.use(); }

  const char* name() const override { return "cuda"; }
  Kernels& kernels() override {
    card_.use();
    return *kernels_;
  }
  MemorySource* memory(Tier tier) override {
    if (tier == Tier::device) return &memory_;
    return tier == Tier::host ? &pinned_ : nullptr;
  }
  DriverMemory driver_memory() override {
    card_.use();
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "ask for the card's free memory");
    return {static_cast<int64_t>(total - free), memory_.mapped_bytes()};
  }
  LaneQueue& compute() override {
    card_.use();
    return compute_;
  }
  std::unique_ptr<LaneQueue> open_lane() override {
    card_.use();
    return std::make_unique<StreamLane>(/*urgent=*/true);  // computation waits for what it carries
  }
  std::unique_ptr<LaneQueue> open_message_lane() override {
    card_.use();
    return std::make_unique<IssuedLane>(card_);
  }
  Ticket copy(LaneQueue& lane, JobLabel label, void* dst, const void* src, int64_t bytes) override {
    card_.use();
    const auto* of_card = dynamic_cast<StreamLane*>(&lane);
    if (!of_card) return lane.post(std::move(label), [=, this] { copy_now(dst, src, bytes); });
    return lane.post(std::move(label), [=, stream = of_card->stream()] {
      check(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyDefault, stream),
            "copy between the card and the host");
    });
  }
  void copy_now(void* dst, const void* src, int64_t bytes) override {
    card_.use();
    const cudaStream_t own = cudaStreamPerThread;
    check(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyDefault, own),
          "copy between the card and the host");
    check(cudaStreamSynchronize(own), "copy between the card and the host");
  }
  double now() const override { return now_seconds(); }
  bool shows_names() const override { return ranges_are_shown(); }
  int threads() const override { return pool_.threads(); }
  ThreadPool* pool() override { return &pool_; }
  std::unique_ptr<RankMemory> rank_memory(LaneQueue& lane) override {
    const auto* const issued = dynamic_cast<IssuedLane*>(&lane);
    return make_rank_memory(card_,
                            issued ? issued->stream() : dynamic_cast<StreamLane&>(lane).stream());
  }

  void write(Tensor dst, const Make& make, Calls calls) override {
    card_.use();
    staging_.write(dst, make, calls, pool_);
  }
  void read(Tensor src, const Take& take) override {
    card_.use();
    staging_.read(src, take);
  }
  void read_beside(Tensor src, const Take& take, std::span<std::byte> staging) override {
    card_.use();
    cuda::read_beside(beside_.stream(), src, take, staging);
  }

 private:
  const Card card_;
  ThreadPool pool_;
  DeviceMemory memory_;
  PinnedMemory pinned_;
  StreamLane compute_, beside_;
  std::unique_ptr<Kernels> kernels_;
  Staging staging_;
};

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// That there is a driver and a card.
int count_cards() {
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
  return cards;
}

CudaCard describe(int number) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, number), "describe the card");
  CudaCard card{properties.name, properties.major, properties.minor,
                static_cast<int64_t>(properties.totalGlobalMem), ""};
  card.problem = problem_of_architecture(ONEFOLD_CUDA_ARCHITECTURES, card.major, card.minor);
  return card;
}

std::vector<CudaCard> cards() {
  std::vector<CudaCard> all;
  for (int number = 0, count = count_cards(); number < count; ++number)
    all.push_back(describe(number));
  return all;
}

// A card that is there and that there is code for, chosen for the calling thread.
Card usable_card(int number) {
  const int count = count_cards();
  if (number < 0 || number >= count)
    user_error(
        "there is no card {}: this process sees {}, counted from 0 in the order of "
        "CUDA_VISIBLE_DEVICES where that is set; `onefold info` lists them",
        number, count == 1 ? "1 card" : fmt::format("{} cards", count));
  if (const CudaCard card = describe(number); !card.problem.empty())
    user_error("card {} ({}) {}; use another, or the device cpu", number, card.name, card.problem);
  const Card card(number);
  card.use();
  return card;
}

Device* open(int card, int threads) { return new CudaDevice(usable_card(card), threads); }

int64_t free_bytes(int card) {
  usable_card(card);
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "ask for the card's free memory");
  // Libraries load kernels as they are first used, into memory that is not ours to book: up to
  // 60 MiB of it in the steps that were measured.
  constexpr int64_t kForLibraries = int64_t{512} << 20;
  return std::max<int64_t>(0, static_cast<int64_t>(free) - kForLibraries);
}

constexpr CudaApi kApi = {ONEFOLD_INTERFACE_HASH, cards, open, free_bytes};

}  // namespace
}  // namespace onefold::cuda

extern "C" __attribute__((visibility("default"))) const onefold::CudaApi* onefold_cuda_api() {
  return &onefold::cuda::kApi;
}
