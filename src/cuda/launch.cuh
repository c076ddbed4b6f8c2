// Starting kernels, and what they have in common: the shape of a block, its shared memory, sums
// over a warp or a block in a fixed order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "cuda/card_traits.h"
#include "cuda/check.h"

namespace onefold::cuda {

inline constexpr int kThreads = 256;  // of a block, where nothing else is said
inline constexpr int kWarp = 32;

inline constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class... Params>
void ask_for_shared_memory(void (*kernel)(Params...), int64_t bytes) {
  constexpr int64_t kGivenBytes = 48 * 1024;  // what a block may have without asking
  if (bytes <= kGivenBytes) return;
  require_shared_memory(bytes);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "ask for a block's shared memory");
}

// A grid of no blocks is nothing to do.
template <class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 grid, int threads, int64_t shared_bytes,
            cudaStream_t stream, const Args&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  ask_for_shared_memory(kernel, shared_bytes);
  kernel<<<grid, threads, static_cast<size_t>(shared_bytes), stream>>>(
      static_cast<Params>(args)...);
  check(cudaGetLastError(), "launch a kernel");
}

template <class... Params, class... Args>
void launch_with(std::span<cudaLaunchAttribute> attributes, void (*kernel)(Params...), dim3 grid,
                 int threads, int64_t shared_bytes, cudaStream_t stream, const Args&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  ask_for_shared_memory(kernel, shared_bytes);
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = attributes.data();
  config.numAttrs = static_cast<unsigned>(attributes.size());
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), "launch a kernel");
}

// In clusters of `blocks` blocks along x, on a card that has them.
template <class... Params, class... Args>
void launch_clusters(void (*kernel)(Params...), int blocks, dim3 grid, int threads,
                     int64_t shared_bytes, cudaStream_t stream, const Args&... args) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(blocks);
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  launch_with({&cluster, 1}, kernel, grid, threads, shared_bytes, stream, args...);
}

// A kernel that begins with after_the_last_kernel(), so that its blocks may be on their way while
// the last blocks of the kernel before it still run, on cards that can do that: a step has hundreds
// of small ones.
template <class... Params, class... Args>
void launch_early(void (*kernel)(Params...), dim3 grid, int threads, int64_t shared_bytes,
                  cudaStream_t stream, const Args&... args) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  launch_with({&early, card_traits().clusters ? size_t{1} : size_t{0}}, kernel, grid, threads,
              shared_bytes, stream, args...);
}

// Lets the next kernel be launched early, and waits until the one before has ended and its results
// can be seen. Every thread calls it before anything else.
__device__ inline void after_the_last_kernel() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
}

inline dim3 grid_of(int64_t x, int64_t y = 1) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y));
}

// The block's shared memory, as large as its launch said.
__device__ inline float* shared_floats() {
  extern __shared__ float4 onefold_block_memory[];
  return reinterpret_cast<float*>(onefold_block_memory);
}

// The sum over a warp's lanes, in each of them. A butterfly: all lanes have the same bits.
template <class T>
__device__ T warp_sum(T value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

// Several sums over a team of threads at once, in each of them. A team is a warp, or the whole
// block of kTeam threads, which then calls it together: its warps' sums are added in order.
template <int kTeam, int kCount, class T>
__device__ void team_sums(T (&values)[kCount]) {
  for (int i = 0; i < kCount; ++i) values[i] = warp_sum(values[i]);
  if constexpr (kTeam > kWarp) {
    constexpr int kWarps = kTeam / kWarp;
    __shared__ T partial[kCount][kWarps];
    __syncthreads();  // the sums of the last call have been read
    if (threadIdx.x % kWarp == 0)
      for (int i = 0; i < kCount; ++i) partial[i][threadIdx.x / kWarp] = values[i];
    __syncthreads();
    for (int i = 0; i < kCount; ++i) {
      values[i] = partial[i][0];
      for (int warp = 1; warp < kWarps; ++warp) values[i] += partial[i][warp];
    }
  }
}

template <int kTeam, class T>
__device__ T team_sum(T value) {
  T values[1] = {value};
  team_sums<kTeam>(values);
  return values[0];
}

// How elementwise kernels share out [rows, cols]: a thread has kEach packs of `elems` consecutive
// elements, kThreads packs apart. All of a thread's loads are under way before its first store.
inline constexpr int kEach = 2;

struct Share {
  int64_t packs_of_row, packs;
  int elems;
  bool aligned;

  Share(int64_t rows, int64_t cols, int elems_of_pack, bool is_aligned)
      : packs_of_row(ceil_div(cols, elems_of_pack)),
        packs(rows * packs_of_row),
        elems(elems_of_pack),
        aligned(is_aligned) {}
  dim3 grid() const { return grid_of(ceil_div(packs, kEach * kThreads)); }

  // body(i, row, column) for each of this thread's packs, i in [0, kEach) a constant.
  template <class Body>
  __device__ void each(const Body& body) const {
    const int64_t first = static_cast<int64_t>(blockIdx.x) * (kEach * kThreads) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t at = first + i * kThreads;
      if (at >= packs) continue;
      const int64_t row = row_of(at);
      body(i, row, (at - row * packs_of_row) * elems);
    }
  }

 private:
  // Divisions of 32 bits are several times as fast.
  __device__ int64_t row_of(int64_t at) const {
    if (packs == packs_of_row) return 0;
    return packs >> 32 == 0 ? static_cast<uint32_t>(at) / static_cast<uint32_t>(packs_of_row)
                            : at / packs_of_row;
  }
};

}  // namespace onefold::cuda
