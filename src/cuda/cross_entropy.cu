// Softmax cross-entropy over rows of logits: one block to a row. The largest logit and the sum of
// exponentials are found in one visit of the row, the gradient is written in a second one.
#include "cuda/launch.cuh"
#include "cuda/ops.h"

namespace onefold::cuda {
namespace {

constexpr int kRowThreads = 512;
constexpr int kBatch = 8;  // logits that a thread has under way

__device__ float block_max(float value) {
  __shared__ float partial[kRowThreads / kWarp];
  for (int step = kWarp / 2; step > 0; step /= 2)
    value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  for (int warp = 0; warp < kRowThreads / kWarp; ++warp) value = fmaxf(value, partial[warp]);
  return value;
}

// The largest logit, and the sum of exponentials relative to it.
struct Softmax {
  float top;
  double sum;
};

// Sums are in double, so the error does not grow with the vocabulary. NaN is lost to fmaxf, and
// comes back in the sum.
__device__ Softmax softmax_of(const float* row, int64_t cols) {
  float top = -INFINITY;
  double sum = 0;
  for (int64_t base = threadIdx.x; base < cols; base += kBatch * kRowThreads) {
    float x[kBatch], best = top;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int64_t col = base + i * kRowThreads;
      x[i] = col < cols ? row[col] : -INFINITY;
      best = fmaxf(best, x[i]);
    }
    if (best > top) {
      sum *= static_cast<double>(expf(top - best));
      top = best;
    }
    const float shift = top == -INFINITY ? 0.0f : top;  // infinity less infinity is not a number
#pragma unroll
    for (int i = 0; i < kBatch; ++i) sum += static_cast<double>(expf(x[i] - shift));
  }
  const float best = block_max(top);
  return {best, team_sum<kRowThreads>(sum * static_cast<double>(expf(top - best)))};
}

__global__ void __launch_bounds__(kRowThreads)
    loss_kernel(Matrix logits, const int32_t* targets, const float* gradient_scale, float* losses) {
  float* row = logits.row(blockIdx.x);
  const int64_t target = targets[blockIdx.x];
  if (target < 0) {
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    for (int64_t col = threadIdx.x; gradient_scale && col < logits.cols; col += kRowThreads)
      row[col] = 0;
    return;
  }
  if (target >= logits.cols) {
    if (threadIdx.x == 0) losses[blockIdx.x] = nanf("");
    return;
  }
  const float of_target = row[target];
  const Softmax softmax = softmax_of(row, logits.cols);
  if (threadIdx.x == 0)
    losses[blockIdx.x] = static_cast<float>(
        log(softmax.sum) - (static_cast<double>(of_target) - static_cast<double>(softmax.top)));
  if (!gradient_scale) return;
  const float scale = *gradient_scale;
  const auto factor = static_cast<float>(static_cast<double>(scale) / softmax.sum);
#pragma unroll 4
  for (int64_t col = threadIdx.x; col < logits.cols; col += kRowThreads) {
    const float probability = factor * expf(row[col] - softmax.top);
    row[col] = col == target ? probability - scale : probability;
  }
}

}  // namespace

void cross_entropy(Matrix logits, const int32_t* targets, const float* gradient_scale,
                   float* losses, cudaStream_t stream) {
  launch(loss_kernel, grid_of(logits.rows), kRowThreads, 0, stream, logits, targets, gradient_scale,
         losses);
}

}  // namespace onefold::cuda
