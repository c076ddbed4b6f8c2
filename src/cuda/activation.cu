// Activations, plain and gated, forward and backward. Every element is read before it is written,
// by the thread that writes it: dst may be x's own memory and dx may be x or dy wherever their
// columns are the same.
#include "cuda/launch.cuh"
#include "cuda/pack.cuh"
#include "cuda/partials.cuh"

namespace onefold::cuda {
namespace {

// f(x) and f'(x), computed together: y rewritten by backward has forward's bits.
struct ValueAndSlope {
  float value, slope;
};

// For results of 16 bits, the card's own exponential and reciprocal do: they are within 2^-20.
template <bool kFast>
__device__ float sigmoid(float x) {
  return kFast ? fast_reciprocal(1.0f + fast_exp(-x)) : 1.0f / (1.0f + expf(-x));
}

template <bool kFast>
struct Relu {
  __device__ static ValueAndSlope at(float x) {
    // Not fmaxf(x, 0): it would turn NaN into 0.
    return {x <= 0 ? 0.0f : x, x > 0 ? 1.0f : 0.0f};
  }
};

template <bool kFast>
struct Gelu {  // x Φ(x)
  __device__ static ValueAndSlope at(float x) {
    const float square = x * x;
    const float rest = fmaf(x, x, -square);  // what rounding took from the square
    const float e = kFast ? fast_exp(-0.5f * square) : expf(-0.5f * square);
    const float pdf = 0.3989422804f * (isinf(square) ? e : fmaf(-0.5f * rest, e, e));
    const float cdf = normcdff(x);
    return {x * cdf, fmaf(x, pdf, cdf)};
  }
};

template <bool kFast>
struct GeluTanh {  // 0.5 x (1 + tanh(u)) = x σ(2u), 2u = √(8/π) (x + 0.044715 x³)
  __device__ static ValueAndSlope at(float x) {
    // σ(2u) is 0 or 1 long before |x| = 30; the bound keeps the slope from becoming 0 * infinity.
    const float square = fminf(900.0f, x * x);
    constexpr float a = 1.5957691216057308f, b = a * 0.044715f;
    const float s = sigmoid<kFast>(x * fmaf(b, square, a));
    const float du = fmaf(3.0f * b, square, a);
    const float ds = s * (1.0f - s) * du;
    return {x * s, fmaf(x, ds, s)};
  }
};

template <bool kFast>
struct Silu {  // x σ(x)
  __device__ static ValueAndSlope at(float x) {
    const float s = sigmoid<kFast>(x);
    return {x * s, fmaf(x, s * (1.0f - s), s)};
  }
};

template <bool kFast>
struct Logistic {  // σ(x)
  __device__ static ValueAndSlope at(float x) {
    const float s = sigmoid<kFast>(x);
    return {s, s * (1.0f - s)};
  }
};

template <bool kFast>
struct Identity {
  __device__ static ValueAndSlope at(float x) { return {x, 1.0f}; }
};

// The gate, and what it multiplies: x[.., col] and x[.., cols + col]. The second half of a row may
// be aligned otherwise than the first.
template <class T>
struct Inputs {
  Pack<T> gate, up;
  __device__ void load(const T* row, bool gated, int64_t col, int64_t cols, bool is_aligned,
                       bool up_aligned) {
    gate = load_pack<Pack<T>>(row, col, cols, is_aligned);
    if (gated) up = load_pack<Pack<T>>(row + cols, col, cols, up_aligned);
  }
};

template <class T, class F>
__global__ void forward_kernel(bool gated, View<T> x, View<T> dst, Share share, bool up_aligned) {
  constexpr int kElems = kWide<T>;
  Inputs<T> inputs[kEach];
  share.each([&](int i, int64_t row, int64_t col) {
    inputs[i].load(x.row(row), gated, col, dst.cols, share.aligned, up_aligned);
  });
  share.each([&](int i, int64_t row, int64_t col) {
    float values[kElems], up[kElems];
    inputs[i].gate.to(values);
    if (gated) inputs[i].up.to(up);
#pragma unroll
    for (int k = 0; k < kElems; ++k) {
      const float value = F::at(values[k]).value;
      values[k] = gated ? value * up[k] : value;
    }
    store_pack<T>(values, dst.row(row), col, dst.cols, share.aligned);
  });
}

template <class T, class F>
__global__ void backward_kernel(bool gated, View<T> x, View<T> dy, View<T> dx, View<T> y,
                                Share share, bool up_aligned) {
  constexpr int kElems = kWide<T>;
  Inputs<T> inputs[kEach];
  Pack<T> douts[kEach];
  share.each([&](int i, int64_t row, int64_t col) {
    inputs[i].load(x.row(row), gated, col, dy.cols, share.aligned, up_aligned);
    douts[i] = load_pack<Pack<T>>(dy.row(row), col, dy.cols, share.aligned);
  });
  share.each([&](int i, int64_t row, int64_t col) {
    float values[kElems], up[kElems], gradients[kElems], up_gradients[kElems];
    inputs[i].gate.to(values);
    if (gated) inputs[i].up.to(up);
    douts[i].to(gradients);
#pragma unroll
    for (int k = 0; k < kElems; ++k) {
      const ValueAndSlope f = F::at(values[k]);
      const float d = gradients[k];
      if (gated) {
        gradients[k] = d * up[k] * f.slope;
        up_gradients[k] = d * f.value;
        values[k] = f.value * up[k];
      } else {
        gradients[k] = d * f.slope;
        values[k] = f.value;
      }
    }
    T* din = dx.row(row);
    store_pack<T>(gradients, din, col, dy.cols, share.aligned);
    if (gated) store_pack<T>(up_gradients, din + dy.cols, col, dy.cols, up_aligned);
    if (y.data) store_pack<T>(values, y.row(row), col, dy.cols, share.aligned);
  });
}

// Plain, of 16-bit types, with partial sums of dx over a chunk of rows: half a warp has 128 columns
// of a row, a pack to each lane. The halves of a block take the rows of its chunk in turn, and
// their sums are added in order.
template <class T, class F>
__global__ void __launch_bounds__(kThreads, 3)
    backward_sums_kernel(View<T> x, View<T> dy, View<T> dx, View<T> y, int64_t chunk_size,
                         float* partials, bool is_aligned) {
  constexpr int kElems = kWide<T>, kLanes = kWarp / 2, kHalves = kThreads / kLanes,
                kCols = kLanes * kElems;
  constexpr int kBatch = 2;  // rows that a thread has under way; four are not faster
  __shared__ float shared[kHalves][kCols + kElems];
  const int lane = threadIdx.x % kLanes, half = threadIdx.x / kLanes;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kCols + lane * kElems;
  const int64_t begin = blockIdx.y * chunk_size;
  const int64_t end = begin + chunk_size < x.rows ? begin + chunk_size : x.rows;
  float sums[kElems] = {};
  for (int64_t first = begin + half; first < end && col < x.cols; first += kBatch * kHalves) {
    Pack<T> inputs[kBatch], douts[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int64_t row = first + i * kHalves;
      if (row >= end) continue;
      inputs[i] = load_pack<Pack<T>>(x.row(row), col, x.cols, is_aligned);
      douts[i] = load_pack<Pack<T>>(dy.row(row), col, x.cols, is_aligned);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int64_t row = first + i * kHalves;
      if (row >= end) continue;
      float values[kElems], gradients[kElems];
      inputs[i].to(values);
      douts[i].to(gradients);
#pragma unroll
      for (int k = 0; k < kElems; ++k) {
        const ValueAndSlope f = F::at(values[k]);
        gradients[k] = gradients[k] * f.slope;
        values[k] = f.value;
        sums[k] += gradients[k];
      }
      store_pack<T>(gradients, dx.row(row), col, x.cols, is_aligned);
      if (y.data) store_pack<T>(values, y.row(row), col, x.cols, is_aligned);
    }
  }
#pragma unroll
  for (int k = 0; k < kElems; ++k) shared[half][lane * kElems + k] = sums[k];
  __syncthreads();
  const auto mine = static_cast<int>(threadIdx.x);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kCols + mine;
  if (mine >= kCols || at >= x.cols) return;
  float sum = shared[0][mine];
#pragma unroll
  for (int h = 1; h < kHalves; ++h) sum += shared[h][mine];
  partials[blockIdx.y * x.cols + at] = sum;
}

template <bool kFast, class Call>
void with_curve(Curve curve, const Call& call) {
  switch (curve) {
    case Curve::relu:
      return call(Relu<kFast>{});
    case Curve::gelu:
      return call(Gelu<kFast>{});
    case Curve::gelu_tanh:
      return call(GeluTanh<kFast>{});
    case Curve::silu:
      return call(Silu<kFast>{});
    case Curve::sigmoid:
      return call(Logistic<kFast>{});
    case Curve::identity:
      return call(Identity<kFast>{});
  }
}

}  // namespace

void activation_forward(Curve curve, bool gated, Matrix x, Matrix dst, cudaStream_t stream) {
  with_type(x.type, [&](auto element) {
    using T = decltype(element);
    const Share share(dst.rows, dst.cols, kWide<T>, all_aligned(x, dst));
    with_curve<sizeof(T) == 2>(curve, [&](auto f) {
      launch(forward_kernel<T, decltype(f)>, share.grid(), kThreads, 0, stream, gated, view<T>(x),
             view<T>(dst), share, share.aligned && dst.cols % kWide<T> == 0);
    });
  });
}

void activation_backward(Curve curve, bool gated, Matrix x, Matrix dy, Matrix dx, Matrix y,
                         cudaStream_t stream) {
  with_type(x.type, [&](auto element) {
    using T = decltype(element);
    const Share share(dy.rows, dy.cols, kWide<T>, all_aligned(x, dy, dx, y));
    with_curve<sizeof(T) == 2>(curve, [&](auto f) {
      launch(backward_kernel<T, decltype(f)>, share.grid(), kThreads, 0, stream, gated, view<T>(x),
             view<T>(dy), view<T>(dx), view<T>(y), share, share.aligned && dy.cols % kWide<T> == 0);
    });
  });
}

void activation_backward(Curve curve, bool gated, Matrix x, Matrix dy, Matrix dx, Matrix y,
                         const BiasSums& dbias, cudaStream_t stream) {
  if (gated || x.type == Type::f32) {
    activation_backward(curve, gated, x, dy, dx, y, stream);
    return column_sum(dx, dbias.dst, dbias.accumulate, dbias.scratch, stream);
  }
  const RowChunks chunks(x.rows);
  with_half(x.type, [&](auto element) {
    using T = decltype(element);
    with_curve<true>(curve, [&](auto f) {
      launch(backward_sums_kernel<T, decltype(f)>,
             grid_of(ceil_div(x.cols, kWarp / 2 * kWide<T>), chunks.count), kThreads, 0, stream,
             view<T>(x), view<T>(dy), view<T>(dx), view<T>(y), chunks.size, dbias.scratch,
             all_aligned(x, dy, dx, y));
    });
  });
  add_partials(dbias.scratch, chunks.count, x.cols, dbias.accumulate, {{dbias.dst}}, x.cols,
               stream);
}

}  // namespace onefold::cuda
