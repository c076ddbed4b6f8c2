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
#include "kernels/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

// What is stepped: a master in f32, or the parameters P themselves.
template <class P>
struct Parameters {
  P* params;
  float* master;          // or null
  const uint32_t* words;  // random ones for each parameter: how they are rounded; or null

  template <class Io>
  HWY_INLINE VF Load(Io io, size_t i) const {
    const DF d;
    return master ? io.Load(d, master + i) : io.Load(d, params + i);
  }
  template <class Io>
  HWY_INLINE void Store(Io io, VF value, size_t i) const {
    const DF d;
    if (master) io.Store(value, d, master + i);
    if constexpr (!std::is_same_v<P, float>) {
      if (words) {
        const auto random = io.Load(hn::RebindToUnsigned<DF>(), words + i);
        return io.StoreBits(Drawn(d, value, random, P()), d, params + i);
      }
    }
    io.Store(value, d, params + i);
  }
};

// work(parameters, gradients, begin, n) for pieces of a flat range, each with its types and, where
// rounding draws, with its random words.
template <class Work>
HWY_INLINE void WithPieces(const Stepped& stepped, const Work& work) {
  const auto n = static_cast<size_t>(stepped.params.cols);
  with_type(stepped.params.dtype, "an optimizer", [&](auto type) HWY_ATTR {
    using P = decltype(type);
    constexpr size_t kBlock = 1024;
    HWY_ALIGN uint32_t words[kBlock];
    const bool draws = stepped.rounding.has_value();
    for (size_t begin = 0; begin < n; begin += kBlock) {
      const size_t count = std::min(kBlock, n - begin);
      if (draws)
        RandomWords(stepped.rounding->key, 0)
            .Fill(
                static_cast<uint64_t>(stepped.rounding->first) + begin, count,
                [](VU64 pairs) HWY_ATTR { return pairs; }, words);
      float* master = or_null<float>(stepped.master);
      const Parameters<P> parameters{stepped.params.as<P>() + begin,
                                     master ? master + begin : nullptr, draws ? words : nullptr};
      if (stepped.grads.dtype == DType::f32)
        work(parameters, stepped.grads.f32() + begin, begin, count);
      else
        work(parameters, stepped.grads.as<P>() + begin, begin, count);
    }
  });
}

// p = p (1 - lr wd) - lr/bc1 * m / (sqrt(v / bc2) + eps). With l2, g + wd p takes the gradient's
// place, and p is not shrunk.
template <class P, class G>
HWY_INLINE void AdamWBlock(const AdamW& hyper, float factor, size_t n, const Parameters<P>& p,
                           const G* g, float* m, float* v) {
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
    const VF old = p.Load(io, i);
    VF gradient = hn::Mul(io.Load(d, g + i), scale);
    if (hyper.l2) gradient = hn::MulAdd(decay, old, gradient);
    const VF mean = hn::MulAdd(beta1, io.Load(d, m + i), hn::Mul(rest1, gradient));
    const VF square =
        hn::MulAdd(beta2, io.Load(d, v + i), hn::Mul(rest2, hn::Mul(gradient, gradient)));
    const VF denominator = hn::Add(hn::Sqrt(hn::Mul(square, inv_bc2)), eps);
    const VF decayed = hn::Mul(old, keep);
    io.Store(mean, d, m + i);
    io.Store(square, d, v + i);
    p.Store(io, hn::NegMulAdd(step, hn::Div(mean, denominator), decayed), i);
  });
}

void AdamWPiece(const AdamW& hyper, float factor, const Stepped& stepped, float* m, float* v) {
  WithPieces(stepped, [&](const auto& p, const auto* g, size_t begin, size_t n)
                          HWY_ATTR { AdamWBlock(hyper, factor, n, p, g, m + begin, v + begin); });
}

// momentum is null if there is none.
template <class P, class G>
HWY_INLINE void SgdBlock(const Sgd& hyper, float factor, size_t n, const Parameters<P>& p,
                         const G* g, float* momentum) {
  const DF d;
  const VF scale = hn::Set(d, factor);
  const VF decay = hn::Set(d, hyper.weight_decay);
  const VF mu = hn::Set(d, hyper.momentum);
  const VF rate = hn::Set(d, hyper.learning_rate);
  Sweep(n, [&](size_t i, auto io) HWY_ATTR {
    const VF old = p.Load(io, i);
    VF direction = hn::MulAdd(decay, old, hn::Mul(io.Load(d, g + i), scale));
    if (momentum) {
      const VF moved =
          hyper.first ? direction : hn::MulAdd(mu, io.Load(d, momentum + i), direction);
      io.Store(moved, d, momentum + i);
      direction = hyper.nesterov ? hn::MulAdd(mu, moved, direction) : moved;
    }
    p.Store(io, hn::NegMulAdd(rate, direction, old), i);
  });
}

void SgdPiece(const Sgd& hyper, float factor, const Stepped& stepped, float* momentum) {
  WithPieces(stepped, [&](const auto& p, const auto* g, size_t begin, size_t n) HWY_ATTR {
    SgdBlock(hyper, factor, n, p, g, momentum ? momentum + begin : nullptr);
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

void check(const Stepped& s) {
  const auto& [params, grads, master, rounding] = s;
  require(grads.elems() == params.elems() && (master.empty() || master.elems() == params.elems()),
          "an optimizer: {} parameters, {} gradients, a master of {}", params.elems(),
          grads.elems(), master.elems());
  require(params.dtype != DType::f32 || (master.empty() && !rounding),
          "an optimizer: parameters of f32 have no master, and are not rounded");
  require(master.empty() || !rounding, "an optimizer: what has a master is rounded to the nearest");
}

// Elements [begin, end) of flat tensors.
Stepped range_of(const Stepped& s, int64_t begin, int64_t end) {
  Stepped piece{piece_of(s.params.flat(), 0, begin, end), piece_of(s.grads.flat(), 0, begin, end),
                s.master.empty() ? Tensor{} : piece_of(s.master.flat(), 0, begin, end), s.rounding};
  if (piece.rounding) piece.rounding->first += begin;
  return piece;
}

}  // namespace

void clip(const Clip& args) {
  const double* sums = args.sums.f64();
  double squares = 0;
  bool finite = true;
  for (int64_t i = 0; i < args.sums.elems(); ++i) {
    if (i < args.squares) squares += sums[i];
    finite = finite && std::isfinite(sums[i]);
  }
  const double norm = std::sqrt(squares) / args.scale;
  *args.norm.f64() = norm;
  const double clipped = args.limit > 0 ? std::min(1.0, args.limit / (norm + args.eps)) : 1.0;
  *args.control.factor.f32() = static_cast<float>(clipped / args.scale);
  *args.control.finite.i32() = finite && std::isfinite(norm) ? 1 : 0;
}

void adamw(ThreadPool& pool, const AdamW& hyper, const StepControl& control, const Stepped& stepped,
           Tensor moment1, Tensor moment2) {
  check(stepped);
  const int64_t n = stepped.params.elems();
  require(moment1.elems() == n && moment2.elems() == n, "adamw: {} parameters, {} and {} moments",
          n, moment1.elems(), moment2.elems());
  if (*control.finite.i32() == 0) return;
  const float factor = *control.factor.f32();
  float* m = moment1.flat().f32();
  float* v = moment2.flat().f32();
  const auto piece = HWY_DYNAMIC_DISPATCH(AdamWPiece);
  for_each_piece(pool, 1, n, [&](int64_t, int64_t begin, int64_t end) {
    piece(hyper, factor, range_of(stepped, begin, end), m + begin, v + begin);
  });
}

void sgd(ThreadPool& pool, const Sgd& hyper, const StepControl& control, const Stepped& stepped,
         Tensor momentum) {
  check(stepped);
  const int64_t n = stepped.params.elems();
  require(hyper.momentum == 0 || momentum.elems() == n, "sgd: {} parameters, {} momenta", n,
          momentum.elems());
  if (*control.finite.i32() == 0) return;
  const float factor = *control.factor.f32();
  float* m = hyper.momentum == 0 ? nullptr : momentum.flat().f32();
  const auto piece = HWY_DYNAMIC_DISPATCH(SgdPiece);
  for_each_piece(pool, 1, n, [&](int64_t, int64_t begin, int64_t end) {
    piece(hyper, factor, range_of(stepped, begin, end), m ? m + begin : nullptr);
  });
}

}  // namespace onefold::cpu
#endif
