// Sums over rows and over everything.
#include "cuda/ops.h"
#include "cuda/partials.cuh"

namespace onefold::cuda {
namespace {

constexpr int64_t kChunkElems = 32 * 1024;  // of a sum of squares

// Each thread has a column, each row of blocks a chunk of rows.
__global__ void column_kernel(Matrix x, int64_t chunk_size, float* partials) {
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x;
  if (col >= x.cols) return;
  const int64_t begin = blockIdx.y * chunk_size;
  const int64_t end = begin + chunk_size < x.rows ? begin + chunk_size : x.rows;
  float sum = 0;
#pragma unroll 8
  for (int64_t row = begin; row < end; ++row) sum += x.row(row)[col];
  partials[blockIdx.y * x.cols + col] = sum;
}

__global__ void partials_kernel(const float* partials, int64_t chunks, int64_t spacing,
                                bool accumulate, float* dst, int64_t elems) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x;
  if (i >= elems) return;
  float sum = 0;
#pragma unroll 8
  for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += partials[chunk * spacing + i];
  dst[i] = accumulate ? dst[i] + sum : sum;
}

// In order, by one thread: the others bring the numbers near.
template <class T>
__global__ void sum_kernel(const T* x, int64_t elems, double* dst) {
  __shared__ double near[kThreads];
  double total = 0;
  for (int64_t begin = 0; begin < elems; begin += kThreads) {
    const int64_t mine = begin + threadIdx.x;
    if (mine < elems) near[threadIdx.x] = static_cast<double>(x[mine]);
    __syncthreads();
    if (threadIdx.x == 0) {
      const int count = static_cast<int>(elems - begin < kThreads ? elems - begin : kThreads);
      for (int i = 0; i < count; ++i) total += near[i];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *dst = total;
}

// One block to a chunk. In double throughout: squares of large gradients must not overflow, and the
// norm of billions of elements must not drift.
__global__ void squares_kernel(const float* x, int64_t elems, double* sums) {
  const int64_t begin = blockIdx.x * kChunkElems;
  const int64_t end = begin + kChunkElems < elems ? begin + kChunkElems : elems;
  double sum = 0;
#pragma unroll 8
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const auto value = static_cast<double>(x[i]);
    sum = fma(value, value, sum);
  }
  sum = team_sum<kThreads>(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

}  // namespace

void add_partials(const float* partials, int64_t chunks, int64_t spacing, bool accumulate,
                  float* dst, int64_t elems, cudaStream_t stream) {
  launch(partials_kernel, grid_of(ceil_div(elems, kColumnThreads)), kColumnThreads, 0, stream,
         partials, chunks, spacing, accumulate, dst, elems);
}

void column_sum(Matrix x, float* dst, bool accumulate, float* scratch, cudaStream_t stream) {
  const RowChunks chunks(x.rows);
  launch(column_kernel, grid_of(ceil_div(x.cols, kColumnThreads), chunks.count), kColumnThreads, 0,
         stream, x, chunks.size, scratch);
  add_partials(scratch, chunks.count, x.cols, accumulate, dst, x.cols, stream);
}

int64_t column_sum_scratch_bytes(int64_t rows, int64_t cols) {
  return RowChunks(rows).count * cols * static_cast<int64_t>(sizeof(float));
}

void sum(const float* x, int64_t elems, double* dst, cudaStream_t stream) {
  launch(sum_kernel<float>, grid_of(1), kThreads, 0, stream, x, elems, dst);
}

void sum(const double* x, int64_t elems, double* dst, cudaStream_t stream) {
  launch(sum_kernel<double>, grid_of(1), kThreads, 0, stream, x, elems, dst);
}

// scratch: one double for each chunk.
void sum_squares(const float* x, int64_t elems, double* dst, double* scratch, cudaStream_t stream) {
  const int64_t chunks = ceil_div(elems, kChunkElems);
  launch(squares_kernel, grid_of(chunks), kThreads, 0, stream, x, elems, scratch);
  sum(scratch, chunks, dst, stream);
}

int64_t sum_squares_scratch_bytes(int64_t elems) {
  return ceil_div(elems, kChunkElems) * static_cast<int64_t>(sizeof(double));
}

}  // namespace onefold::cuda
