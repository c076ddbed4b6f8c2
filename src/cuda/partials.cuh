// Sums over rows: a partial sum for each chunk of rows, and then the chunks' sums in order.
#pragma once

#include <algorithm>

#include "cuda/launch.cuh"

namespace onefold::cuda {

// At most 128 partial results, which fill the card for any useful number of columns; and at least
// 16 rows behind each, so that adding up the partials stays a small part of the work.
struct RowChunks {
  int64_t rows, size, count;
  explicit RowChunks(int64_t total)
      : rows(total),
        size(std::max<int64_t>(16, ceil_div(total, 128))),
        count(ceil_div(total, size)) {}
};

inline constexpr int kColumnThreads = 128;  // of a block in which each thread has a column

// dst (+)= the sum over chunks of their partial results, in chunk order. Partials are `spacing`
// apart.
void add_partials(const float* partials, int64_t chunks, int64_t spacing, bool accumulate,
                  float* dst, int64_t elems, cudaStream_t stream);

}  // namespace onefold::cuda
