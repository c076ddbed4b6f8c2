// LayerNorm and RMSNorm, forward and backward. RMSNorm is LayerNorm with the mean taken as zero.
#include <cmath>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

struct Stats {
  float mean;
  float rstd;
};

// Two sweeps over a piece that is in cache by then: one sweep with a sum of squares would lose the
// variance to cancellation where |mean| is much larger than the deviation.
template <class T>
HWY_INLINE Stats PieceStats(Norm norm, const T* x, size_t n, float eps) {
  const DF d;
  const float inv_n = 1.0f / static_cast<float>(n);
  float mean = 0;
  if (norm == Norm::layernorm) {
    VF sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    SweepBy4(n, [&](size_t i, auto io, auto k)
                    HWY_ATTR { sums[k] = hn::Add(sums[k], io.Load(d, x + i)); });
    mean = Total(sums) * inv_n;
  }
  const VF center = hn::Set(d, mean);
  VF squares[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  SweepBy4(n, [&](size_t i, auto io, auto k) HWY_ATTR {
    const VF deviation = io.OnlyValid(d, hn::Sub(io.Load(d, x + i), center));
    squares[k] = hn::MulAdd(deviation, deviation, squares[k]);
  });
  return {mean, 1.0f / std::sqrt(Total(squares) * inv_n + eps)};
}

template <class T, class IO>
HWY_INLINE VF WeightAt(Norm norm, const IO& io, const T* weight) {
  const DF d;
  const VF w = io.Load(d, weight);
  return norm == Norm::rmsnorm1p ? hn::Add(w, hn::Set(d, 1.0f)) : w;
}

// Both directions normalise with this, so that backward sees the bits of forward.
HWY_INLINE VF Normalized(VF x, VF mean, VF rstd) { return hn::Mul(hn::Sub(x, mean), rstd); }

template <class T>
HWY_INLINE void ForwardRowsOf(Norm norm, const Tensor& x, int64_t groups, const T* weight,
                              const T* bias, float eps, const Tensor& dst, Range rows) {
  const DF d;
  const auto n = static_cast<size_t>(x.cols / groups);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t group = 0; group < groups; ++group) {
      const T* src = x.as<T>() + row * x.stride + group * static_cast<int64_t>(n);
      T* out = dst.as<T>() + row * dst.stride + group * static_cast<int64_t>(n);
      const Stats stats = PieceStats(norm, src, n, eps);
      const VF mean = hn::Set(d, stats.mean);
      const VF rstd = hn::Set(d, stats.rstd);
      Sweep(n, [&](size_t i, auto io) HWY_ATTR {
        const VF xhat = Normalized(io.Load(d, src + i), mean, rstd);
        const VF w = WeightAt(norm, io, weight + i);
        io.Store(bias ? hn::MulAdd(xhat, w, io.Load(d, bias + i)) : hn::Mul(xhat, w), d, out + i);
      });
    }
  }
}

void ForwardRows(Norm norm, const Tensor& x, int64_t groups, const Tensor& weight,
                 const Tensor& bias, float eps, const Tensor& dst, Range rows) {
  with_type(x.dtype, "norm", [&](auto type) HWY_ATTR {
    using T = decltype(type);
    ForwardRowsOf<T>(norm, x, groups, weight.as<T>(), or_null<T>(bias), eps, dst, rows);
  });
}

// What one piece needs for its gradient: y = xhat * weight, xhat = (x - mean) * rstd.
template <class T>
struct Piece {
  Norm norm;
  size_t n;
  Stats stats;
  const T* x;
  const T* weight;
  const T* dy;
};

// The means over the piece of g = dy * weight and of g * xhat.
struct GradientMeans {
  float g;
  float g_xhat;
};

// Also adds dy * xhat to dweight and dy to dbias: partial sums of this row chunk.
template <class T>
HWY_INLINE GradientMeans AddParameterGradients(const Piece<T>& piece, float* dweight,
                                               float* dbias) {
  const DF d;
  const VF mean = hn::Set(d, piece.stats.mean);
  const VF rstd = hn::Set(d, piece.stats.rstd);
  VF sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  VF dots[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  SweepBy4(piece.n, [&](size_t i, auto io, auto k) HWY_ATTR {
    const VF dy = io.Load(d, piece.dy + i);  // zero beyond the end, and so is all below
    const VF xhat = Normalized(io.Load(d, piece.x + i), mean, rstd);
    const VF g = hn::Mul(dy, WeightAt(piece.norm, io, piece.weight + i));
    sums[k] = hn::Add(sums[k], g);
    dots[k] = hn::MulAdd(g, xhat, dots[k]);
    io.Store(hn::MulAdd(dy, xhat, io.Load(d, dweight + i)), d, dweight + i);
    if (dbias) io.Store(hn::Add(dy, io.Load(d, dbias + i)), d, dbias + i);
  });
  const float inv_n = 1.0f / static_cast<float>(piece.n);
  // RMSNorm's mean is a constant, so nothing flows back through it.
  const float g = piece.norm == Norm::layernorm ? Total(sums) * inv_n : 0.0f;
  return {g, Total(dots) * inv_n};
}

// dx = rstd * (g - mean(g) - xhat * mean(g * xhat)). dx may be dy: each vector is read before it is
// written.
template <class T>
HWY_INLINE void PieceInputGradient(const Piece<T>& piece, const GradientMeans& means,
                                   bool accumulate, T* dx) {
  const DF d;
  const VF mean = hn::Set(d, piece.stats.mean);
  const VF rstd = hn::Set(d, piece.stats.rstd);
  const VF mean_g = hn::Set(d, means.g);
  const VF mean_g_xhat = hn::Set(d, means.g_xhat);
  Sweep(piece.n, [&](size_t i, auto io) HWY_ATTR {
    const VF xhat = Normalized(io.Load(d, piece.x + i), mean, rstd);
    const VF g =
        hn::MulSub(io.Load(d, piece.dy + i), WeightAt(piece.norm, io, piece.weight + i), mean_g);
    const VF gradient = hn::NegMulAdd(xhat, mean_g_xhat, g);
    io.Store(accumulate ? hn::MulAdd(rstd, gradient, io.Load(d, dx + i)) : hn::Mul(rstd, gradient),
             d, dx + i);
  });
}

// dweight and dbias are this chunk's partial sums; dbias may be null.
template <class T>
HWY_INLINE void BackwardRowsOf(Norm norm, const Tensor& x, int64_t groups, const T* weight,
                               float eps, const Tensor& dy, const Tensor& dx, bool accumulate,
                               float* dweight, float* dbias, Range rows) {
  const int64_t n = x.cols / groups;
  std::fill_n(dweight, n, 0.0f);
  if (dbias) std::fill_n(dbias, n, 0.0f);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t group = 0; group < groups; ++group) {
      Piece<T> piece = {norm,   static_cast<size_t>(n),
                        {},     x.as<T>() + row * x.stride + group * n,
                        weight, dy.as<T>() + row * dy.stride + group * n};
      piece.stats = PieceStats(norm, piece.x, piece.n, eps);
      const GradientMeans means = AddParameterGradients(piece, dweight, dbias);
      PieceInputGradient(piece, means, accumulate, dx.as<T>() + row * dx.stride + group * n);
    }
  }
}

void BackwardRows(Norm norm, const Tensor& x, int64_t groups, const Tensor& weight, float eps,
                  const Tensor& dy, const Tensor& dx, bool accumulate, float* dweight, float* dbias,
                  Range rows) {
  with_type(x.dtype, "norm", [&](auto type) HWY_ATTR {
    using T = decltype(type);
    BackwardRowsOf<T>(norm, x, groups, weight.as<T>(), eps, dy, dx, accumulate, dweight, dbias,
                      rows);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onefold::cpu {
namespace {

HWY_EXPORT(ForwardRows);
HWY_EXPORT(BackwardRows);

}  // namespace

void norm_forward(ThreadPool& pool, Norm norm, Tensor x, int64_t groups, Tensor weight, Tensor bias,
                  float eps, Tensor dst) {
  require(groups > 0 && x.cols % groups == 0, "norm: {} columns in {} groups", x.cols, groups);
  require(weight.elems() == x.cols / groups && (bias.empty() || bias.elems() == weight.elems()),
          "norm: {} weights and {} biases for pieces of {}", weight.elems(), bias.elems(),
          x.cols / groups);
  require(dst.rows == x.rows && dst.cols == x.cols, "norm: {}x{} to {}x{}", x.rows, x.cols,
          dst.rows, dst.cols);
  const auto forward_rows = HWY_DYNAMIC_DISPATCH(ForwardRows);
  const Chunks chunks = row_chunks(pool, x.rows, x.cols);
  pool.run(chunks.count(), [&](int64_t chunk, int) {
    forward_rows(norm, x, groups, weight, bias, eps, dst, chunks[chunk]);
  });
}

// scratch: for each row chunk the partial dweight, then the partial dbias: [chunks, 2, cols /
// groups].
void norm_backward(ThreadPool& pool, Norm norm, Tensor x, int64_t groups, Tensor weight, float eps,
                   Tensor dy, Tensor dx, bool accumulate_dx, Tensor dweight, Tensor dbias,
                   bool accumulate_weights, Tensor scratch) {
  require(groups > 0 && x.cols % groups == 0, "norm: {} columns in {} groups", x.cols, groups);
  const int64_t n = x.cols / groups;
  require(weight.elems() == n && (dweight.empty() || dweight.elems() == n) &&
              (dbias.empty() || dbias.elems() == n),
          "norm: {} weights, {} and {} gradients for pieces of {}", weight.elems(), dweight.elems(),
          dbias.elems(), n);
  require(dy.rows == x.rows && dx.rows == x.rows && dy.cols == x.cols && dx.cols == x.cols,
          "norm: dy {}x{} and dx {}x{} for x {}x{}", dy.rows, dy.cols, dx.rows, dx.cols, x.rows,
          x.cols);
  require(scratch.elems() >= norm_backward_scratch_bytes(x.rows, x.cols, groups),
          "norm: scratch of {}", scratch.elems());
  const auto backward_rows = HWY_DYNAMIC_DISPATCH(BackwardRows);
  const Chunks chunks = sum_chunks(x.rows);
  float* partials = scratch.as_f32();
  pool.run(chunks.count(), [&](int64_t chunk, int) {
    float* partial = partials + chunk * 2 * n;
    backward_rows(norm, x, groups, weight, eps, dy, dx, accumulate_dx, partial,
                  dbias.empty() ? nullptr : partial + n, chunks[chunk]);
  });
  if (!dweight.empty())
    add_partials(pool, partials, chunks.count(), 2 * n, accumulate_weights, dweight);
  if (!dbias.empty())  // of no rows there are no partial sums
    add_partials(pool, chunks.count() > 0 ? partials + n : nullptr, chunks.count(), 2 * n,
                 accumulate_weights, dbias);
}

int64_t norm_backward_scratch_bytes(int64_t rows, int64_t cols, int64_t groups) {
  return sum_chunks(rows).count() * 2 * (cols / groups) * 4;
}

}  // namespace onefold::cpu
#endif
