#include "cuda/rank_memory.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <mutex>

#include "base/error.h"
#include "cuda/check.h"
#include "cuda/packer.h"
#include "cuda/rank_sum.h"

namespace onefold::cuda {
namespace {

SumType sum_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return SumType::f64;
    case DType::bf16:
      return SumType::bf16;
    case DType::f16:
      return SumType::f16;
    default:
      return SumType::f32;
  }
}

class CardRankMemory final : public RankMemory {
 public:
  CardRankMemory(const Card& card, cudaStream_t stream) : card_(card), stream_(stream) {}
  ~CardRankMemory() override {
    for (cudaEvent_t event : marks_) (void)cudaEventDestroy(event);
  }

  void copy(const void* src, void* dst, int64_t bytes) override {
    if (src == dst || bytes == 0) return;
    card_.use();
    check(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_),
          "copy between ranks");
  }

  void sum(DType dtype, std::span<const void* const> sources, void* dst, int64_t elems) override {
    require(sources.size() <= kMostRanks, "a sum over {} ranks on a card, of {}", sources.size(),
            kMostRanks);
    card_.use();
    RankSources all{};
    std::copy(sources.begin(), sources.end(), all.at);
    all.count = static_cast<int>(sources.size());
    rank_sum(sum_type(dtype), all, dst, elems, stream_);
  }

  int64_t block_bytes() const override { return std::numeric_limits<int64_t>::max(); }

  void finish() override {
    card_.use();
    check(cudaStreamSynchronize(stream_), "finish a lane's work");
  }

  int64_t mark() override {
    card_.use();
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "make an event");
    const std::lock_guard lock(mutex_);
    marks_.push_back(event);
    check(cudaEventRecord(event, stream_), "record an event");
    return ++count_;
  }

  // Marks before the one that is asked for are reached with it, and forgotten.
  bool reached(int64_t mark) override {
    card_.use();
    const std::lock_guard lock(mutex_);
    while (count_ - static_cast<int64_t>(marks_.size()) < mark) {
      const cudaError_t state = cudaEventQuery(marks_.front());
      if (state == cudaErrorNotReady) return false;
      check(state, "look after a lane's work");
      check(cudaEventDestroy(marks_.front()), "forget an event");
      marks_.pop_front();
    }
    return true;
  }

  std::unique_ptr<Packer> packer() override { return make_packer(card_, stream_); }

  void* stream() override {
    card_.use();
    return stream_;
  }

 private:
  const Card card_;
  const cudaStream_t stream_;
  std::mutex mutex_;
  std::deque<cudaEvent_t> marks_;  // the last one's number is count_
  int64_t count_ = 0;
};

}  // namespace

std::unique_ptr<RankMemory> make_rank_memory(const Card& card, cudaStream_t stream) {
  return std::make_unique<CardRankMemory>(card, stream);
}

}  // namespace onefold::cuda
