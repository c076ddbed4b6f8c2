// LayerNorm and RMSNorm, forward and backward. RMSNorm is LayerNorm with the mean taken as zero.
// Each piece (a row, or a group of its columns) has a team of threads: a warp, or a block where
// pieces are long.
#include "cuda/ops.h"
#include "cuda/partials.cuh"

namespace onefold::cuda {
namespace {

constexpr int64_t kLongPiece = 1024;  // elements from which on a block pays

// Pieces of `size` elements: `groups` in each row.
struct Pieces {
  int64_t count, groups, size;
  Pieces(const Matrix& x, int64_t in_row)
      : count(x.rows * in_row), groups(in_row), size(x.cols / in_row) {}
};

__device__ inline float* piece_of(const Matrix& x, const Pieces& pieces, int64_t index) {
  return x.row(index / pieces.groups) + index % pieces.groups * pieces.size;
}

template <int kTeam>
__device__ int64_t my_piece() {
  return static_cast<int64_t>(blockIdx.x) * (kThreads / kTeam) + threadIdx.x / kTeam;
}

struct Stats {
  float mean, rstd;
};

// Two sweeps: one with a sum of squares would lose the variance to cancellation where |mean| is
// much larger than the deviation.
template <int kTeam>
__device__ Stats stats_of(bool centered, const float* x, int64_t n, float eps) {
  const float inv_n = 1.0f / static_cast<float>(n);
  float mean = 0;
  if (centered) {
    float sum = 0;
    for (int64_t i = threadIdx.x % kTeam; i < n; i += kTeam) sum += x[i];
    mean = team_sum<kTeam>(sum) * inv_n;
  }
  float squares = 0;
  for (int64_t i = threadIdx.x % kTeam; i < n; i += kTeam) {
    const float deviation = x[i] - mean;
    squares = fmaf(deviation, deviation, squares);
  }
  return {mean, 1.0f / sqrtf(team_sum<kTeam>(squares) * inv_n + eps)};
}

// Both directions normalise with this, so that backward sees the bits of forward.
__device__ inline float normalized(float x, const Stats& stats) {
  return (x - stats.mean) * stats.rstd;
}

// x and dst may be the same memory: a team has read its piece before it writes.
template <int kTeam>
__global__ void forward_kernel(bool centered, Matrix x, Pieces pieces, const float* weight,
                               const float* bias, float eps, Matrix dst) {
  const int64_t index = my_piece<kTeam>();
  if (index >= pieces.count) return;
  const float* src = piece_of(x, pieces, index);
  float* out = piece_of(dst, pieces, index);
  const Stats stats = stats_of<kTeam>(centered, src, pieces.size, eps);
  for (int64_t i = threadIdx.x % kTeam; i < pieces.size; i += kTeam) {
    const float xhat = normalized(src[i], stats);
    out[i] = bias ? fmaf(xhat, weight[i], bias[i]) : xhat * weight[i];
  }
}

template <int kTeam>
__global__ void stats_kernel(bool centered, Matrix x, Pieces pieces, float eps, Stats* all) {
  const int64_t index = my_piece<kTeam>();
  if (index >= pieces.count) return;
  const Stats stats = stats_of<kTeam>(centered, piece_of(x, pieces, index), pieces.size, eps);
  if (threadIdx.x % kTeam == 0) all[index] = stats;
}

// Partial sums of dy * xhat and of dy over a chunk of pieces, each thread in its own column:
// partials [chunks, 2, size].
__global__ void weights_kernel(Matrix x, Matrix dy, Pieces pieces, const Stats* all,
                               int64_t chunk_size, float* partials) {
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x;
  if (col >= pieces.size) return;
  const int64_t begin = blockIdx.y * chunk_size;
  const int64_t end = begin + chunk_size < pieces.count ? begin + chunk_size : pieces.count;
  float dweight = 0, dbias = 0;
#pragma unroll 4
  for (int64_t index = begin; index < end; ++index) {
    const float d = piece_of(dy, pieces, index)[col];
    dweight = fmaf(d, normalized(piece_of(x, pieces, index)[col], all[index]), dweight);
    dbias += d;
  }
  float* partial = partials + static_cast<int64_t>(blockIdx.y) * 2 * pieces.size + col;
  partial[0] = dweight;
  partial[pieces.size] = dbias;
}

// dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), g = dy * weight. dx may be dy: each thread
// writes only what it alone reads.
template <int kTeam>
__global__ void input_kernel(bool centered, Matrix x, Pieces pieces, const float* weight,
                             const Stats* all, Matrix dy, Matrix dx, bool accumulate) {
  const int64_t index = my_piece<kTeam>();
  if (index >= pieces.count) return;
  const Stats stats = all[index];
  const float* src = piece_of(x, pieces, index);
  const float* dout = piece_of(dy, pieces, index);
  float* din = piece_of(dx, pieces, index);
  float sums[2] = {0, 0};  // of g, and of g * xhat
  for (int64_t i = threadIdx.x % kTeam; i < pieces.size; i += kTeam) {
    const float g = dout[i] * weight[i];
    sums[0] += g;
    sums[1] = fmaf(g, normalized(src[i], stats), sums[1]);
  }
  team_sums<kTeam>(sums);
  const float inv_n = 1.0f / static_cast<float>(pieces.size);
  // RMSNorm's mean is a constant, so nothing flows back through it.
  const float mean_g = centered ? sums[0] * inv_n : 0.0f;
  const float mean_g_xhat = sums[1] * inv_n;
  for (int64_t i = threadIdx.x % kTeam; i < pieces.size; i += kTeam) {
    const float g = fmaf(dout[i], weight[i], -mean_g);
    const float gradient = fmaf(-normalized(src[i], stats), mean_g_xhat, g);
    din[i] = accumulate ? fmaf(stats.rstd, gradient, din[i]) : stats.rstd * gradient;
  }
}

// Launches the kernel whose teams fit the pieces.
template <class... Params, class... Args>
void launch_teams(void (*by_warp)(Params...), void (*by_block)(Params...), const Pieces& pieces,
                  cudaStream_t stream, const Args&... args) {
  if (pieces.size <= kLongPiece)
    launch(by_warp, grid_of(ceil_div(pieces.count, kThreads / kWarp)), kThreads, 0, stream,
           args...);
  else
    launch(by_block, grid_of(pieces.count), kThreads, 0, stream, args...);
}

int64_t stats_bytes(int64_t pieces) { return pieces * static_cast<int64_t>(sizeof(Stats)); }

}  // namespace

void norm_forward(bool centered, Matrix x, int64_t groups, const float* weight, const float* bias,
                  float eps, Matrix dst, cudaStream_t stream) {
  const Pieces pieces(x, groups);
  launch_teams(forward_kernel<kWarp>, forward_kernel<kThreads>, pieces, stream, centered, x, pieces,
               weight, bias, eps, dst);
}

// The weights' gradients come before the input's, which may overwrite dy.
void norm_backward(const NormBackward& args, cudaStream_t stream) {
  const Pieces pieces(args.x, args.groups);
  auto* stats = reinterpret_cast<Stats*>(args.scratch);
  float* partials = args.scratch + stats_bytes(pieces.count) / static_cast<int64_t>(sizeof(float));
  launch_teams(stats_kernel<kWarp>, stats_kernel<kThreads>, pieces, stream, args.centered, args.x,
               pieces, args.eps, stats);
  if (args.dweight || args.dbias) {
    const RowChunks chunks(pieces.count);
    launch(weights_kernel, grid_of(ceil_div(pieces.size, kColumnThreads), chunks.count),
           kColumnThreads, 0, stream, args.x, args.dy, pieces, stats, chunks.size, partials);
    if (args.dweight)
      add_partials(partials, chunks.count, 2 * pieces.size, args.accumulate_weights, args.dweight,
                   pieces.size, stream);
    if (args.dbias)
      add_partials(partials + pieces.size, chunks.count, 2 * pieces.size, args.accumulate_weights,
                   args.dbias, pieces.size, stream);
  }
  launch_teams(input_kernel<kWarp>, input_kernel<kThreads>, pieces, stream, args.centered, args.x,
               pieces, args.weight, stats, args.dy, args.dx, args.accumulate_dx);
}

int64_t norm_backward_scratch_bytes(int64_t rows, int64_t cols, int64_t groups) {
  const int64_t pieces = rows * groups;
  return stats_bytes(pieces) +
         RowChunks(pieces).count * 2 * (cols / groups) * static_cast<int64_t>(sizeof(float));
}

}  // namespace onefold::cuda
