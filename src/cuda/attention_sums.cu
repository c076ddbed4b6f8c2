#include "cuda/attention_sums.h"

#include "cuda/launch.cuh"
#include "cuda/pack.cuh"

namespace onefold::cuda {
namespace {

// A thread has four columns of a row.
template <class T>
__global__ void add_part_kernel(View<T> part, bool first, float4* sums, View<T> dst) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t fours = part.cols / 4, row = at / fours, col = at % fours * 4;
  if (row >= part.rows) return;
  const Four<T> more = *reinterpret_cast<const Four<T>*>(part.row(row) + col);
  float4 sum = first ? float4{} : sums[at];
  sum.x += widen(more.values[0]);
  sum.y += widen(more.values[1]);
  sum.z += widen(more.values[2]);
  sum.w += widen(more.values[3]);
  if (!dst.data) {
    sums[at] = sum;
    return;
  }
  *reinterpret_cast<Four<T>*>(dst.row(row) + col) =
      Four<T>{narrow<T>(sum.x), narrow<T>(sum.y), narrow<T>(sum.z), narrow<T>(sum.w)};
}

}  // namespace

void add_attention_part(Matrix part, bool first, float* sums, const Matrix* dst,
                        cudaStream_t stream) {
  const Matrix to = dst ? *dst : Matrix{nullptr, 0, 0, 0, part.type};
  with_type(part.type, [&](auto element) {
    using T = decltype(element);
    launch(add_part_kernel<T>, grid_of(ceil_div(part.rows * part.cols / 4, kThreads)), kThreads, 0,
           stream, view<T>(part), first, reinterpret_cast<float4*>(sums), view<T>(to));
  });
}

}  // namespace onefold::cuda
