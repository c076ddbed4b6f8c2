#include "comm/rank_sum.h"

#include "kernels/host_memory.h"

namespace onefold {

void require_summable(std::span<const Message> messages) {
  for (const Message& message : messages)
    require(message.dtype == DType::f32 || message.dtype == DType::f64,
            "a sum over ranks of {} elements: only f32 and f64 are summed",
            dtype_name(message.dtype));
}

void RankSum::add(std::span<const float* const> sources, int64_t elems, float* dst) {
  ordered_sum(sources, dst, elems);
}

void RankSum::add(std::span<const double* const> sources, int64_t elems, double* dst) {
  ordered_sum(sources, dst, elems);
}

}  // namespace onefold
