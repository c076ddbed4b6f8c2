// Softmax cross-entropy over rows of logits, loss and gradient in one visit of each row.
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

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
      const VF e = io.OnlyValid(d, Exp<kNoOverflow>(d, hn::Sub(io.Load(d, block + i), shift)));
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
    if constexpr (!std::is_same_v<T, float>) e = Exp<kNoOverflow>(d, hn::Sub(e, shift));
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
    const VF e = Exp<kNoOverflow>(d, hn::Sub(hn::Set(d, logit), hn::Set(d, max)));
    logits[target] = narrowed<T>(hn::GetLane(hn::Mul(hn::Set(d, factor), e)) - gradient_scale);
  }
  return static_cast<float>(std::log(sum) - below_max);
}

// A share's part of a row: its largest logit, and the sum of e^(x - largest). Where all are
// -infinity their sum is 0.
std::pair<float, float> SharePart(const Tensor& logits) {
  return with_type(logits.dtype, "cross_entropy", [&](auto type) HWY_ATTR {
    auto* x = logits.as<decltype(type)>();
    const auto n = static_cast<size_t>(logits.cols);
    const float max = RowMax(x, n);
    const float shift = max == -std::numeric_limits<float>::infinity() ? 0 : max;
    return std::pair(max, static_cast<float>(SumExp(x, n, shift, false)));
  });
}

// x = scale * (e^(x - max) / sum - onehot), of the whole row's max and sum; target n: elsewhere.
void ShareGradient(const Tensor& logits, size_t target, float max, double sum, float scale) {
  with_type(logits.dtype, "cross_entropy", [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const DF d;
    T* x = logits.as<T>();
    const auto n = static_cast<size_t>(logits.cols);
    const auto factor = static_cast<float>(scale / sum);
    const VF f = hn::Set(d, factor), shift = hn::Set(d, max);
    const float logit = target < n ? widened(x[target]) : 0;
    Sweep(n, [&](size_t i, auto io) HWY_ATTR {
      io.Store(hn::Mul(f, Exp<kNoOverflow>(d, hn::Sub(io.Load(d, x + i), shift))), d, x + i);
    });
    if (target >= n) return;
    const VF e = Exp<kNoOverflow>(d, hn::Sub(hn::Set(d, logit), shift));
    x[target] = narrowed<T>(hn::GetLane(hn::Mul(f, e)) - scale);
  });
}

float LogitAt(const Tensor& logits, int64_t col) {
  return with_type(logits.dtype, "cross_entropy",
                   [&](auto type) { return widened(logits.as<decltype(type)>()[col]); });
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
HWY_EXPORT(SharePart);
HWY_EXPORT(ShareGradient);
HWY_EXPORT(LogitAt);

void check_share(const Tensor& logits, const Tensor& targets, const Tensor& stats) {
  require(targets.elems() == logits.rows && stats.cols == logits.rows && stats.rows > 0 &&
              stats.rows % kShareStats == 0 && stats.contiguous(),
          "share_softmax: {} targets and stats of {}x{} for {} rows", targets.elems(), stats.rows,
          stats.cols, logits.rows);
}

// One row of all shares.
struct WholeRow {
  float max = -std::numeric_limits<float>::infinity();
  double sum = 0, target = 0;
};
WholeRow merged(const Tensor& stats, int64_t row) {
  const auto at = [&](int64_t share, int64_t which) {
    return stats.f32()[(share * kShareStats + which) * stats.cols + row];
  };
  const int64_t shares = stats.rows / kShareStats;
  WholeRow whole;
  for (int64_t s = 0; s < shares; ++s) {
    whole.max = std::max(whole.max, at(s, 0));
    whole.target += at(s, 2);
  }
  for (int64_t s = 0; s < shares; ++s)
    whole.sum += at(s, 1) == 0 ? 0.0 : at(s, 1) * std::exp(double{at(s, 0)} - double{whole.max});
  return whole;
}
}  // namespace

void share_softmax(ThreadPool& pool, Tensor logits, Tensor targets, Tensor stats) {
  check_share(logits, targets, stats);
  const auto part_of = HWY_DYNAMIC_DISPATCH(SharePart);
  const auto logit_at = HWY_DYNAMIC_DISPATCH(LogitAt);
  const Chunks chunks = row_chunks(pool, logits.rows, logits.cols);
  pool.run(chunks.count(), [&](int64_t chunk, int) {
    const Range rows = chunks[chunk];
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const Tensor x = logits.row_range(row, 1);
      const int64_t target = targets.i32()[row];
      require(target <= logits.cols, "share_softmax: target {} of row {} with {} classes", target,
              row, logits.cols);
      const auto [max, sum] = part_of(x);
      float* const out = stats.f32() + row;
      out[0] = max;
      out[stats.cols] = sum;
      out[2 * stats.cols] = target >= 0 && target < logits.cols ? logit_at(x, target) : 0;
    }
  });
}

void share_cross_entropy(ThreadPool& pool, Tensor logits, Tensor targets, Tensor stats,
                         Tensor gradient_scale, Tensor losses) {
  check_share(logits, targets, stats);
  require(losses.elems() == logits.rows, "share_cross_entropy: {} losses for {} rows",
          losses.elems(), logits.rows);
  const bool gradient = !gradient_scale.empty();
  const float scale = gradient ? *gradient_scale.f32() : 0.0f;
  const auto make_gradient = HWY_DYNAMIC_DISPATCH(ShareGradient);
  const Chunks chunks = row_chunks(pool, logits.rows, logits.cols);
  pool.run(chunks.count(), [&](int64_t chunk, int) {
    const Range rows = chunks[chunk];
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const Tensor x = logits.row_range(row, 1);
      const int64_t target = targets.i32()[row];
      if (target < 0) {
        losses.f32()[row] = 0;
        if (gradient) std::memset(x.data, 0, static_cast<size_t>(x.cols * dtype_bytes(x.dtype)));
        continue;
      }
      const WholeRow whole = merged(stats, row);
      losses.f32()[row] = static_cast<float>(std::log(whole.sum) - (whole.target - whole.max));
      if (gradient) make_gradient(x, static_cast<size_t>(target), whole.max, whole.sum, scale);
    }
  });
}

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
