// Activations, plain and gated, forward and backward. Every element is read before it is written,
// by the thread that writes it: dst may be x's own memory and dx may be x or dy wherever their
// columns are the same.
#include "cuda/launch.cuh"
#include "cuda/ops.h"

namespace onefold::cuda {
namespace {

// f(x) and f'(x), computed together: y rewritten by backward has forward's bits.
struct ValueAndSlope {
  float value, slope;
};

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

struct Relu {
  __device__ static ValueAndSlope at(float x) {
    // Not fmaxf(x, 0): it would turn NaN into 0.
    return {x <= 0 ? 0.0f : x, x > 0 ? 1.0f : 0.0f};
  }
};

struct Gelu {  // x Φ(x)
  __device__ static ValueAndSlope at(float x) {
    const float square = x * x;
    const float rest = fmaf(x, x, -square);  // what rounding took from the square
    const float e = expf(-0.5f * square);
    const float pdf = 0.3989422804f * (isinf(square) ? e : fmaf(-0.5f * rest, e, e));
    const float cdf = normcdff(x);
    return {x * cdf, fmaf(x, pdf, cdf)};
  }
};

struct GeluTanh {  // 0.5 x (1 + tanh(u)) = x σ(2u), 2u = √(8/π) (x + 0.044715 x³)
  __device__ static ValueAndSlope at(float x) {
    // σ(2u) is 0 or 1 long before |x| = 30; the bound keeps the slope from becoming 0 * infinity.
    const float square = fminf(900.0f, x * x);
    constexpr float a = 1.5957691216057308f, b = a * 0.044715f;
    const float s = sigmoid(x * fmaf(b, square, a));
    const float du = fmaf(3.0f * b, square, a);
    const float ds = s * (1.0f - s) * du;
    return {x * s, fmaf(x, ds, s)};
  }
};

struct Silu {  // x σ(x)
  __device__ static ValueAndSlope at(float x) {
    const float s = sigmoid(x);
    return {x * s, fmaf(x, s * (1.0f - s), s)};
  }
};

template <class F>
__global__ void forward_kernel(bool gated, Matrix x, Matrix dst) {
  const Piece piece(dst.cols);
  const float* src = x.row(piece.row);
  const float* up = src + dst.cols;
  float* out = dst.row(piece.row);
  float values[kEach];
  piece.each([&](int i, int64_t col) {
    const float value = F::at(src[col]).value;
    values[i] = gated ? value * up[col] : value;
  });
  piece.each([&](int i, int64_t col) { out[col] = values[i]; });
}

template <class F>
__global__ void backward_kernel(bool gated, Matrix x, Matrix dy, Matrix dx, Matrix y) {
  const Piece piece(dy.cols);
  const float* src = x.row(piece.row);
  const float* dout = dy.row(piece.row);
  float* din = dx.row(piece.row);
  float gradients[kEach], up_gradients[kEach], values[kEach];
  piece.each([&](int i, int64_t col) {
    const ValueAndSlope f = F::at(src[col]);
    const float d = dout[col];
    if (gated) {
      const float up = src[dy.cols + col];
      gradients[i] = d * up * f.slope;
      up_gradients[i] = d * f.value;
      values[i] = f.value * up;
    } else {
      gradients[i] = d * f.slope;
      values[i] = f.value;
    }
  });
  piece.each([&](int i, int64_t col) {
    din[col] = gradients[i];
    if (gated) din[dy.cols + col] = up_gradients[i];
    if (y.data) y.row(piece.row)[col] = values[i];
  });
}

template <class Call>
void with_curve(Curve curve, const Call& call) {
  switch (curve) {
    case Curve::relu:
      return call(Relu{});
    case Curve::gelu:
      return call(Gelu{});
    case Curve::gelu_tanh:
      return call(GeluTanh{});
    case Curve::silu:
      return call(Silu{});
  }
}

}  // namespace

void activation_forward(Curve curve, bool gated, Matrix x, Matrix dst, cudaStream_t stream) {
  with_curve(curve, [&](auto f) {
    launch(forward_kernel<decltype(f)>, pieces_grid(dst.rows, dst.cols), kThreads, 0, stream, gated,
           x, dst);
  });
}

void activation_backward(Curve curve, bool gated, Matrix x, Matrix dy, Matrix dx, Matrix y,
                         cudaStream_t stream) {
  with_curve(curve, [&](auto f) {
    launch(backward_kernel<decltype(f)>, pieces_grid(dy.rows, dy.cols), kThreads, 0, stream, gated,
           x, dy, dx, y);
  });
}

}  // namespace onefold::cuda
