// Cross-entropy over shares of the columns, one block to a row: what a share tells the others of
// its columns, and losses and gradients from what all have told.
#include "cuda/launch.cuh"
#include "cuda/pack.cuh"

namespace onefold::cuda {
namespace {

constexpr int kRowThreads = 512;

template <class T>
__device__ float exp_of(float x) {
  if constexpr (sizeof(T) == 4)
    return expf(x);
  else
    return fast_exp(x);
}

__device__ float block_max(float value) {
  __shared__ float partial[kRowThreads / kWarp];
  for (int step = kWarp / 2; step > 0; step /= 2)
    value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  for (int warp = 0; warp < kRowThreads / kWarp; ++warp) value = fmaxf(value, partial[warp]);
  return value;
}

// Calls visit(first column, elements) for each of this thread's packs of a row.
template <class T, class Visit>
__device__ void for_each_pack(const T* row, int64_t cols, bool is_aligned, const Visit& visit) {
  constexpr int kElems = kWide<T>;
#pragma unroll 4
  for (int64_t first = static_cast<int64_t>(threadIdx.x) * kElems; first < cols;
       first += kRowThreads * kElems) {
    float x[kElems];
    load_pack<Pack<T>>(row, first, cols, is_aligned).to(x);
    visit(first, x);
  }
}

// NaN is lost to fmaxf, and comes back in the sum. A thread sums its own exponentials in fp32, a
// pack at a time, and packs in double.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    stats_kernel(View<T> logits, const int32_t* targets, float* stats, bool is_aligned) {
  constexpr int kElems = kWide<T>;
  const T* row = logits.row(blockIdx.x);
  const int64_t cols = logits.cols;
  float top = -INFINITY;
  for_each_pack(row, cols, is_aligned, [&](int64_t first, const float(&x)[kElems]) {
#pragma unroll
    for (int k = 0; k < kElems; ++k)
      if (first + k < cols) top = fmaxf(top, x[k]);
  });
  top = block_max(top);
  const float shift = top == -INFINITY ? 0.0f : top;  // infinity less infinity is not a number
  double sum = 0;
  for_each_pack(row, cols, is_aligned, [&](int64_t first, const float(&x)[kElems]) {
    float part = 0;
#pragma unroll
    for (int k = 0; k < kElems; ++k)
      if (first + k < cols) part += exp_of<T>(x[k] - shift);
    sum += static_cast<double>(part);
  });
  sum = team_sum<kRowThreads>(sum);
  if (threadIdx.x > 0) return;
  const int64_t target = targets[blockIdx.x], rows = logits.rows;
  stats[blockIdx.x] = top;
  stats[rows + blockIdx.x] = static_cast<float>(sum);
  stats[2 * rows + blockIdx.x] = target > cols                  ? nanf("")
                                 : target >= 0 && target < cols ? widen(row[target])
                                                                : 0.0f;
}

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    loss_kernel(View<T> logits, const int32_t* targets, const float* stats, int64_t shares,
                const float* gradient_scale, float* losses, bool is_aligned) {
  constexpr int kElems = kWide<T>;
  T* row = logits.row(blockIdx.x);
  const int64_t cols = logits.cols, rows = logits.rows, target = targets[blockIdx.x];
  if (target < 0) {
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    const float zeros[kElems] = {};
    for (int64_t first = static_cast<int64_t>(threadIdx.x) * kElems; gradient_scale && first < cols;
         first += kRowThreads * kElems)
      store_pack<T>(zeros, row, first, cols, is_aligned);
    return;
  }
  // The whole row's, of its shares in order.
  const auto told = [&](int64_t share, int64_t which) {
    return stats[(3 * share + which) * rows + blockIdx.x];
  };
  float top = -INFINITY;
  double sum = 0, of_target = 0;
  for (int64_t s = 0; s < shares; ++s) {
    top = fmaxf(top, told(s, 0));
    of_target += static_cast<double>(told(s, 2));
  }
  for (int64_t s = 0; s < shares; ++s)
    if (const float part = told(s, 1); part != 0)
      sum += static_cast<double>(part) *
             exp(static_cast<double>(told(s, 0)) - static_cast<double>(top));
  if (threadIdx.x == 0)
    losses[blockIdx.x] = static_cast<float>(log(sum) - (of_target - static_cast<double>(top)));
  if (!gradient_scale) return;
  const float scale = *gradient_scale;
  const auto factor = static_cast<float>(static_cast<double>(scale) / sum);
  for_each_pack(row, cols, is_aligned, [&](int64_t first, const float(&x)[kElems]) {
    float gradient[kElems];
#pragma unroll
    for (int k = 0; k < kElems; ++k) {
      gradient[k] = factor * exp_of<T>(x[k] - top);
      if (first + k == target) gradient[k] -= scale;
    }
    store_pack<T>(gradient, row, first, cols, is_aligned);
  });
}

}  // namespace

void share_softmax(Matrix logits, const int32_t* targets, float* stats, cudaStream_t stream) {
  with_type(logits.type, [&](auto element) {
    using T = decltype(element);
    launch(stats_kernel<T>, grid_of(logits.rows), kRowThreads, 0, stream, view<T>(logits), targets,
           stats, aligned(logits));
  });
}

void share_cross_entropy(Matrix logits, const int32_t* targets, const float* stats, int64_t shares,
                         const float* gradient_scale, float* losses, cudaStream_t stream) {
  with_type(logits.type, [&](auto element) {
    using T = decltype(element);
    launch(loss_kernel<T>, grid_of(logits.rows), kRowThreads, 0, stream, view<T>(logits), targets,
           stats, shares, gradient_scale, losses, aligned(logits));
  });
}

}  // namespace onefold::cuda
