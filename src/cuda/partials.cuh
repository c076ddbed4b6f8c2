// Sums over rows: a partial sum for each chunk of rows, and then the chunks' sums in order.
#pragma once

#include "cuda/launch.cuh"
#include "cuda/ops.h"
#include "device/cuda_scratch.h"

namespace onefold::cuda {

inline constexpr int kColumnThreads = 128;  // of a block in which each thread has a column

// dst[0] (+)= the sum over chunks of their partial results, in a fixed order; dst[1] the same of
// the `elems` behind them, and so on, each where wanted. Partials of chunks are `spacing` apart.
// All that are wanted are of one type.
struct PartialSums {
  static constexpr int kMost = 3;
  Vector dst[kMost];
};
void add_partials(const float* partials, int64_t chunks, int64_t spacing, bool accumulate,
                  const PartialSums& sums, int64_t elems, cudaStream_t stream);

}  // namespace onefold::cuda
