// Dropout with an optional residual; the mask comes from dropout-inl.h.
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/dropout.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/dropout-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

// dst = residual + x * multiplier for elements [first, first + n) of the sample; residual may be
// null.
template <class T>
HWY_INLINE void DropRowOf(const KeepMask& mask, uint64_t first, const T* x, const T* residual,
                          size_t n, T* dst) {
  const DF d;
  SweepWithFactors(
      n,
      [&](size_t begin, size_t count, float* multipliers)
          HWY_ATTR { mask.FillMultipliers(first + begin, count, multipliers); },
      [&](size_t i, auto io, VF multiplier) HWY_ATTR {
        const VF value = io.Load(d, x + i);
        io.Store(residual ? hn::MulAdd(value, multiplier, io.Load(d, residual + i))
                          : hn::Mul(value, multiplier),
                 d, dst + i);
      });
}

void DropRow(PhiloxKey key, int64_t sample, float rate, uint64_t first, const Tensor& x,
             const Tensor& residual, const Tensor& dst) {
  with_type(dst.dtype, "dropout", [&](auto type) HWY_ATTR {
    using T = decltype(type);
    DropRowOf(KeepMask(key, sample, rate), first, x.as<T>(), or_null<T>(residual),
              static_cast<size_t>(dst.cols), dst.as<T>());
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onefold::cpu {
namespace {
HWY_EXPORT(DropRow);
}  // namespace

void dropout(ThreadPool& pool, Tensor x, const Dropout& dropout, int64_t length, Tensor residual,
             Tensor dst) {
  require(dropout.rate >= 0 && dropout.rate < 1, "dropout: rate {} is not in [0, 1)", dropout.rate);
  require(dst.rows == x.rows && dst.cols == x.cols, "dropout: {}x{} to {}x{}", x.rows, x.cols,
          dst.rows, dst.cols);
  require(residual.empty() || (residual.rows == x.rows && residual.cols == x.cols),
          "dropout: residual {}x{} for {}x{}", residual.rows, residual.cols, x.rows, x.cols);
  if (dropout.rate == 0) return residual.empty() ? copy(pool, x, dst) : add(pool, residual, x, dst);
  const auto drop_row = HWY_DYNAMIC_DISPATCH(DropRow);
  for_each_piece(pool, x.rows, x.cols, [&](int64_t row, int64_t begin, int64_t end) {
    drop_row(dropout.key, dropout.samples.i64()[row / length], dropout.rate,
             static_cast<uint64_t>(dropout.element_of(row, length, x.cols) + begin),
             piece_of(x, row, begin, end), piece_of(residual, row, begin, end),
             piece_of(dst, row, begin, end));
  });
}

}  // namespace onefold::cpu
#endif
