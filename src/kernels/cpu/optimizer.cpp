// Optimizer steps: one pass over flat tensors, bound by memory. Each element's arithmetic is the
// same wherever it lies in the tensor, so a shard's step has the bits of the whole's.
#include <cmath>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/optimizer.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

// p = p (1 - lr wd) - lr/bc1 * m / (sqrt(v / bc2) + eps). With l2, g + wd p takes the gradient's
// place, and p is not shrunk.
void AdamWPiece(const AdamW& hyper, float factor, size_t n, float* p, const float* g, float* m,
                float* v) {
  const DF d;
  const VF scale = hn::Set(d, factor);
  const VF beta1 = hn::Set(d, hyper.beta1);
  const VF beta2 = hn::Set(d, hyper.beta2);
  const VF rest1 = hn::Set(d, 1.0f - hyper.beta1);
  const VF rest2 = hn::Set(d, 1.0f - hyper.beta2);
  const VF decay = hn::Set(d, hyper.weight_decay);
  const VF keep = hn::Set(d, hyper.l2 ? 1.0f : 1.0f - hyper.learning_rate * hyper.weight_decay);
  const VF step = hn::Set(d, hyper.learning_rate / hyper.bias_correction1);
  const VF inv_bc2 = hn::Set(d, 1.0f / hyper.bias_correction2);
  const VF eps = hn::Set(d, hyper.eps);
  Sweep(n, [&](size_t i, auto io) HWY_ATTR {
    const VF old = io.Load(d, p + i);
    VF gradient = hn::Mul(io.Load(d, g + i), scale);
    if (hyper.l2) gradient = hn::MulAdd(decay, old, gradient);
    const VF mean = hn::MulAdd(beta1, io.Load(d, m + i), hn::Mul(rest1, gradient));
    const VF square =
        hn::MulAdd(beta2, io.Load(d, v + i), hn::Mul(rest2, hn::Mul(gradient, gradient)));
    const VF denominator = hn::Add(hn::Sqrt(hn::Mul(square, inv_bc2)), eps);
    const VF decayed = hn::Mul(old, keep);
    io.Store(mean, d, m + i);
    io.Store(square, d, v + i);
    io.Store(hn::NegMulAdd(step, hn::Div(mean, denominator), decayed), d, p + i);
  });
}

// momentum is null if there is none.
void SgdPiece(const Sgd& hyper, float factor, size_t n, float* p, const float* g, float* momentum) {
  const DF d;
  const VF scale = hn::Set(d, factor);
  const VF decay = hn::Set(d, hyper.weight_decay);
  const VF mu = hn::Set(d, hyper.momentum);
  const VF rate = hn::Set(d, hyper.learning_rate);
  Sweep(n, [&](size_t i, auto io) HWY_ATTR {
    const VF old = io.Load(d, p + i);
    VF direction = hn::MulAdd(decay, old, hn::Mul(io.Load(d, g + i), scale));
    if (momentum) {
      const VF moved =
          hyper.first ? direction : hn::MulAdd(mu, io.Load(d, momentum + i), direction);
      io.Store(moved, d, momentum + i);
      direction = hyper.nesterov ? hn::MulAdd(mu, moved, direction) : moved;
    }
    io.Store(hn::NegMulAdd(rate, direction, old), d, p + i);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onefold::cpu {
namespace {
HWY_EXPORT(AdamWPiece);
HWY_EXPORT(SgdPiece);
}  // namespace

void clip(const Clip& args) {
  const double* sums = args.sums.f64();
  double squares = 0;
  bool finite = true;
  for (int64_t i = 0; i < args.sums.elems(); ++i) {
    if (i < args.squares) squares += sums[i];
    finite = finite && std::isfinite(sums[i]);
  }
  const double norm = std::sqrt(squares);
  *args.norm.f64() = norm;
  *args.control.factor.f32() =
      args.limit > 0 ? static_cast<float>(std::min(1.0, args.limit / (norm + args.eps))) : 1.0f;
  *args.control.finite.i32() = finite && std::isfinite(norm) ? 1 : 0;
}

void adamw(ThreadPool& pool, const AdamW& hyper, const StepControl& control, Tensor params,
           Tensor grads, Tensor moment1, Tensor moment2) {
  const int64_t n = params.elems();
  require(grads.elems() == n && moment1.elems() == n && moment2.elems() == n,
          "adamw: {} parameters, {} gradients, {} and {} moments", n, grads.elems(),
          moment1.elems(), moment2.elems());
  if (*control.finite.i32() == 0) return;
  const float factor = *control.factor.f32();
  float* p = params.flat().f32();
  const float* g = grads.flat().f32();
  float* m = moment1.flat().f32();
  float* v = moment2.flat().f32();
  const auto piece = HWY_DYNAMIC_DISPATCH(AdamWPiece);
  for_each_piece(pool, 1, n, [&](int64_t, int64_t begin, int64_t end) {
    piece(hyper, factor, static_cast<size_t>(end - begin), p + begin, g + begin, m + begin,
          v + begin);
  });
}

void sgd(ThreadPool& pool, const Sgd& hyper, const StepControl& control, Tensor params,
         Tensor grads, Tensor momentum) {
  const int64_t n = params.elems();
  require(grads.elems() == n && (hyper.momentum == 0 || momentum.elems() == n),
          "sgd: {} parameters, {} gradients, {} momenta", n, grads.elems(), momentum.elems());
  if (*control.finite.i32() == 0) return;
  const float factor = *control.factor.f32();
  float* p = params.flat().f32();
  const float* g = grads.flat().f32();
  float* m = hyper.momentum == 0 ? nullptr : momentum.flat().f32();
  const auto piece = HWY_DYNAMIC_DISPATCH(SgdPiece);
  for_each_piece(pool, 1, n, [&](int64_t, int64_t begin, int64_t end) {
    piece(hyper, factor, static_cast<size_t>(end - begin), p + begin, g + begin,
          m ? m + begin : nullptr);
  });
}

}  // namespace onefold::cpu
#endif
