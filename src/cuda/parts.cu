// Rows that are a part of their sequences, columns that are a part of rows, and attention over
// parts of the keys: dropout by the places of elements, and the joining of two results.
#include "cuda/launch.cuh"
#include "cuda/mask.cuh"
#include "cuda/pack.cuh"

namespace onefold::cuda {
namespace {

// A thread has those of a row's elements that share a Philox counter. `whole`: all four of them are
// the row's, and can be loaded at once.
template <class T>
__global__ void dropout_kernel(Parts parts, View<T> x, Mask mask, int64_t length, View<T> residual,
                               View<T> dst, int64_t counters, bool whole) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t row = at / counters;
  if (row >= x.rows) return;
  const int64_t place = parts.places ? parts.places[row] : row % length;
  // Of the row's elements in its sample.
  const int64_t first = place * parts.all_cols + parts.first_col;
  const int64_t counter = first / 4 + at % counters, begin = 4 * counter - first;  // a column
  if (begin >= x.cols) return;
  const PhiloxWords words =
      mask_words(mask, mask.samples[row / length], static_cast<uint64_t>(counter));
  const auto kept = [&](T value, int i, const T* added) {
    const float factor = multiplier(mask, words[i]);
    return narrow<T>(added ? fmaf(widen(value), factor, widen(*added)) : widen(value) * factor);
  };
  const T* from = x.row(row);
  const T* more = residual.data ? residual.row(row) : nullptr;
  if (whole) {
    Four<T> four = *reinterpret_cast<const Four<T>*>(from + begin), added{};
    if (more) added = *reinterpret_cast<const Four<T>*>(more + begin);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      four.values[i] = kept(four.values[i], i, more ? &added.values[i] : nullptr);
    *reinterpret_cast<Four<T>*>(dst.row(row) + begin) = four;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t col = begin + i;
    if (col < 0 || col >= x.cols) continue;
    dst.row(row)[col] = kept(from[col], i, more ? more + col : nullptr);
  }
}

// A warp has a row of a head: all of it reads the logarithms before one lane writes their sum's.
template <class T>
__global__ void merge_kernel(View<T> out, Lse lse, View<T> more, Lse more_lse, int64_t dim) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  const auto lane = static_cast<int64_t>(threadIdx.x % kWarp);
  const int64_t row = at / lse.heads, head = at % lse.heads;
  if (row >= out.rows) return;
  float* const sum = lse.data + head * lse.stride + row;
  const float mine = *sum, other = more_lse.data[head * more_lse.stride + row];
  const float top = fmaxf(mine, other);
  const float all = top + logf(expf(mine - top) + expf(other - top));
  const float keep = expf(mine - all), take = expf(other - all);
  T* const to = out.row(row) + head * dim;
  const T* const from = more.row(row) + head * dim;
  for (int64_t i = lane; i < dim; i += kWarp)
    to[i] = narrow<T>(fmaf(take, widen(from[i]), keep * widen(to[i])));
  __syncwarp();
  if (lane == 0) *sum = all;
}

}  // namespace

void dropout_at(const Parts& parts, Matrix x, const Mask& mask, int64_t length,
                const Matrix* residual, Matrix dst, cudaStream_t stream) {
  const Matrix added = residual ? *residual : Matrix{nullptr, 0, 0, 0, x.type};
  const bool whole = x.cols % 4 == 0 && parts.all_cols % 4 == 0 && parts.first_col % 4 == 0 &&
                     all_aligned(x, added, dst);
  // Of rows that begin inside of one, one more.
  const int64_t counters = whole ? x.cols / 4 : ceil_div(x.cols, 4) + 1;
  with_type(x.type, [&](auto element) {
    using T = decltype(element);
    launch(dropout_kernel<T>, grid_of(ceil_div(x.rows * counters, kThreads)), kThreads, 0, stream,
           parts, view<T>(x), mask, length, view<T>(added), view<T>(dst), counters, whole);
  });
}

void merge_attention(Matrix out, const Lse& lse, Matrix more, const Lse& more_lse,
                     cudaStream_t stream) {
  with_type(out.type, [&](auto element) {
    using T = decltype(element);
    launch(merge_kernel<T>, grid_of(ceil_div(out.rows * lse.heads, kThreads / kWarp)), kThreads, 0,
           stream, view<T>(out), lse, view<T>(more), more_lse, out.cols / lse.heads);
  });
}

}  // namespace onefold::cuda
