// Activations, plain and gated, forward and backward. Elementwise: each vector is loaded before it
// is stored, so dst may be x's own memory and dx may be x or dy wherever their columns are the
// same.
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

// A function f of x with f(x) and f'(x) computed together; where only the value is used, the
// compiler drops the rest. One function for both directions: y rewritten by backward has forward's
// bits.
struct ValueAndSlope {
  VF value;
  VF slope;
};

struct Relu {
  HWY_INLINE static ValueAndSlope At(DF d, VF x) {
    const auto positive = hn::Gt(x, hn::Zero(d));
    // Not Max(x, 0): it would turn NaN into 0.
    return {hn::IfThenZeroElse(hn::Le(x, hn::Zero(d)), x),
            hn::IfThenElseZero(positive, hn::Set(d, 1.0f))};
  }
};

struct Gelu {  // x Φ(x)
  HWY_INLINE static ValueAndSlope At(DF d, VF x) {
    VF pdf;
    const VF cdf = NormalCdf(d, x, pdf);
    return {hn::Mul(x, cdf), hn::MulAdd(x, pdf, cdf)};
  }
};

struct GeluTanh {  // 0.5 x (1 + tanh(u)) = x σ(2u), 2u = √(8/π) (x + 0.044715 x³)
  HWY_INLINE static ValueAndSlope At(DF d, VF x) {
    const VF one = hn::Set(d, 1.0f);
    // σ(2u) is 0 or 1 long before |x| = 30; the bound keeps the slope from becoming 0 * infinity.
    const VF square = hn::Min(hn::Set(d, 900.0f), hn::Mul(x, x));
    const VF a = hn::Set(d, 1.5957691216057308f);
    const VF b = hn::Set(d, 1.5957691216057308f * 0.044715f);
    const VF s = Sigmoid(d, hn::Mul(x, hn::MulAdd(b, square, a)));
    const VF du = hn::MulAdd(hn::Mul(hn::Set(d, 3.0f), b), square, a);
    const VF ds = hn::Mul(hn::Mul(s, hn::Sub(one, s)), du);
    return {hn::Mul(x, s), hn::MulAdd(x, ds, s)};
  }
};

struct Silu {  // x σ(x)
  HWY_INLINE static ValueAndSlope At(DF d, VF x) {
    const VF s = Sigmoid(d, x);
    const VF ds = hn::Mul(s, hn::Sub(hn::Set(d, 1.0f), s));
    return {hn::Mul(x, s), hn::MulAdd(x, ds, s)};
  }
};

struct Logistic {  // σ(x)
  HWY_INLINE static ValueAndSlope At(DF d, VF x) {
    const VF s = Sigmoid(d, x);
    return {s, hn::Mul(s, hn::Sub(hn::Set(d, 1.0f), s))};
  }
};

struct Identity {
  HWY_INLINE static ValueAndSlope At(DF d, VF x) { return {x, hn::Set(d, 1.0f)}; }
};

template <class F, class T>
HWY_INLINE void ForwardWith(const T* x, const T* up, size_t n, T* dst) {
  const DF d;
  Sweep(n, [&](size_t i, auto io) HWY_ATTR {
    const VF value = F::At(d, io.Load(d, x + i)).value;
    io.Store(up ? hn::Mul(value, io.Load(d, up + i)) : value, d, dst + i);
  });
}

// up, dup: null unless gated. y: null if not wanted.
template <class T>
struct BackwardRow {
  const T* x;
  const T* up;
  const T* dy;
  T* dx;
  T* dup;
  T* y;
  size_t n;
};

template <class F, class T>
HWY_INLINE void PlainBackwardWith(const BackwardRow<T>& row) {
  const DF d;
  Sweep(row.n, [&](size_t i, auto io) HWY_ATTR {
    const ValueAndSlope f = F::At(d, io.Load(d, row.x + i));
    const VF dy = io.Load(d, row.dy + i);
    io.Store(hn::Mul(dy, f.slope), d, row.dx + i);
    if (row.y) io.Store(f.value, d, row.y + i);
  });
}

template <class F, class T>
HWY_INLINE void GatedBackwardWith(const BackwardRow<T>& row) {
  const DF d;
  Sweep(row.n, [&](size_t i, auto io) HWY_ATTR {
    const ValueAndSlope f = F::At(d, io.Load(d, row.x + i));
    const VF dy = io.Load(d, row.dy + i);
    const VF up = io.Load(d, row.up + i);
    io.Store(hn::Mul(hn::Mul(dy, up), f.slope), d, row.dx + i);
    io.Store(hn::Mul(dy, f.value), d, row.dup + i);
    if (row.y) io.Store(hn::Mul(f.value, up), d, row.y + i);
  });
}

template <class F, class T>
HWY_INLINE void BackwardWith(const BackwardRow<T>& row) {
  row.up ? GatedBackwardWith<F>(row) : PlainBackwardWith<F>(row);
}

template <class T>
HWY_INLINE void ForwardOf(Activation act, const T* x, const T* up, size_t n, T* dst) {
  switch (act) {
    case Activation::relu:
      return ForwardWith<Relu>(x, up, n, dst);
    case Activation::gelu:
      return ForwardWith<Gelu>(x, up, n, dst);
    case Activation::gelu_tanh:
      return ForwardWith<GeluTanh>(x, up, n, dst);
    case Activation::silu:
      return ForwardWith<Silu>(x, up, n, dst);
    case Activation::sigmoid:
      return ForwardWith<Logistic>(x, up, n, dst);
    case Activation::identity:
      return ForwardWith<Identity>(x, up, n, dst);
  }
}

template <class T>
HWY_INLINE void BackwardOf(Activation act, const BackwardRow<T>& row) {
  switch (act) {
    case Activation::relu:
      return BackwardWith<Relu>(row);
    case Activation::gelu:
      return BackwardWith<Gelu>(row);
    case Activation::gelu_tanh:
      return BackwardWith<GeluTanh>(row);
    case Activation::silu:
      return BackwardWith<Silu>(row);
    case Activation::sigmoid:
      return BackwardWith<Logistic>(row);
    case Activation::identity:
      return BackwardWith<Identity>(row);
  }
}

// up is empty unless gated.
void Forward(Activation act, const Tensor& x, const Tensor& up, const Tensor& dst) {
  with_type(dst.dtype, "activation", [&](auto type) HWY_ATTR {
    using T = decltype(type);
    ForwardOf<T>(act, x.as<T>(), or_null<T>(up), static_cast<size_t>(dst.cols), dst.as<T>());
  });
}

// up and dup are empty unless gated; y is, if it is not wanted.
void Backward(Activation act, const Tensor& x, const Tensor& up, const Tensor& dy, const Tensor& dx,
              const Tensor& dup, const Tensor& y) {
  with_type(dy.dtype, "activation", [&](auto type) HWY_ATTR {
    using T = decltype(type);
    BackwardOf<T>(act, {x.as<T>(), or_null<T>(up), dy.as<T>(), dx.as<T>(), or_null<T>(dup),
                        or_null<T>(y), static_cast<size_t>(dy.cols)});
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onefold::cpu {
namespace {

HWY_EXPORT(Forward);
HWY_EXPORT(Backward);

void check(bool gated, const Tensor& x, const Tensor& other, const char* name) {
  require(other.rows == x.rows && other.cols * (gated ? 2 : 1) == x.cols,
          "activation: {} is {}x{} for x {}x{}{}", name, other.rows, other.cols, x.rows, x.cols,
          gated ? ", gated" : "");
}

}  // namespace

void activation_forward(ThreadPool& pool, Activation act, bool gated, Tensor x, Tensor dst) {
  check(gated, x, dst, "dst");
  const auto forward = HWY_DYNAMIC_DISPATCH(Forward);
  for_each_piece(pool, dst.rows, dst.cols, [&](int64_t row, int64_t begin, int64_t end) {
    forward(act, piece_of(x, row, begin, end),
            gated ? piece_of(x, row, dst.cols + begin, dst.cols + end) : Tensor{},
            piece_of(dst, row, begin, end));
  });
}

void activation_backward(ThreadPool& pool, Activation act, bool gated, Tensor x, Tensor dy,
                         Tensor dx, Tensor y) {
  check(gated, x, dy, "dy");
  check(false, x, dx, "dx");
  if (!y.empty()) check(gated, x, y, "y");
  const auto backward = HWY_DYNAMIC_DISPATCH(Backward);
  for_each_piece(pool, dy.rows, dy.cols, [&](int64_t row, int64_t begin, int64_t end) {
    const auto up_of = [&](const Tensor& both) {
      return gated ? piece_of(both, row, dy.cols + begin, dy.cols + end) : Tensor{};
    };
    backward(act, piece_of(x, row, begin, end), up_of(x), piece_of(dy, row, begin, end),
             piece_of(dx, row, begin, end), up_of(dx), piece_of(y, row, begin, end));
  });
}

}  // namespace onefold::cpu
#endif
