// The sum over ranks of the host's memory, element by element: rank 0's, plus rank 1's, plus rank
// 2's, ... in the elements' own type; of 16-bit elements in fp32, rounded once. All transports add
// with it, so they have the same bits.
#pragma once

#include <span>
#include <vector>

#include "base/half.h"
#include "comm/communicator.h"

namespace onefold {

// Throws InternalError, naming the type, where a message is of one that is not summed.
void require_summable(std::span<const Message> messages);

class RankSum {
 public:
  explicit RankSum(int ranks)
      : f32_(static_cast<size_t>(ranks)),
        f64_(static_cast<size_t>(ranks)),
        bf16_(static_cast<size_t>(ranks)),
        f16_(static_cast<size_t>(ranks)) {}

  // dst = the sum over ranks r of the `elems` elements at source(r). dst may be one of the sources.
  template <class Source>
  void sum(DType dtype, int64_t elems, void* dst, const Source& source) {
    if (dtype == DType::f64)
      add(f64_, elems, dst, source);
    else if (dtype == DType::bf16)
      add(bf16_, elems, dst, source);
    else if (dtype == DType::f16)
      add(f16_, elems, dst, source);
    else
      add(f32_, elems, dst, source);
  }

 private:
  template <class T, class Source>
  static void add(std::vector<const T*>& sources, int64_t elems, void* dst, const Source& source) {
    for (size_t r = 0; r < sources.size(); ++r)
      sources[r] = reinterpret_cast<const T*>(source(static_cast<int>(r)));
    add(sources, elems, static_cast<T*>(dst));
  }
  static void add(std::span<const float* const> sources, int64_t elems, float* dst);
  static void add(std::span<const double* const> sources, int64_t elems, double* dst);
  static void add(std::span<const Bf16* const> sources, int64_t elems, Bf16* dst);
  static void add(std::span<const F16* const> sources, int64_t elems, F16* dst);

  std::vector<const float*> f32_;  // the ranks' elements; the memory is reused by later calls
  std::vector<const double*> f64_;
  std::vector<const Bf16*> bf16_;
  std::vector<const F16*> f16_;
};

// The host's memory, on the calling thread.
class HostRankMemory final : public RankMemory {
 public:
  explicit HostRankMemory(int ranks) : sum_(ranks) {}
  void copy(const void* src, void* dst, int64_t bytes) override;
  void sum(DType dtype, std::span<const void* const> sources, void* dst, int64_t elems) override {
    sum_.sum(dtype, elems, dst, [&](int r) { return sources[static_cast<size_t>(r)]; });
  }
  // Summed and copied on while it is in the cache.
  int64_t block_bytes() const override { return 16384; }

 private:
  RankSum sum_;
};

}  // namespace onefold
