// Adafactor's second moment of a matrix: sums of squares of rows and columns, the factors that
// follow them, and the direction by their product.
#include "cuda/stepping.cuh"

namespace onefold::cuda {
namespace {

template <class G>
__global__ void __launch_bounds__(kThreads)
    factored_kernel(ControlFlags control, FactoredArgs args, const G* grads) {
  constexpr float kLargest = 1e18f;  // kLargestGradient of kernels.h
  float scale;
  if (!may_step(control, args.factor, scale)) return;
  const auto mean = static_cast<float>(*args.sum / static_cast<double>(args.row_count));
  const float floor = mean < args.eps ? args.eps : mean;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= args.elems) return;
  const int64_t row = (args.first + i) / args.cols, col = (args.first + i) % args.cols;
  const float gradient = fminf(fmaxf(widen(grads[i]) * scale, -kLargest), kLargest);
  const float root = sqrtf(args.rows[row] / floor * args.columns[col]);
  args.dst[i] = gradient / fmaxf(root, args.eps);
}

// A block for each row that the part has elements of.
template <class T>
__global__ void __launch_bounds__(kThreads) row_squares_kernel(FactorSquaresArgs args, const T* x) {
  const int64_t row = args.first / args.cols + blockIdx.x;
  const int64_t from = row * args.cols, to = from + args.cols, last = args.first + args.elems;
  const int64_t begin = from < args.first ? args.first : from, end = to < last ? to : last;
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const auto value = static_cast<double>(widen(x[i - args.first]));
    sum = fma(value, value, sum);
  }
  sum = team_sum<kThreads>(sum);
  if (threadIdx.x == 0) args.rows[row] = sum;
}

// A warp's width of columns for each block, whose warps have every eighth row.
constexpr int kTurns = kThreads / kWarp;
template <class T>
__global__ void __launch_bounds__(kThreads)
    column_squares_kernel(FactorSquaresArgs args, const T* x) {
  __shared__ double sums[kTurns][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            turn = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  const int64_t last = args.first + args.elems, top = args.first / args.cols;
  double sum = 0;
  for (int64_t row = top + turn; row * args.cols < last; row += kTurns) {
    const int64_t i = row * args.cols + col;
    if (col >= args.cols || i < args.first || i >= last) continue;
    const auto value = static_cast<double>(widen(x[i - args.first]));
    sum = fma(value, value, sum);
  }
  sums[turn][lane] = sum;
  __syncthreads();
  if (turn != 0 || col >= args.cols) return;
  for (int t = 1; t < kTurns; ++t) sum += sums[t][lane];
  args.columns[col] = sum;
}

__global__ void blend_kernel(ControlFlags control, BlendArgs args) {
  float scale;
  if (!may_step(control, args.factor, scale)) return;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= args.elems) return;
  const auto factor = static_cast<double>(scale);
  const double times = args.times * factor * factor;
  const auto before = static_cast<double>(args.dst[i]);
  args.dst[i] = static_cast<float>(before + args.share * (times * args.x[i] - before));
}

}  // namespace

void factored(const ControlFlags& control, const FactoredArgs& args, cudaStream_t stream) {
  with_type(args.grads.type, [&](auto element) {
    using G = decltype(element);
    launch(factored_kernel<G>, grid_of(ceil_div(args.elems, kThreads)), kThreads, 0, stream,
           control, args, static_cast<const G*>(args.grads.data));
  });
}

void factor_squares(const FactorSquaresArgs& args, cudaStream_t stream) {
  if (args.elems == 0) return;
  const int64_t rows = (args.first + args.elems - 1) / args.cols - args.first / args.cols + 1;
  with_type(args.x.type, [&](auto element) {
    using T = decltype(element);
    const auto* x = static_cast<const T*>(args.x.data);
    launch(row_squares_kernel<T>, grid_of(rows), kThreads, 0, stream, args, x);
    launch(column_squares_kernel<T>, grid_of(ceil_div(args.cols, kWarp)), kThreads, 0, stream, args,
           x);
  });
}

void blend(const ControlFlags& control, const BlendArgs& args, cudaStream_t stream) {
  launch(blend_kernel, grid_of(ceil_div(args.elems, kThreads)), kThreads, 0, stream, control, args);
}

}  // namespace onefold::cuda
