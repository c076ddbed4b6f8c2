// Softmax cross-entropy over rows of logits, loss and gradient in one visit of each row.
#include <cmath>
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
HWY_INLINE float RowMax(const float* x, size_t n) {
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

// The sum of e^(x - max), which replaces x if `write`. Blocks are summed in float and added up in
// double, so the error does not grow with the vocabulary.
HWY_INLINE double SumExp(float* x, size_t n, float max, bool write) {
  constexpr size_t kBlock = 2048;
  const DF d;
  const VF shift = hn::Set(d, max);
  double total = 0;
  for (size_t begin = 0; begin < n; begin += kBlock) {
    VF sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    float* block = x + begin;
    SweepBy4(std::min(kBlock, n - begin), [&](size_t i, auto io, auto k) HWY_ATTR {
      const VF e = io.OnlyValid(d, Exp(d, hn::Sub(io.Load(d, block + i), shift)));
      if (write) io.Store(e, d, block + i);
      sums[k] = hn::Add(sums[k], e);
    });
    total += Total(sums);
  }
  return total;
}

HWY_INLINE void Scale(float* x, size_t n, float factor) {
  const DF d;
  const VF f = hn::Set(d, factor);
  Sweep(n, [&](size_t i, auto io) HWY_ATTR { io.Store(hn::Mul(f, io.Load(d, x + i)), d, x + i); });
}

// The loss of one row; the row becomes its gradient, times the scale, if that is wanted.
float RowLoss(float* logits, size_t n, size_t target, bool gradient, float gradient_scale) {
  const float max = RowMax(logits, n);
  const double below_max = static_cast<double>(logits[target]) - max;
  const double sum = SumExp(logits, n, max, gradient);
  if (gradient) {
    Scale(logits, n, static_cast<float>(gradient_scale / sum));
    logits[target] -= gradient_scale;
  }
  return static_cast<float>(std::log(sum) - below_max);
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
  const Chunks chunks = row_chunks(logits.rows, logits.cols);
  pool.run(chunks.count(), [&](int64_t chunk, int) {
    const Range rows = chunks[chunk];
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      float* x = logits.f32() + row * logits.stride;
      const int64_t target = targets.i32()[row];
      require(target < logits.cols, "cross_entropy: target {} of row {} with {} classes", target,
              row, logits.cols);
      if (target >= 0) {
        losses.f32()[row] = row_loss(x, static_cast<size_t>(logits.cols),
                                     static_cast<size_t>(target), gradient, scale);
      } else {
        losses.f32()[row] = 0;
        if (gradient) std::fill_n(x, logits.cols, 0.0f);
      }
    }
  });
}

}  // namespace onefold::cpu
#endif
