// Soft caps of logits: numbers beyond a limit come near it, and none reaches it.
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/soft_cap.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

void CapPiece(const Tensor& x, float cap, const Tensor& dst) {
  with_type(dst.dtype, "soft_cap", [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const DF d;
    const VF times = hn::Set(d, cap), inverse = hn::Set(d, 1.0f / cap);
    const T* from = x.as<T>();
    T* to = dst.as<T>();
    Sweep(static_cast<size_t>(dst.cols), [&](size_t i, auto io) HWY_ATTR {
      const VF share = hn::Mul(io.Load(d, from + i), inverse);
      io.Store(hn::Mul(times, Tanh(d, share)), d, to + i);
    });
  });
}

void CapGradientPiece(const Tensor& y, float cap, const Tensor& dy, const Tensor& dx) {
  with_type(dx.dtype, "soft_cap", [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const DF d;
    const VF inverse = hn::Set(d, 1.0f / cap);
    const T *result = y.as<T>(), *from = dy.as<T>();
    T* to = dx.as<T>();
    Sweep(static_cast<size_t>(dx.cols), [&](size_t i, auto io) HWY_ATTR {
      const VF share = hn::Mul(io.Load(d, result + i), inverse), gradient = io.Load(d, from + i);
      io.Store(hn::NegMulAdd(hn::Mul(share, share), gradient, gradient), d, to + i);
    });
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onefold::cpu {
namespace {
HWY_EXPORT(CapPiece);
HWY_EXPORT(CapGradientPiece);
}  // namespace

void soft_cap(ThreadPool& pool, Tensor x, float cap, Tensor dst) {
  require(cap > 0 && x.rows == dst.rows && x.cols == dst.cols && x.dtype == dst.dtype,
          "soft_cap: {}x{} to {}x{}, up to {}", x.rows, x.cols, dst.rows, dst.cols, cap);
  const auto cap_piece = HWY_DYNAMIC_DISPATCH(CapPiece);
  for_each_piece(pool, dst.rows, dst.cols, [&](int64_t row, int64_t begin, int64_t end) {
    cap_piece(piece_of(x, row, begin, end), cap, piece_of(dst, row, begin, end));
  });
}

void soft_cap_backward(ThreadPool& pool, Tensor y, float cap, Tensor dy, Tensor dx) {
  require(cap > 0 && y.rows == dx.rows && y.cols == dx.cols && dy.rows == dx.rows &&
              dy.cols == dx.cols && y.dtype == dx.dtype && dy.dtype == dx.dtype,
          "soft_cap: {}x{} and {}x{} to {}x{}, up to {}", y.rows, y.cols, dy.rows, dy.cols, dx.rows,
          dx.cols, cap);
  const auto gradient_piece = HWY_DYNAMIC_DISPATCH(CapGradientPiece);
  for_each_piece(pool, dx.rows, dx.cols, [&](int64_t row, int64_t begin, int64_t end) {
    gradient_piece(piece_of(y, row, begin, end), cap, piece_of(dy, row, begin, end),
                   piece_of(dx, row, begin, end));
  });
}

}  // namespace onefold::cpu
#endif
