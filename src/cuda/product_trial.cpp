#include "cuda/product_trial.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "cuda/check.h"
#include "cuda/tensor_view.h"
#include "cuda/trial_kernels.h"

namespace onefold::cuda {
namespace {

// In a round each algorithm is run as often as takes about so long; its fastest round counts.
constexpr float kRoundMilliseconds = 3;
constexpr int kRounds = 2;
// One that takes so much longer than the fastest in a single run is not run again: most are far
// behind, and a run's first step waits for all of its trials.
constexpr float kBehind = 1.08f;
// Another algorithm must be this much faster than the first.
constexpr float kMargin = 0.99f;

// Memory of the driver's, for the time of a trial.
class Block {
 public:
  explicit Block(int64_t bytes) {
    if (cudaMalloc(&data_, static_cast<size_t>(std::max<int64_t>(bytes, 16))) == cudaSuccess)
      return;
    (void)cudaGetLastError();  // a refusal is not the next call's error
    data_ = nullptr;
  }
  ~Block() {
    if (data_) (void)cudaFree(data_);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

// Others on the card may be about to take memory: half of what is free is left to them.
bool has_room_for(int64_t bytes) {
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "ask for the card's free memory");
  return bytes <= static_cast<int64_t>(free / 2);
}

class Timer {
 public:
  explicit Timer(cudaStream_t stream) : stream_(stream) {
    check(cudaEventCreate(&begin_), "make an event");
    check(cudaEventCreate(&end_), "make an event");
  }
  ~Timer() {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  float milliseconds(const std::function<void()>& call) const {
    check(cudaEventRecord(begin_, stream_), "record an event");
    call();
    check(cudaEventRecord(end_, stream_), "record an event");
    check(cudaEventSynchronize(end_), "wait for an event");
    float time = 0;
    check(cudaEventElapsedTime(&time, begin_, end_), "measure time");
    return time;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

int64_t span_elems(const Tensor& t) { return t.rows * std::max(t.stride, t.cols); }
int64_t span_bytes(const Tensor& t) { return span_elems(t) * dtype_bytes(t.dtype); }

}  // namespace

int fastest_with_the_first_ones_bits(int algorithms, const Gemm& product, bool reads_added,
                                     const std::function<bool(int, const TrialOperands&)>& run,
                                     cudaStream_t stream) {
  const Tensor &a = product.a, &b = product.b, &dst = product.dst;
  const Tensor& added = product.residual.empty() ? dst : product.residual;
  const int64_t digest_at = (span_bytes(dst) + 7) / 8 * 8;
  if (!has_room_for(span_bytes(a) + span_bytes(b) + (reads_added ? span_bytes(added) : 0) +
                    digest_at))
    return 0;
  const Block left(span_bytes(a)), right(span_bytes(b)),
      before(reads_added ? span_bytes(added) : 0),
      bias(dst.cols * static_cast<int64_t>(sizeof(float))), result(digest_at + 8);
  for (const Block* block : {&left, &right, &before, &bias, &result})
    if (!block->data()) return 0;
  fill_random({left.data(), type_of(a)}, span_elems(a), 1, stream);
  fill_random({right.data(), type_of(b)}, span_elems(b), 2, stream);
  if (reads_added) fill_random({before.data(), type_of(added)}, span_elems(added), 3, stream);
  fill_random({bias.data(), type_of(dst)}, dst.cols, 4, stream);
  const TrialOperands operands{left.data(), right.data(),
                               reads_added ? before.data() : result.data(), bias.data(),
                               result.data()};
  auto* digest =
      reinterpret_cast<unsigned long long*>(static_cast<char*>(result.data()) + digest_at);
  // The result, and so the gaps between its rows, begin as zeros.
  const auto digest_of = [&](int algorithm, unsigned long long& value) {
    check(cudaMemsetAsync(result.data(), 0, static_cast<size_t>(digest_at + 8), stream),
          "clear a result");
    if (!run(algorithm, operands)) return false;
    add_digest(static_cast<const uint32_t*>(result.data()), digest_at / 4, digest, stream);
    check(cudaMemcpyAsync(&value, digest, sizeof(value), cudaMemcpyDeviceToHost, stream),
          "copy from the card");
    check(cudaStreamSynchronize(stream), "wait for a stream");
    return true;
  };
  unsigned long long first = 0, other = 0;
  if (!digest_of(0, first)) return 0;
  std::vector<int> alike = {0};
  for (int algorithm = 1; algorithm < algorithms; ++algorithm)
    if (digest_of(algorithm, other) && other == first) alike.push_back(algorithm);
  const Timer timer(stream);
  const auto time_of = [&](int algorithm, int repeats) {
    const auto multiply = [&] {
      for (int i = 0; i < repeats; ++i) run(algorithm, operands);
    };
    return timer.milliseconds(multiply) / static_cast<float>(repeats);
  };
  const int repeats = std::clamp(static_cast<int>(kRoundMilliseconds / time_of(0, 1)), 1, 20);
  time_of(0, repeats);  // the card's clock and temperature follow its work
  std::vector<float> best;
  for (const int algorithm : alike) best.push_back(time_of(algorithm, 1));
  const float bound = kBehind * *std::min_element(best.begin(), best.end());
  std::vector<int> near = {0};
  for (size_t i = 1; i < alike.size(); ++i)
    if (best[i] <= bound) near.push_back(alike[i]);
  alike = near;
  best.assign(alike.size(), std::numeric_limits<float>::max());
  for (int round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < alike.size(); ++i)
      best[i] = std::min(best[i], time_of(alike[i], repeats));
  best[0] *= kMargin;
  return alike[static_cast<size_t>(std::min_element(best.begin(), best.end()) - best.begin())];
}

}  // namespace onefold::cuda
