// LAMB with ratios that stay: its direction beside a fresh second moment, and what a tensor's step
// is multiplied by.
#include <atomic>
#include <cmath>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/stepping.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/frozen_lamb.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/stepping-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

HWY_INLINE VF RootOf(const FrozenLamb& hyper, VF square, VF eps) {
  return hyper.eps_inside ? hn::Sqrt(hn::Add(square, eps)) : hn::Add(hn::Sqrt(square), eps);
}

// Lanes beyond the end hold 1, the ratio of two roots of 0: it would count as the largest.
template <class Io>
HWY_INLINE VF ThoseThere(Io io, VF ratio) {
  if constexpr (std::is_same_v<Io, Part>)
    return hn::IfThenElseZero(hn::FirstN(DF(), io.count), ratio);
  else
    return ratio;
}

// The largest ratio of roots. `begins`: the fresh moment is the one that stays.
template <class P, class G, class M>
HWY_INLINE float FrozenLambBlock(const FrozenLamb& hyper, float factor, bool begins, size_t n,
                                 const Parameters<P>& p, const G* g, M* m, const M* v, M* fresh,
                                 float* plain, float* dst) {
  const DF d;
  const VF scale = hn::Set(d, factor), eps = hn::Set(d, hyper.eps);
  const VF beta1 = hn::Set(d, hyper.beta1), rest1 = hn::Set(d, 1.0f - hyper.beta1);
  const VF beta2 = hn::Set(d, hyper.beta2), rest2 = hn::Set(d, 1.0f - hyper.beta2);
  const VF decay = hn::Set(d, hyper.weight_decay);
  const VF most = hn::Set(d, kLargestGradient), least = hn::Set(d, -kLargestGradient);
  VF largest = hn::Zero(d);
  Sweep(n, [&](size_t i, auto io) HWY_ATTR {
    const VF gradient = hn::Clamp(hn::Mul(io.Load(d, g + i), scale), least, most);
    const VF old = io.Load(d, m + i), square = io.Load(d, v + i);
    const VF mean = hyper.arrives ? gradient : hn::MulAdd(beta1, old, hn::Mul(rest1, gradient));
    const VF taken = hn::Clamp(hn::Div(hn::NegMulAdd(beta1, old, mean), rest1), least, most);
    const VF before = begins ? square : io.Load(d, fresh + i);
    const VF after = hn::MulAdd(beta2, before, hn::Mul(rest2, hn::Mul(taken, taken)));
    const VF root = RootOf(hyper, square, eps);
    largest = hn::Max(largest, ThoseThere(io, hn::Div(root, RootOf(hyper, after, eps))));
    p.StoreMoment(io, mean, m, FirstMomentWord, i);
    p.StoreMoment(io, after, fresh, SecondMomentWord, i);
    const VF way = hn::Div(mean, root);
    if (plain) io.Store(way, d, plain + i);
    io.Store(hn::MulAdd(decay, p.Load(io, i), way), d, dst + i);
  });
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

float FrozenLambPiece(const FrozenLamb& hyper, float factor, bool begins, const Stepped& stepped,
                      Tensor moment1, Tensor moment2, Tensor fresh, Tensor plain, Tensor dst) {
  float largest = 0;
  WithPieces(stepped, [&](const auto& p, const auto* g, size_t begin, size_t n) HWY_ATTR {
    const auto with = [&](auto type) HWY_ATTR {
      using M = decltype(type);
      const float here = FrozenLambBlock(
          hyper, factor, begins, n, p, g, moment1.as<M>() + begin, moment2.as<M>() + begin,
          fresh.as<M>() + begin, plain.empty() ? nullptr : plain.f32() + begin, dst.f32() + begin);
      largest = std::max(largest, here);
    };
    if (moment1.dtype == DType::bf16)
      with(Bf16());
    else
      with(float());
  });
  return largest;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onefold::cpu {
namespace {
HWY_EXPORT(FrozenLambPiece);

// The order of threads does not matter to a maximum.
void raise(double& largest, double value) {
  const std::atomic_ref<double> shared(largest);
  double known = shared.load();
  while (known < value && !shared.compare_exchange_weak(known, value)) {
  }
}

}  // namespace

void frozen_lamb(ThreadPool& pool, const StepControl& control, const FrozenLambStep& step) {
  check_stepped(step.stepped);
  const int64_t elems = step.stepped.params.elems();
  for (const Tensor& moment : {step.moment1, step.moment2, step.fresh}) {
    check_moment("frozen_lamb", step.stepped, moment);
    require(moment.dtype == step.moment1.dtype && moment.dtype != DType::u8,
            "frozen_lamb: moments of {} and {}", dtype_name(step.moment1.dtype),
            dtype_name(moment.dtype));
  }
  require(step.dst.elems() == elems && (step.plain.empty() || step.plain.elems() == elems),
          "frozen_lamb: {} of {} elements", step.dst.elems(), elems);
  if (*control.finite.i32() == 0) return;
  const float factor = factor_of(control, step.stepped);
  const bool begins = step.ratios.f32()[kLastFactor] == 0;
  const auto piece = HWY_DYNAMIC_DISPATCH(FrozenLambPiece);
  for_each_piece(pool, 1, elems, [&](int64_t, int64_t begin, int64_t end) {
    const auto part = [&](const Tensor& all) { return piece_of(all.flat(), 0, begin, end); };
    const float largest = piece(step.hyper, factor, begins, range_of(step.stepped, begin, end),
                                part(step.moment1), part(step.moment2), part(step.fresh),
                                step.plain.empty() ? Tensor{} : part(step.plain), part(step.dst));
    raise(*step.largest.f64(), static_cast<double>(largest));
  });
}

void tensor_trust(const StepControl& control, const TensorTrust& one) {
  require(one.squares.elems() == 2 && one.ratios.elems() == kTensorRatios,
          "tensor_trust: {} squares, {} ratios", one.squares.elems(), one.ratios.elems());
  if (*control.finite.i32() == 0) return;
  float* const ratios = one.ratios.f32();
  const double first = std::sqrt(one.squares.f64()[0]), second = std::sqrt(one.squares.f64()[1]);
  const double mean = ratios[kMeanRatio];
  if (one.largest.empty()) {
    double ratio = 1;
    if (first > 0 && second > 0) ratio = std::min(std::max(first / second, one.least), one.most);
    if (ratio != 1)
      ratios[kMeanRatio] = static_cast<float>(one.beta * mean + (1 - one.beta) * ratio);
    *one.dst.f64() = ratio;
    return;
  }
  double largest = 0;
  for (int64_t rank = 0; rank < one.largest.elems(); ++rank)
    largest = std::max(largest, one.largest.f64()[rank]);
  const double share = second > 0 ? std::min(1.0, first / second) : 1.0;
  const double last = ratios[kLastFactor] == 0 ? 1.0 : ratios[kLastFactor];
  double factor = largest * share + (1 - share);
  factor = std::min(std::max(factor, one.least_factor), one.most_factor);
  factor = std::min(std::max(factor, last * (1 - one.threshold)), last * (1 + one.threshold));
  ratios[kLastFactor] = static_cast<float>(factor);
  *one.dst.f64() = mean * factor;
}

}  // namespace onefold::cpu
#endif
