// Starting kernels, and what they have in common: the shape of a block, its shared memory, sums
// over a warp or a block in a fixed order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/check.h"

namespace onefold::cuda {

inline constexpr int kThreads = 256;  // of a block, where nothing else is said
inline constexpr int kWarp = 32;

inline constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A grid of no blocks is nothing to do.
template <class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 grid, int threads, int64_t shared_bytes,
            cudaStream_t stream, const Args&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  constexpr int64_t kGivenBytes = 48 * 1024;  // what a block may have without asking
  if (shared_bytes > kGivenBytes)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          "ask for a block's shared memory");
  kernel<<<grid, threads, static_cast<size_t>(shared_bytes), stream>>>(
      static_cast<Params>(args)...);
  check(cudaGetLastError(), "launch a kernel");
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

// How elementwise kernels share out [rows, cols]: a block takes kPiece consecutive columns of one
// row, a thread kEach of them, kThreads apart. All of a thread's loads are under way before its
// first store.
inline constexpr int kEach = 4;
inline constexpr int kPiece = kEach * kThreads;

inline dim3 pieces_grid(int64_t rows, int64_t cols) {
  return grid_of(rows * ceil_div(cols, kPiece));
}

struct Piece {
  int64_t row, cols, first;  // this thread's first column

  __device__ explicit Piece(int64_t columns) : cols(columns) {
    const auto pieces = static_cast<uint32_t>(ceil_div(columns, kPiece));
    row = blockIdx.x / pieces;
    first = static_cast<int64_t>(blockIdx.x % pieces) * kPiece + threadIdx.x;
  }
  // body(i, column) for each of this thread's columns, i in [0, kEach) a constant.
  template <class Body>
  __device__ void each(const Body& body) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t col = first + i * kThreads;
      if (col < cols) body(i, col);
    }
  }
};

}  // namespace onefold::cuda
