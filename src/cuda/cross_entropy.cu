// Softmax cross-entropy over rows of logits: one block to a row. The largest logit and the sum of
// exponentials are found in one visit of the row, the gradient is written in a second one. Rows of
// 16 bits stay in the block's shared memory between the two; wide ones are divided over a cluster
// of blocks.
#include <cooperative_groups.h>

#include <algorithm>

#include "cuda/launch.cuh"
#include "cuda/pack.cuh"

namespace onefold::cuda {
namespace {

constexpr int kRowThreads = 512;
constexpr int kBatch = 8;  // logits that a thread has under way

template <int kBlock>
__device__ float block_max(float value) {
  __shared__ float partial[kBlock / kWarp];
  for (int step = kWarp / 2; step > 0; step /= 2)
    value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  for (int warp = 0; warp < kBlock / kWarp; ++warp) value = fmaxf(value, partial[warp]);
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
  const float best = block_max<kRowThreads>(top);
  return {best, team_sum<kRowThreads>(sum * static_cast<double>(expf(top - best)))};
}

__global__ void __launch_bounds__(kRowThreads)
    loss_kernel(View<float> logits, const int32_t* targets, const float* gradient_scale,
                float* losses) {
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

// The elements of a pack, minus infinity behind the row's end.
template <class T>
__device__ void logits_of(const Pack<T>& pack, int first, int cols, float (&x)[kWide<T>]) {
  pack.to(x);
  if (first + kWide<T> <= cols) return;
#pragma unroll
  for (int k = 0; k < kWide<T>; ++k)
    if (first + k >= cols) x[k] = -INFINITY;
}

// What a block has found in its part of a row.
struct PartOfSoftmax {
  float top;
  double sum;
};

// The whole row's, of its parts in order.
template <int kParts>
__device__ Softmax softmax_of_parts(const PartOfSoftmax& mine) {
  if constexpr (kParts == 1) {
    return {mine.top, mine.sum};
  } else {
#if __CUDA_ARCH__ >= 900
    namespace cg = cooperative_groups;
    __shared__ PartOfSoftmax shared;
    const cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x == 0) shared = mine;
    cluster.sync();
    PartOfSoftmax parts[kParts];
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      parts[i] = *cluster.map_shared_rank(&shared, i);
      top = fmaxf(top, parts[i].top);
    }
    double sum = 0;
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      sum += parts[i].sum * static_cast<double>(expf(parts[i].top - top));
    cluster.sync();  // no block leaves while others read its memory
    return {top, sum};
#else
    __trap();  // such a card is not asked to
    return {};
#endif
  }
}

// Of rows of 16 bits, each divided over kParts blocks, which keep their parts in shared memory if
// there is a gradient (`near`). Each thread sums its own exponentials, at most a few hundred, in
// fp32; the threads' sums are added in double.
template <class T, int kBlock, int kParts>
__global__ void __launch_bounds__(kBlock, kParts == 1 ? 2 : 3)
    packs_kernel(View<T> logits, const int32_t* targets, const float* gradient_scale, float* losses,
                 bool near, bool is_aligned) {
  constexpr int kElems = kWide<T>, kPacks = 4;  // that a thread has under way
  auto* kept = reinterpret_cast<Pack<T>*>(shared_floats());
  const int64_t index = blockIdx.x / kParts;
  const auto part = static_cast<int>(blockIdx.x % kParts);
  T* row = logits.row(index);
  const int64_t target = targets[index];
  const auto cols = static_cast<int>(logits.cols), all_packs = (cols + kElems - 1) / kElems;
  const int packs_of_part = (all_packs + kParts - 1) / kParts, begin = part * packs_of_part;
  const int end = begin + packs_of_part < all_packs ? begin + packs_of_part : all_packs;
  const auto thread = static_cast<int>(threadIdx.x);
  const bool tells = part == 0 && thread == 0;
  if (target < 0) {
    if (tells) losses[index] = 0;
    const float zeros[kElems] = {};
    for (int p = begin + thread; gradient_scale && p < end; p += kBlock)
      store_pack<T>(zeros, row, p * kElems, cols, is_aligned);
    return;
  }
  if (target >= cols) {
    if (tells) losses[index] = nanf("");
    return;
  }
  const float of_target = widen(row[target]);
  float top = -INFINITY, sum = 0;  // of the thread
  for (int base = begin + thread; base < end; base += kPacks * kBlock) {
    Pack<T> loaded[kPacks];
#pragma unroll
    for (int i = 0; i < kPacks; ++i)
      if (base + i * kBlock < end)
        loaded[i] = load_pack<Pack<T>>(row, (base + i * kBlock) * kElems, cols, is_aligned);
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int p = base + i * kBlock;
      if (p >= end) continue;
      if (near) kept[p - begin] = loaded[i];
      float x[kElems], best = top;
      logits_of(loaded[i], p * kElems, cols, x);
#pragma unroll
      for (int k = 0; k < kElems; ++k) best = fmaxf(best, x[k]);
      // Infinity less infinity is no number.
      const float shift = best == -INFINITY ? 0.0f : best;
      if (best > top) {
        sum *= fast_exp(top - shift);
        top = best;
      }
#pragma unroll
      for (int k = 0; k < kElems; ++k) sum += fast_exp(x[k] - shift);
    }
  }
  const float best = block_max<kBlock>(top);
  // A part may have nothing but minus infinity, or nothing.
  const float rest = top == best ? 1.0f : expf(top - best);
  const Softmax softmax = softmax_of_parts<kParts>(
      {best, team_sum<kBlock>(static_cast<double>(sum) * static_cast<double>(rest))});
  if (tells)
    losses[index] = static_cast<float>(
        log(softmax.sum) - (static_cast<double>(of_target) - static_cast<double>(softmax.top)));
  if (!gradient_scale) return;
  const float scale = *gradient_scale;
  const auto factor = static_cast<float>(static_cast<double>(scale) / softmax.sum);
  const auto target_pack = static_cast<int>(target / kElems);
#pragma unroll 2
  for (int p = begin + thread; p < end; p += kBlock) {
    float x[kElems];
    const Pack<T> pack =
        near ? kept[p - begin] : load_pack<Pack<T>>(row, p * kElems, cols, is_aligned);
    pack.to(x);
#pragma unroll
    for (int k = 0; k < kElems; ++k) x[k] = factor * fast_exp(x[k] - softmax.top);
    if (p == target_pack) {
#pragma unroll
      for (int k = 0; k < kElems; ++k)
        if (p * kElems + k == target) x[k] -= scale;
    }
    store_pack<T>(x, row, p * kElems, cols, is_aligned);
  }
}

// `kept_bytes`: of a part of a row; 0: it is read twice.
template <class T, int kBlock, int kParts>
void launch_packs(const Matrix& logits, const int32_t* targets, const float* gradient_scale,
                  float* losses, int64_t kept_bytes, cudaStream_t stream) {
  const auto start = [&](auto launcher) {
    launcher(packs_kernel<T, kBlock, kParts>, grid_of(logits.rows * kParts), kBlock, kept_bytes,
             stream, view<T>(logits), targets, gradient_scale, losses, kept_bytes > 0,
             aligned(logits));
  };
  if constexpr (kParts == 1)
    start([](auto... args) { launch(args...); });
  else
    start([](auto kernel, auto... args) { launch_clusters(kernel, kParts, args...); });
}

}  // namespace

void cross_entropy(Matrix logits, const int32_t* targets, const float* gradient_scale,
                   float* losses, cudaStream_t stream) {
  if (logits.type == Type::f32)
    return launch(loss_kernel, grid_of(logits.rows), kRowThreads, 0, stream, view<float>(logits),
                  targets, gradient_scale, losses);
  // Two blocks to a multiprocessor where two rows fit its shared memory, three parts of wider rows.
  constexpr int64_t kHalf = 112 * 1024, kMost = 224 * 1024;
  const int64_t packs = ceil_div(logits.cols, 8), bytes = packs * 16;
  constexpr int kParts = 4;
  const int64_t part_bytes = ceil_div(packs, kParts) * 16;
  const CardTraits& card = card_traits();
  with_half(logits.type, [&](auto element) {
    using T = decltype(element);
    if (gradient_scale && bytes <= std::min(kHalf, card.shared_bytes))
      launch_packs<T, 512, 1>(logits, targets, gradient_scale, losses, bytes, stream);
    else if (gradient_scale && part_bytes <= std::min(kMost, card.shared_bytes) && card.clusters)
      launch_packs<T, 384, kParts>(logits, targets, gradient_scale, losses, part_bytes, stream);
    else
      launch_packs<T, 512, 1>(logits, targets, gradient_scale, losses, 0, stream);
  });
}

}  // namespace onefold::cuda
