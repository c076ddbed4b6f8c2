// Token and position embeddings. Backward sorts the rows by token and adds up those of each token
// in row order, one thread for each column of the table: nothing is added atomically, and the bits
// are the CPU's.
#include "cuda/launch.cuh"
#include "cuda/ops.h"
#include "cuda/partials.cuh"
#include "cuda/positions.cuh"

namespace onefold::cuda {
namespace {

constexpr int kScanThreads = 1024;

__device__ inline bool in_table(int32_t token, int64_t vocabulary) {
  return token >= 0 && token < vocabulary;
}

// One block to a row.
__global__ void forward_kernel(const int32_t* tokens, Matrix table, Matrix position_table,
                               Positions positions, Matrix dst) {
  const int64_t row = blockIdx.x;
  const int32_t token = tokens[row];
  const bool known = in_table(token, table.rows);
  const float* src = table.row(known ? token : 0);
  const float* position =
      position_table.data ? position_table.row(position_of(positions, row)) : nullptr;
  float* out = dst.row(row);
  for (int64_t col = threadIdx.x; col < dst.cols; col += kThreads) {
    const float value = known ? src[col] : nanf("");
    out[col] = position ? value + position[col] : value;
  }
}

// The order in which counts grow does not matter.
__global__ void count_kernel(const int32_t* tokens, int64_t rows, int32_t* counts,
                             int64_t vocabulary) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row < rows && in_table(tokens[row], vocabulary)) atomicAdd(&counts[tokens[row]], 1);
}

// Turns each token's count into the place of its first row; begins[vocabulary] is the count of all.
// One block, in which each thread has a range of tokens.
__global__ void scan_kernel(int32_t* begins, int64_t vocabulary) {
  __shared__ int32_t sums[kScanThreads];
  const int64_t size = (vocabulary + kScanThreads - 1) / kScanThreads;
  const int64_t first = threadIdx.x * size;
  const int64_t end = first + size < vocabulary ? first + size : vocabulary;
  int32_t own = 0;
  for (int64_t token = first; token < end; ++token) own += begins[token];
  sums[threadIdx.x] = own;
  for (int step = 1; step < kScanThreads; step *= 2) {
    __syncthreads();
    const int32_t left =
        static_cast<int>(threadIdx.x) >= step ? sums[threadIdx.x - static_cast<unsigned>(step)] : 0;
    __syncthreads();
    sums[threadIdx.x] += left;
  }
  int32_t begin = sums[threadIdx.x] - own;
  for (int64_t token = first; token < end; ++token) {
    const int32_t count = begins[token];
    begins[token] = begin;
    begin += count;
  }
  if (threadIdx.x == kScanThreads - 1) begins[vocabulary] = sums[threadIdx.x];
}

// One warp to a row: how many rows before it have its token is its place among them.
__global__ void place_kernel(const int32_t* tokens, int64_t rows, const int32_t* begins,
                             int64_t vocabulary, int32_t* order) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (row >= rows || !in_table(tokens[row], vocabulary)) return;
  const int32_t token = tokens[row];
  int32_t before = 0;
  for (int64_t other = threadIdx.x % kWarp; other < row; other += kWarp)
    before += tokens[other] == token ? 1 : 0;
  before = warp_sum(before);
  if (threadIdx.x % kWarp == 0) order[begins[token] + before] = static_cast<int32_t>(row);
}

__global__ void table_kernel(Matrix dx, const int32_t* begins, const int32_t* order, Matrix dtable,
                             bool accumulate) {
  const int64_t col = static_cast<int64_t>(blockIdx.y) * kColumnThreads + threadIdx.x;
  if (col >= dtable.cols) return;
  const int32_t begin = begins[blockIdx.x], end = begins[blockIdx.x + 1];
  if (accumulate && begin == end) return;
  float* dst = dtable.row(blockIdx.x) + col;
  float sum = accumulate ? *dst : 0.0f;
#pragma unroll 4
  for (int32_t i = begin; i < end; ++i) sum += dx.row(order[i])[col];
  *dst = sum;
}

// One row of blocks to a position. Where documents begin anywhere, the rows of a position are found
// by looking at all that could be.
__global__ void positions_kernel(Matrix dx, Positions positions, Matrix dpositions,
                                 bool accumulate) {
  const int64_t col = static_cast<int64_t>(blockIdx.y) * kColumnThreads + threadIdx.x;
  if (col >= dpositions.cols) return;
  const int64_t length = positions.length, place = blockIdx.x - positions.first;
  float* dst = dpositions.row(blockIdx.x) + col;
  float sum = accumulate ? *dst : 0.0f;
  for (int64_t first = 0; first < dx.rows && place >= 0 && place < length; first += length) {
    const int64_t end = positions.starts ? first + length : first + place + 1;
    for (int64_t row = first + place; row < end && row < dx.rows; ++row)
      if (!positions.starts || position_of(positions, row) == place) sum += dx.row(row)[col];
  }
  *dst = sum;
}

}  // namespace

void embedding_forward(const int32_t* tokens, Matrix table, Matrix position_table,
                       const Positions& positions, Matrix dst, cudaStream_t stream) {
  launch(forward_kernel, grid_of(dst.rows), kThreads, 0, stream, tokens, table, position_table,
         positions, dst);
}

// scratch: where each token's rows begin, [vocabulary + 1]; the rows by token, [rows].
void embedding_backward(const EmbeddingBackward& args, cudaStream_t stream) {
  const int64_t vocabulary = args.dtable.rows, rows = args.dx.rows;
  int32_t* begins = args.scratch;
  int32_t* order = begins + vocabulary + 1;
  check(cudaMemsetAsync(begins, 0, static_cast<size_t>(vocabulary + 1) * sizeof(int32_t), stream),
        "clear counts");
  launch(count_kernel, grid_of(ceil_div(rows, kThreads)), kThreads, 0, stream, args.tokens, rows,
         begins, vocabulary);
  launch(scan_kernel, grid_of(1), kScanThreads, 0, stream, begins, vocabulary);
  launch(place_kernel, grid_of(ceil_div(rows, kThreads / kWarp)), kThreads, 0, stream, args.tokens,
         rows, begins, vocabulary, order);
  launch(table_kernel, grid_of(vocabulary, ceil_div(args.dtable.cols, kColumnThreads)),
         kColumnThreads, 0, stream, args.dx, begins, order, args.dtable, args.accumulate_table);
  if (args.dpositions.data)
    launch(positions_kernel,
           grid_of(args.dpositions.rows, ceil_div(args.dpositions.cols, kColumnThreads)),
           kColumnThreads, 0, stream, args.dx, args.positions, args.dpositions,
           args.accumulate_positions);
}

int64_t embedding_backward_scratch_bytes(int64_t rows, int64_t vocabulary) {
  return (vocabulary + 1 + rows) * static_cast<int64_t>(sizeof(int32_t));
}

}  // namespace onefold::cuda
