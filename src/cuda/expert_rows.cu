// Rows of a mixture of experts: gathered in the order of experts, weighed, and combined again for
// each token, in the order of its choices. And the noise of a router's input.
#include <algorithm>

#include "cuda/experts.h"
#include "cuda/launch.cuh"
#include "cuda/mask.cuh"
#include "cuda/pack.cuh"

namespace onefold::cuda {
namespace {

// Rows as they lie in memory, in units of U.
struct RawRows {
  char* data;
  int64_t stride_bytes;
  explicit RawRows(const Matrix& m)
      : data(static_cast<char*>(m.data)), stride_bytes(m.stride * type_bytes(m.type)) {}
  template <class U>
  __device__ U* row(int64_t index) const {
    return reinterpret_cast<U*>(data + index * stride_bytes);
  }
};

template <class U>
__global__ void gather_kernel(RawRows x, const int32_t* sources, int32_t choices, RawRows dst,
                              Share share) {
  U units[kEach];
  share.each([&](int i, int64_t row, int64_t unit) {
    const int32_t source = sources[row];
    units[i] = source < 0 ? U{} : x.row<U>(source / choices)[unit];
  });
  share.each([&](int i, int64_t row, int64_t unit) { dst.row<U>(row)[unit] = units[i]; });
}

template <class T>
__global__ void combine_kernel(View<T> rows, const int32_t* places, const float* weights,
                               int64_t choices, View<T> base, View<T> dst, Share share) {
  constexpr int kElems = kWide<T>;
  share.each([&](int, int64_t token, int64_t col) {
    float sum[kElems] = {};
    if (base.data) load_pack<Pack<T>>(base.row(token), col, dst.cols, share.aligned).to(sum);
    for (int64_t j = 0; j < choices; ++j) {
      const int32_t place = places[token * choices + j];
      if (place < 0) continue;
      float row[kElems];
      load_pack<Pack<T>>(rows.row(place), col, dst.cols, share.aligned).to(row);
      const float weight = weights ? weights[token * choices + j] : 1.0f;
#pragma unroll
      for (int k = 0; k < kElems; ++k) sum[k] = fmaf(row[k], weight, sum[k]);
    }
    store_pack<T>(sum, dst.row(token), col, dst.cols, share.aligned);
  });
}

template <class T>
__device__ void scale_row(T* row, float weight, int64_t cols, bool is_aligned) {
  constexpr int kElems = kWide<T>;
  for (int64_t col = static_cast<int64_t>(threadIdx.x) * kElems; col < cols;
       col += kThreads * kElems) {
    float values[kElems];
    load_pack<Pack<T>>(row, col, cols, is_aligned).to(values);
#pragma unroll
    for (int k = 0; k < kElems; ++k) values[k] *= weight;
    store_pack<T>(values, row, col, cols, is_aligned);
  }
}

// A block to a row; and to the choice of the same number, of which nothing is known where it was
// dropped.
template <class T>
__global__ void __launch_bounds__(kThreads)
    weigh_kernel(RoutingArgs routing, View<T> dy, View<T> x, float* dweights, bool is_aligned) {
  constexpr int kElems = kWide<T>;
  const int64_t row = blockIdx.x;
  if (dweights && threadIdx.x == 0 && routing.places[row] < 0) dweights[row] = 0;
  const int32_t source = routing.sources[row];
  if (source < 0) return;
  const float weight = routing.weights[source];
  T* const own = x.row(row);
  if (dweights) {
    T* const gradient = dy.row(row);
    float product = 0;
    for (int64_t col = static_cast<int64_t>(threadIdx.x) * kElems; col < x.cols;
         col += kThreads * kElems) {
      float a[kElems], b[kElems];
      load_pack<Pack<T>>(gradient, col, x.cols, is_aligned).to(a);
      load_pack<Pack<T>>(own, col, x.cols, is_aligned).to(b);
#pragma unroll
      for (int k = 0; k < kElems; ++k) product = fmaf(a[k], b[k], product);
    }
    product = team_sum<kThreads>(product);
    if (threadIdx.x == 0) dweights[source] = product;
    scale_row(gradient, weight, x.cols, is_aligned);
  }
  scale_row(own, weight, x.cols, is_aligned);
}

// Blocks take rows in turn, for most often there are few.
template <class T>
__global__ void clear_kernel(View<T> dst, const int32_t* rows_used, bool is_aligned) {
  const float zeros[kWide<T>] = {};
  for (int64_t row = *rows_used + blockIdx.x; row < dst.rows; row += gridDim.x)
    for (int64_t col = static_cast<int64_t>(threadIdx.x) * kWide<T>; col < dst.cols;
         col += kThreads * kWide<T>)
      store_pack<T>(zeros, dst.row(row), col, dst.cols, is_aligned);
}

__device__ inline float jitter_factor(uint32_t word, float rate) {
  const float uniform = static_cast<float>(word >> 8) * 0x1p-24f;
  return 1.0f + rate * (2.0f * uniform - 1.0f);
}

// A thread has the four elements that share a Philox counter, wherever rows end among them.
template <class T>
__global__ void jitter_kernel(View<T> x, Mask noise, float rate, int64_t length, View<T> dst,
                              uint32_t blocks_of_sample) {
  const int64_t sample = blockIdx.x / blocks_of_sample;
  const int64_t group =
      static_cast<int64_t>(blockIdx.x % blocks_of_sample) * kThreads + threadIdx.x;
  int64_t row = sample * length + 4 * group / x.cols, col = 4 * group % x.cols;
  const int64_t end = (sample + 1) * length < x.rows ? (sample + 1) * length : x.rows;
  if (row >= end) return;
  const PhiloxWords words = mask_words(noise, noise.samples[sample], static_cast<uint64_t>(group));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (row >= end) return;
    dst.row(row)[col] = narrow<T>(widen(x.row(row)[col]) * jitter_factor(words[i], rate));
    if (++col == x.cols) {
      col = 0;
      ++row;
    }
  }
}

// Rows at places of their own: those that follow each other need not lie together in the sample, so
// a thread has one element, and four of them compute the same words.
template <class T>
__global__ void jitter_at_kernel(const int32_t* places, View<T> x, Mask noise, float rate,
                                 int64_t length, View<T> dst) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t row = at / x.cols, col = at % x.cols;
  if (row >= x.rows) return;
  const auto element = static_cast<uint64_t>(places[row]) * static_cast<uint64_t>(x.cols) +
                       static_cast<uint64_t>(col);
  const PhiloxWords words = mask_words(noise, noise.samples[row / length], element / 4);
  dst.row(row)[col] = narrow<T>(widen(x.row(row)[col]) * jitter_factor(words[element % 4], rate));
}

}  // namespace

void gather_rows(Matrix x, const RoutingArgs& routing, Matrix dst, cudaStream_t stream) {
  const int64_t bytes = dst.cols * type_bytes(dst.type);
  const auto start = [&](auto unit) {
    using U = decltype(unit);
    const Share share(dst.rows, bytes / static_cast<int64_t>(sizeof(U)), 1, true);
    launch(gather_kernel<U>, share.grid(), kThreads, 0, stream, RawRows(x), routing.sources,
           static_cast<int32_t>(routing.choices), RawRows(dst), share);
  };
  if (all_aligned(x, dst) && bytes % 16 == 0)
    start(uint4{});
  else if (dst.type == Type::f32)
    start(uint32_t{});
  else
    start(uint16_t{});
}

void combine_rows(Matrix rows, const RoutingArgs& routing, bool weighted, Matrix base, Matrix dst,
                  cudaStream_t stream) {
  with_type(dst.type, [&](auto element) {
    using T = decltype(element);
    const Share share(dst.rows, dst.cols, kWide<T>, all_aligned(rows, base, dst));
    launch(combine_kernel<T>, share.grid(), kThreads, 0, stream, view<T>(rows), routing.places,
           weighted ? routing.weights : nullptr, routing.choices, view<T>(base), view<T>(dst),
           share);
  });
}

void weigh_rows(const RoutingArgs& routing, Matrix dy, Matrix x, float* dweights,
                cudaStream_t stream) {
  with_type(x.type, [&](auto element) {
    using T = decltype(element);
    launch(weigh_kernel<T>, grid_of(x.rows), kThreads, 0, stream, routing, view<T>(dy), view<T>(x),
           dweights, all_aligned(dy, x));
  });
}

void clear_rows(Matrix dst, const int32_t* rows_used, cudaStream_t stream) {
  constexpr int64_t kBlocks = 264;
  with_type(dst.type, [&](auto element) {
    using T = decltype(element);
    launch(clear_kernel<T>, grid_of(std::min(dst.rows, kBlocks)), kThreads, 0, stream, view<T>(dst),
           rows_used, aligned(dst));
  });
}

void jitter(Matrix x, const Mask& noise, const int32_t* places, float rate, int64_t length,
            Matrix dst, cudaStream_t stream) {
  const int64_t blocks = ceil_div(ceil_div(length * x.cols, 4), kThreads);
  with_type(x.type, [&](auto element) {
    using T = decltype(element);
    if (places)
      return launch(jitter_at_kernel<T>, grid_of(ceil_div(x.rows * x.cols, kThreads)), kThreads, 0,
                    stream, places, view<T>(x), noise, rate, length, view<T>(dst));
    launch(jitter_kernel<T>, grid_of(ceil_div(x.rows, length) * blocks), kThreads, 0, stream,
           view<T>(x), noise, rate, length, view<T>(dst), static_cast<uint32_t>(blocks));
  });
}

}  // namespace onefold::cuda
