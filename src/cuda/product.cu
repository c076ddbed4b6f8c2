// Matrix products of 16-bit types that the library cannot round once: with a bias it has no
// algorithm for (rows that are not aligned), or with a residual beside what is accumulated. Plain
// tiles, no tensor cores: no model of usual sizes comes here.
#include "cuda/launch.cuh"
#include "cuda/pack.cuh"
#include "cuda/product.h"

namespace onefold::cuda {
namespace {

constexpr int kSide = 16;  // of a block's tile

// Element (row, col) of op(x).
template <class T>
__device__ float at(const View<T>& x, bool transposed, int64_t row, int64_t col) {
  return widen(transposed ? x.row(col)[row] : x.row(row)[col]);
}

// A thread has an element of dst, and adds up its terms in order.
template <class T, class D>
__global__ void __launch_bounds__(kSide* kSide)
    product_kernel(View<T> a, View<T> b, View<D> dst, bool a_transposed, bool b_transposed,
                   int64_t terms, bool accumulate, const D* bias, View<D> residual) {
  __shared__ float left[kSide][kSide + 1], right[kSide][kSide + 1];
  const int x = static_cast<int>(threadIdx.x) % kSide, y = static_cast<int>(threadIdx.x) / kSide;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kSide + y;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kSide + x;
  float sum = 0;
  for (int64_t first = 0; first < terms; first += kSide) {
    left[y][x] = row < dst.rows && first + x < terms ? at(a, a_transposed, row, first + x) : 0.0f;
    right[y][x] = first + y < terms && col < dst.cols ? at(b, b_transposed, first + y, col) : 0.0f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kSide; ++i) sum = fmaf(left[y][i], right[i][x], sum);
    __syncthreads();
  }
  if (row >= dst.rows || col >= dst.cols) return;
  D& to = dst.row(row)[col];
  if (accumulate) sum += widen(to);
  if (bias) sum += widen(bias[col]);
  if (residual.data) sum += widen(residual.row(row)[col]);
  to = narrow<D>(sum);
}

}  // namespace

void product(const ProductArgs& args, cudaStream_t stream) {
  const int64_t terms = args.a_transposed ? args.a.rows : args.a.cols;
  with_types(args.a.type, args.dst.type, [&](auto element, auto result) {
    using T = decltype(element);
    using D = decltype(result);
    launch(product_kernel<T, D>,
           grid_of(ceil_div(args.dst.cols, kSide), ceil_div(args.dst.rows, kSide)), kSide * kSide,
           0, stream, view<T>(args.a), view<T>(args.b), view<D>(args.dst), args.a_transposed,
           args.b_transposed, terms, args.accumulate, static_cast<const D*>(args.bias.data),
           view<D>(args.residual));
  });
}

}  // namespace onefold::cuda
