#include "comm/rank_sum.h"

#include "kernels/host_memory.h"

namespace onefold {
namespace {

template <class T>
void add_halves(std::span<const T* const> sources, int64_t elems, T* dst) {
  for (int64_t i = 0; i < elems; ++i) {
    float sum = widened(sources[0][i]);
    for (size_t r = 1; r < sources.size(); ++r) sum += widened(sources[r][i]);
    dst[i] = narrowed<T>(sum);
  }
}

}  // namespace

void require_summable(std::span<const Message> messages) {
  for (const Message& message : messages)
    require(message.dtype == DType::f32 || message.dtype == DType::f64 ||
                message.dtype == DType::bf16 || message.dtype == DType::f16,
            "a sum over ranks of {} elements: only f32, f64, bf16 and f16 are summed",
            dtype_name(message.dtype));
}

void HostRankMemory::copy(const void* src, void* dst, int64_t bytes) {
  copy_bytes(src, dst, bytes);
}

void RankSum::add(std::span<const float* const> sources, int64_t elems, float* dst) {
  ordered_sum(sources, dst, elems);
}

void RankSum::add(std::span<const double* const> sources, int64_t elems, double* dst) {
  ordered_sum(sources, dst, elems);
}

void RankSum::add(std::span<const Bf16* const> sources, int64_t elems, Bf16* dst) {
  add_halves(sources, elems, dst);
}

void RankSum::add(std::span<const F16* const> sources, int64_t elems, F16* dst) {
  add_halves(sources, elems, dst);
}

}  // namespace onefold
