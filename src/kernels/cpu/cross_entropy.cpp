// Softmax cross-entropy over rows of logits, loss and gradient in one visit of each row.
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cross_entropy.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

// NaN may get lost here; it comes back in the sum.
template <class T>
HWY_INLINE float RowMax(const T* x, size_t n) {
  const DF d;
  const VF lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  VF best[4] = {lowest, lowest, lowest, lowest};
  SweepBy4(n, [&](size_t i, auto io, auto k) HWY_ATTR {
    const VF v = io.Load(d, x + i);
    if constexpr (std::is_same_v<decltype(io), Part>)
      best[k] = hn::IfThenElse(hn::FirstN(d, io.count), hn::Max(v, best[k]), best[k]);
    else
      best[k] = hn::Max(v, best[k]);
  });
  return hn::GetLane(
      hn::MaxOfLanes(d, hn::Max(hn::Max(best[0], best[1]), hn::Max(best[2], best[3]))));
}

// The sum of e^(x - max), which replaces x if `write` and x is f32: exponentials are not rounded to
// 16 bits. Blocks are summed in float and added up in double, so the error does not grow with the
// vocabulary.
template <class T>
HWY_INLINE double SumExp(T* x, size_t n, float max, bool write) {
  constexpr size_t kBlock = 2048;
  const DF d;
  const VF shift = hn::Set(d, max);
  double total = 0;
  for (size_t begin = 0; begin < n; begin += kBlock) {
    VF sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    T* block = x + begin;
    SweepBy4(std::min(kBlock, n - begin), [&](size_t i, auto io, auto k) HWY_ATTR {
      const VF e = io.OnlyValid(d, Exp(d, hn::Sub(io.Load(d, block + i), shift)));
      if constexpr (std::is_same_v<T, float>)
        if (write) io.Store(e, d, block + i);
      sums[k] = hn::Add(sums[k], e);
    });
    total += Total(sums);
  }
  return total;
}

// x = factor * e^(x - max) where SumExp left the logits, factor * x where it left exponentials.
template <class T>
HWY_INLINE void ScaleExp(T* x, size_t n, float max, float factor) {
  const DF d;
  const VF f = hn::Set(d, factor), shift = hn::Set(d, max);
  Sweep(n, [&](size_t i, auto io) HWY_ATTR {
    VF e = io.Load(d, x + i);
    if constexpr (!std::is_same_v<T, float>) e = Exp(d, hn::Sub(e, shift));
    io.Store(hn::Mul(f, e), d, x + i);
  });
}

// The loss of one row; the row becomes its gradient, times the scale, if that is wanted.
template <class T>
HWY_INLINE float RowLossOf(T* logits, size_t n, size_t target, bool gradient,
                           float gradient_scale) {
  const DF d;
  const float max = RowMax(logits, n), logit = widened(logits[target]);
  const double below_max = static_cast<double>(logit) - max;
  const double sum = SumExp(logits, n, max, gradient);
  if (gradient) {
    const auto factor = static_cast<float>(gradient_scale / sum);
    ScaleExp(logits, n, max, factor);
    // From the target's probability before it was rounded.
    const VF e = Exp(d, hn::Sub(hn::Set(d, logit), hn::Set(d, max)));
    logits[target] = narrowed<T>(hn::GetLane(hn::Mul(hn::Set(d, factor), e)) - gradient_scale);
  }
  return static_cast<float>(std::log(sum) - below_max);
}

float RowLoss(const Tensor& logits, size_t target, bool gradient, float gradient_scale) {
  return with_type(logits.dtype, "cross_entropy", [&](auto type) HWY_ATTR {
    return RowLossOf(logits.as<decltype(type)>(), static_cast<size_t>(logits.cols), target,
                     gradient, gradient_scale);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onefold::cpu {
namespace {
HWY_EXPORT(RowLoss);
}  // namespace

void cross_entropy(ThreadPool& pool, Tensor logits, Tensor targets, Tensor gradient_scale,
                   Tensor losses) {
  require(targets.elems() == logits.rows && losses.elems() == logits.rows,
          "cross_entropy: {} targets and {} losses for {} rows", targets.elems(), losses.elems(),
          logits.rows);
  const bool gradient = !gradient_scale.empty();
  const float scale = gradient ? *gradient_scale.f32() : 0.0f;
  const auto row_loss = HWY_DYNAMIC_DISPATCH(RowLoss);
  const Chunks chunks = row_chunks(pool, logits.rows, logits.cols);
  pool.run(chunks.count(), [&](int64_t chunk, int) {
    const Range rows = chunks[chunk];
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const Tensor x = logits.row_range(row, 1);
      const int64_t target = targets.i32()[row];
      require(target < logits.cols, "cross_entropy: target {} of row {} with {} classes", target,
              row, logits.cols);
      if (target >= 0) {
        losses.f32()[row] = row_loss(x, static_cast<size_t>(target), gradient, scale);
      } else {
        losses.f32()[row] = 0;
        if (gradient) std::memset(x.data, 0, static_cast<size_t>(x.cols * dtype_bytes(x.dtype)));
      }
    }
  });
}

}  // namespace onefold::cpu
#endif
