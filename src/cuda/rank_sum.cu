// Sums over ranks, in the order of ranks: the same bits whatever is summed together, and as
// comm/rank_sum.h has them on the host.
#include <algorithm>
#include <type_traits>

#include "cuda/launch.cuh"
#include "cuda/pack.cuh"
#include "cuda/rank_sum.h"

namespace onefold::cuda {
namespace {

// So many elements at once: 16 bytes where all ranks' elements are aligned, else one.
template <class T, int kElems>
struct alignas(sizeof(T) * kElems) Elems {
  T values[kElems];
};

template <class Sum, class T>
__device__ Sum summand(T x) {
  if constexpr (std::is_same_v<T, double>)
    return x;
  else
    return widen(x);
}
template <class T, class Sum>
__device__ T rounded(Sum sum) {
  if constexpr (std::is_same_v<T, double>)
    return sum;
  else
    return narrow<T>(sum);
}

template <class T, class Sum, int kElems>
__global__ void rank_sum_kernel(__grid_constant__ const RankSources sources, T* dst,
                                int64_t groups) {
  using Group = Elems<T, kElems>;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < groups;
       i += int64_t{gridDim.x} * blockDim.x) {
    Group group = static_cast<const Group*>(sources.at[0])[i];
    Sum sums[kElems];
#pragma unroll
    for (int k = 0; k < kElems; ++k) sums[k] = summand<Sum>(group.values[k]);
    for (int r = 1; r < sources.count; ++r) {
      group = static_cast<const Group*>(sources.at[r])[i];
#pragma unroll
      for (int k = 0; k < kElems; ++k) sums[k] += summand<Sum>(group.values[k]);
    }
#pragma unroll
    for (int k = 0; k < kElems; ++k) group.values[k] = rounded<T>(sums[k]);
    reinterpret_cast<Group*>(dst)[i] = group;
  }
}

template <class T, class Sum, int kElems>
void launch_sum(const RankSources& sources, void* dst, int64_t groups, cudaStream_t stream) {
  constexpr int64_t kMostBlocks = 132 * 8;  // as many as run at a time on an H100 or H200
  launch(rank_sum_kernel<T, Sum, kElems>,
         grid_of(std::min(ceil_div(groups, int64_t{kThreads}), kMostBlocks)), kThreads, 0, stream,
         sources, static_cast<T*>(dst), groups);
}

bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

template <class T, class Sum = float>
void sum_of(const RankSources& sources, void* dst, int64_t elems, cudaStream_t stream) {
  bool aligned = is_aligned(dst);
  for (int r = 0; r < sources.count; ++r) aligned = aligned && is_aligned(sources.at[r]);
  const int64_t wide = aligned ? elems / kWide<T> : 0, done = wide * kWide<T>;
  launch_sum<T, Sum, kWide<T>>(sources, dst, wide, stream);
  if (done == elems) return;
  RankSources rest = sources;
  for (int r = 0; r < rest.count; ++r) rest.at[r] = static_cast<const T*>(rest.at[r]) + done;
  launch_sum<T, Sum, 1>(rest, static_cast<T*>(dst) + done, elems - done, stream);
}

}  // namespace

void rank_sum(SumType type, const RankSources& sources, void* dst, int64_t elems,
              cudaStream_t stream) {
  if (elems == 0) return;
  if (type == SumType::f64)
    sum_of<double, double>(sources, dst, elems, stream);
  else if (type == SumType::bf16)
    sum_of<bf16>(sources, dst, elems, stream);
  else if (type == SumType::f16)
    sum_of<f16>(sources, dst, elems, stream);
  else
    sum_of<float>(sources, dst, elems, stream);
}

}  // namespace onefold::cuda
