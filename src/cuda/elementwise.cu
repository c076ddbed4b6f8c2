// Fills, sums of two tensors, multiples, dropout and rotary positions.
#include "cuda/launch.cuh"
#include "cuda/mask.cuh"
#include "cuda/pack.cuh"
#include "cuda/positions.cuh"

namespace onefold::cuda {
namespace {

template <class T>
__global__ void fill_kernel(View<T> dst, float value, Share share) {
  float values[kWide<T>];
  for (float& each : values) each = value;
  share.each([&](int, int64_t row, int64_t col) {
    store_pack<T>(values, dst.row(row), col, dst.cols, share.aligned);
  });
}

template <class T>
__global__ void add_kernel(View<T> a, View<T> b, View<T> dst, Share share) {
  Pack<T> x[kEach], y[kEach];
  share.each([&](int i, int64_t row, int64_t col) {
    x[i] = load_pack<Pack<T>>(a.row(row), col, dst.cols, share.aligned);
    y[i] = load_pack<Pack<T>>(b.row(row), col, dst.cols, share.aligned);
  });
  share.each([&](int i, int64_t row, int64_t col) {
    float left[kWide<T>], right[kWide<T>];
    x[i].to(left);
    y[i].to(right);
#pragma unroll
    for (int k = 0; k < kWide<T>; ++k) left[k] += right[k];
    store_pack<T>(left, dst.row(row), col, dst.cols, share.aligned);
  });
}

template <class T>
__global__ void scale_kernel(View<T> x, float factor, View<T> dst, Share share) {
  Pack<T> packs[kEach];
  share.each([&](int i, int64_t row, int64_t col) {
    packs[i] = load_pack<Pack<T>>(x.row(row), col, dst.cols, share.aligned);
  });
  share.each([&](int i, int64_t row, int64_t col) {
    float values[kWide<T>];
    packs[i].to(values);
#pragma unroll
    for (int k = 0; k < kWide<T>; ++k) values[k] *= factor;
    store_pack<T>(values, dst.row(row), col, dst.cols, share.aligned);
  });
}

// A thread has the four elements that share a Philox counter, wherever rows end among them. One
// block of threads works on one sample. `whole`: four elements lie in one row, and can be loaded
// at once.
template <class T>
__global__ void dropout_kernel(View<T> x, Mask mask, int64_t length, View<T> residual, View<T> dst,
                               uint32_t blocks_of_sample, bool whole) {
  const int64_t sample = blockIdx.x / blocks_of_sample;
  const int64_t group =
      static_cast<int64_t>(blockIdx.x % blocks_of_sample) * kThreads + threadIdx.x;
  int64_t row = sample * length + 4 * group / x.cols, col = 4 * group % x.cols;
  const int64_t end = (sample + 1) * length < x.rows ? (sample + 1) * length : x.rows;
  if (row >= end) return;
  const PhiloxWords words = mask_words(mask, mask.samples[sample], static_cast<uint64_t>(group));
  if (whole) {
    Four<T> four = *reinterpret_cast<const Four<T>*>(x.row(row) + col), added{};
    if (residual.data) added = *reinterpret_cast<const Four<T>*>(residual.row(row) + col);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float value = widen(four.values[i]), factor = multiplier(mask, words[i]);
      four.values[i] =
          narrow<T>(residual.data ? fmaf(value, factor, widen(added.values[i])) : value * factor);
    }
    *reinterpret_cast<Four<T>*>(dst.row(row) + col) = four;
    return;
  }
  T values[4];
  int64_t at[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    at[i] = -1;
    if (row < end) {
      at[i] = row * dst.stride + col;
      const float value = widen(x.row(row)[col]), factor = multiplier(mask, words[i]);
      values[i] = narrow<T>(residual.data ? fmaf(value, factor, widen(residual.row(row)[col]))
                                          : value * factor);
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

template <class T>
__global__ void cap_kernel(View<T> x, float cap, View<T> dst, Share share) {
  share.each([&](int, int64_t row, int64_t col) {
    dst.row(row)[col] = narrow<T>(cap * tanhf(widen(x.row(row)[col]) * (1.0f / cap)));
  });
}

template <class T>
__global__ void cap_gradient_kernel(View<T> y, float cap, View<T> dy, View<T> dx, Share share) {
  share.each([&](int, int64_t row, int64_t col) {
    const float part = widen(y.row(row)[col]) * (1.0f / cap), gradient = widen(dy.row(row)[col]);
    dx.row(row)[col] = narrow<T>(fmaf(-(part * part), gradient, gradient));
  });
}

// Turns (x[i], x[i + half]) of each head by the angle whose cosine is table[i] and whose sine is
// table[i + half]; what a head has beyond those stays. A thread has as many pairs as P has
// elements, of one row and head.
template <class T, class P>
__global__ void rope_kernel(View<T> x, int64_t head_dim, int64_t half, View<float> table,
                            Positions positions, float sign, Share share) {
  constexpr int kElems = P::kElems;
  P low[kEach], high[kEach];
  // Of the pair: in which head it is, and where in that. Divisions of 32 bits are several times as
  // fast.
  const auto head_of = [&](int64_t pair) {
    return static_cast<int64_t>(static_cast<uint32_t>(pair) / static_cast<uint32_t>(half));
  };
  share.each([&](int i, int64_t row, int64_t pair) {
    const int64_t at = pair - head_of(pair) * half;
    const T* head = x.row(row) + head_of(pair) * head_dim;
    low[i] = load_pack<P>(head, at, half, true);
    high[i] = load_pack<P>(head + half, at, half, true);
  });
  share.each([&](int i, int64_t row, int64_t pair) {
    const int64_t at = pair - head_of(pair) * half;
    const float* angles = table.row(position_of(positions, row)) + at;
    float a[kElems], b[kElems];
    low[i].to(a);
    high[i].to(b);
#pragma unroll
    for (int k = 0; k < kElems; ++k) {
      const float c = angles[k], s = sign * angles[half + k], x0 = a[k], x1 = b[k];
      a[k] = fmaf(-x1, s, x0 * c);
      b[k] = fmaf(x0, s, x1 * c);
    }
    T* head = x.row(row) + head_of(pair) * head_dim;
    store_pack<T>(a, head, at, half, true);
    store_pack<T>(b, head + half, at, half, true);
  });
}

}  // namespace

void fill(Matrix dst, float value, cudaStream_t stream) {
  with_type(dst.type, [&](auto element) {
    using T = decltype(element);
    const Share share(dst.rows, dst.cols, kWide<T>, aligned(dst));
    launch(fill_kernel<T>, share.grid(), kThreads, 0, stream, view<T>(dst), value, share);
  });
}

void add(Matrix a, Matrix b, Matrix dst, cudaStream_t stream) {
  with_type(dst.type, [&](auto element) {
    using T = decltype(element);
    const Share share(dst.rows, dst.cols, kWide<T>, all_aligned(a, b, dst));
    launch(add_kernel<T>, share.grid(), kThreads, 0, stream, view<T>(a), view<T>(b), view<T>(dst),
           share);
  });
}

void scale(Matrix x, float factor, Matrix dst, cudaStream_t stream) {
  with_type(dst.type, [&](auto element) {
    using T = decltype(element);
    const Share share(dst.rows, dst.cols, kWide<T>, all_aligned(x, dst));
    launch(scale_kernel<T>, share.grid(), kThreads, 0, stream, view<T>(x), factor, view<T>(dst),
           share);
  });
}

void soft_cap(Matrix x, float cap, Matrix dst, cudaStream_t stream) {
  with_type(dst.type, [&](auto element) {
    using T = decltype(element);
    const Share share(dst.rows, dst.cols, 1, true);
    launch(cap_kernel<T>, share.grid(), kThreads, 0, stream, view<T>(x), cap, view<T>(dst), share);
  });
}

void soft_cap_backward(Matrix y, float cap, Matrix dy, Matrix dx, cudaStream_t stream) {
  with_type(dx.type, [&](auto element) {
    using T = decltype(element);
    const Share share(dx.rows, dx.cols, 1, true);
    launch(cap_gradient_kernel<T>, share.grid(), kThreads, 0, stream, view<T>(y), cap, view<T>(dy),
           view<T>(dx), share);
  });
}

void add_bias(Vector bias, Matrix dst, cudaStream_t stream) {
  add(dst, {bias.data, dst.rows, dst.cols, 0, bias.type}, dst, stream);
}

void dropout(Matrix x, const Mask& mask, int64_t length, const Matrix* residual, Matrix dst,
             cudaStream_t stream) {
  const int64_t samples = ceil_div(x.rows, length);
  const int64_t blocks = ceil_div(ceil_div(length * x.cols, 4), kThreads);
  const Matrix added = residual ? *residual : Matrix{nullptr, 0, 0, 0, x.type};
  const bool whole = x.cols % 4 == 0 && all_aligned(x, added, dst);
  with_type(x.type, [&](auto element) {
    using T = decltype(element);
    launch(dropout_kernel<T>, grid_of(samples * blocks), kThreads, 0, stream, view<T>(x), mask,
           length, view<T>(added), view<T>(dst), static_cast<uint32_t>(blocks), whole);
  });
}

void rope(Matrix x, int64_t heads, Matrix table, const Positions& positions, bool inverse,
          cudaStream_t stream) {
  const int64_t half = table.cols / 2;
  with_type(x.type, [&](auto element) {
    using T = decltype(element);
    const auto start = [&](auto pack) {
      using P = decltype(pack);
      const Share share(x.rows, heads * half, P::kElems, true);
      launch(rope_kernel<T, P>, share.grid(), kThreads, 0, stream, view<T>(x), x.cols / heads, half,
             view<float>(table), positions, inverse ? -1.0f : 1.0f, share);
    };
    if (aligned(x) && half % kWide<T> == 0 && x.cols / heads % kWide<T> == 0)
      start(Pack<T>{});
    else
      start(Single<T>{});
  });
}

}  // namespace onefold::cuda
