// Fills, sums of two tensors, dropout and rotary positions.
#include "cuda/launch.cuh"
#include "cuda/mask.cuh"
#include "cuda/positions.cuh"

namespace onefold::cuda {
namespace {

__global__ void fill_kernel(Matrix dst, float value) {
  const Piece piece(dst.cols);
  float* row = dst.row(piece.row);
  piece.each([&](int, int64_t col) { row[col] = value; });
}

__global__ void add_kernel(Matrix a, Matrix b, Matrix dst) {
  const Piece piece(dst.cols);
  const float* x = a.row(piece.row);
  const float* y = b.row(piece.row);
  float* out = dst.row(piece.row);
  float sums[kEach];
  piece.each([&](int i, int64_t col) { sums[i] = x[col] + y[col]; });
  piece.each([&](int i, int64_t col) { out[col] = sums[i]; });
}

// A thread has the four elements that share a Philox counter, wherever rows end among them. One
// block of threads works on one sample.
__global__ void dropout_kernel(Matrix x, Mask mask, int64_t length, Matrix residual, Matrix dst,
                               uint32_t blocks_of_sample) {
  const int64_t sample = blockIdx.x / blocks_of_sample;
  const int64_t group =
      static_cast<int64_t>(blockIdx.x % blocks_of_sample) * kThreads + threadIdx.x;
  const PhiloxWords words = mask_words(mask, mask.samples[sample], static_cast<uint64_t>(group));
  int64_t row = sample * length + 4 * group / x.cols, col = 4 * group % x.cols;
  const int64_t end = (sample + 1) * length < x.rows ? (sample + 1) * length : x.rows;
  float values[4];
  int64_t at[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    at[i] = -1;
    if (row < end) {
      at[i] = row * dst.stride + col;
      const float value = x.row(row)[col], factor = multiplier(mask, words[i]);
      values[i] = residual.data ? fmaf(value, factor, residual.row(row)[col]) : value * factor;
    }
    if (++col == x.cols) {
      col = 0;
      ++row;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (at[i] >= 0) dst.data[at[i]] = values[i];
}

// One block to a row. Turns (x[i], x[i + half]) of each head by the angle whose cosine is table[i]
// and whose sine is table[i + half].
__global__ void rope_kernel(Matrix x, int pairs, int half, Matrix table, Positions positions,
                            float sign) {
  float* row = x.row(blockIdx.x);
  const float* angles = table.row(position_of(positions, blockIdx.x));
  for (int pair = static_cast<int>(threadIdx.x); pair < pairs; pair += kThreads) {
    const int i = pair % half;
    float* at = row + static_cast<int64_t>(pair / half) * 2 * half + i;
    const float a = at[0], b = at[half];
    const float c = angles[i], s = sign * angles[half + i];
    at[0] = fmaf(-b, s, a * c);
    at[half] = fmaf(a, s, b * c);
  }
}

}  // namespace

void fill(Matrix dst, float value, cudaStream_t stream) {
  launch(fill_kernel, pieces_grid(dst.rows, dst.cols), kThreads, 0, stream, dst, value);
}

void add(Matrix a, Matrix b, Matrix dst, cudaStream_t stream) {
  launch(add_kernel, pieces_grid(dst.rows, dst.cols), kThreads, 0, stream, a, b, dst);
}

void add_bias(const float* bias, Matrix dst, cudaStream_t stream) {
  const Matrix same_row{const_cast<float*>(bias), dst.rows, dst.cols, 0};
  add(dst, same_row, dst, stream);
}

void dropout(Matrix x, const Mask& mask, int64_t length, const Matrix* residual, Matrix dst,
             cudaStream_t stream) {
  const int64_t samples = ceil_div(x.rows, length);
  const int64_t blocks = ceil_div(ceil_div(length * x.cols, 4), kThreads);
  launch(dropout_kernel, grid_of(samples * blocks), kThreads, 0, stream, x, mask, length,
         residual ? *residual : Matrix{}, dst, static_cast<uint32_t>(blocks));
}

void rope(Matrix x, int64_t heads, Matrix table, const Positions& positions, bool inverse,
          cudaStream_t stream) {
  const int64_t half = table.cols / 2;
  launch(rope_kernel, grid_of(x.rows), kThreads, 0, stream, x, static_cast<int>(heads * half),
         static_cast<int>(half), table, positions, inverse ? -1.0f : 1.0f);
}

}  // namespace onefold::cuda
