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

using DU = hn::RebindToUnsigned<DF>;
using VU = hn::Vec<DU>;

// What is stepped: a master in f32, or the parameters P themselves.
template <class P>
struct Parameters {
  P* params;
  float* master;          // or null
  const uint32_t* words;  // random ones for each parameter: how what is kept is rounded; or null

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
      if (words && !master) return StoreDrawn(io, value, io.Load(DU(), words + i), params + i);
    }
    io.Store(value, d, params + i);
  }
  // Moments of type M, by the words that `word_of` makes of those of parameters.
  template <class Io, class M, class WordOf>
  HWY_INLINE void StoreMoment(Io io, VF value, M* moment, const WordOf& word_of, size_t i) const {
    if constexpr (std::is_same_v<M, float>)
      io.Store(value, DF(), moment + i);
    else
      StoreDrawn(io, value, word_of(io.Load(DU(), words + i)), moment + i);
  }

 private:
  template <class Io, class T>
  static HWY_INLINE void StoreDrawn(Io io, VF value, VU random, T* to) {
    const DF d;
    io.StoreBits(Drawn(d, value, random, T()), d, to);
  }
};

HWY_INLINE VU FirstMomentWord(VU word) { return hn::ShiftLeft<16>(word); }
HWY_INLINE VU SecondMomentWord(VU word) {
  return hn::Mul(word, hn::Set(DU(), second_moment_word(1)));
}

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
template <class P, class G, class M>
HWY_INLINE void AdamWBlock(const AdamW& hyper, float factor, size_t n, const Parameters<P>& p,
                           const G* g, M* m, M* v) {
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
    p.StoreMoment(io, mean, m, FirstMomentWord, i);
    p.StoreMoment(io, square, v, SecondMomentWord, i);
    p.Store(io, hn::NegMulAdd(step, hn::Div(mean, denominator), decayed), i);
  });
}

// Moments are bf16 or f32.
void AdamWPiece(const AdamW& hyper, float factor, const Stepped& stepped, Tensor m, Tensor v) {
  WithPieces(stepped, [&](const auto& p, const auto* g, size_t begin, size_t n) HWY_ATTR {
    if (m.dtype == DType::bf16)
      AdamWBlock(hyper, factor, n, p, g, m.as<Bf16>() + begin, v.as<Bf16>() + begin);
    else
      AdamWBlock(hyper, factor, n, p, g, m.f32() + begin, v.f32() + begin);
  });
}

// momentum is null if there is none.
template <class P, class G, class M>
HWY_INLINE void SgdBlock(const Sgd& hyper, float factor, size_t n, const Parameters<P>& p,
                         const G* g, M* momentum) {
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
      p.StoreMoment(io, moved, momentum, FirstMomentWord, i);
      direction = hyper.nesterov ? hn::MulAdd(mu, moved, direction) : moved;
    }
    p.Store(io, hn::NegMulAdd(rate, direction, old), i);
  });
}

// `momentum` is empty if there is none.
void SgdPiece(const Sgd& hyper, float factor, const Stepped& stepped, Tensor momentum) {
  WithPieces(stepped, [&](const auto& p, const auto* g, size_t begin, size_t n) HWY_ATTR {
    if (momentum.dtype == DType::bf16)
      SgdBlock(hyper, factor, n, p, g, momentum.as<Bf16>() + begin);
    else
      SgdBlock(hyper, factor, n, p, g, momentum.empty() ? nullptr : momentum.f32() + begin);
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
  require(params.dtype != DType::f32 || master.empty(),
          "an optimizer: parameters of f32 have no master");
}

void check_moment(const char* what, const Stepped& s, Tensor moment) {
  require(moment.elems() == s.params.elems(), "{}: {} parameters, {} moments", what,
          s.params.elems(), moment.elems());
  require(moment.dtype == DType::f32 || (moment.dtype == DType::bf16 && s.rounding),
          "{}: moments are f32, or bf16 with a rounding, not {}", what, dtype_name(moment.dtype));
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
  check_moment("adamw", stepped, moment1);
  check_moment("adamw", stepped, moment2);
  require(moment1.dtype == moment2.dtype, "adamw: moments of two types");
  if (*control.finite.i32() == 0) return;
  const float factor = *control.factor.f32();
  const auto piece = HWY_DYNAMIC_DISPATCH(AdamWPiece);
  for_each_piece(pool, 1, stepped.params.elems(), [&](int64_t, int64_t begin, int64_t end) {
    piece(hyper, factor, range_of(stepped, begin, end), piece_of(moment1.flat(), 0, begin, end),
          piece_of(moment2.flat(), 0, begin, end));
  });
}

void sgd(ThreadPool& pool, const Sgd& hyper, const StepControl& control, const Stepped& stepped,
         Tensor momentum) {
  check(stepped);
  if (hyper.momentum != 0) check_moment("sgd", stepped, momentum);
  if (*control.finite.i32() == 0) return;
  const float factor = *control.factor.f32();
  const auto piece = HWY_DYNAMIC_DISPATCH(SgdPiece);
  for_each_piece(pool, 1, stepped.params.elems(), [&](int64_t, int64_t begin, int64_t end) {
    piece(hyper, factor, range_of(stepped, begin, end),
          hyper.momentum == 0 ? Tensor{} : piece_of(momentum.flat(), 0, begin, end));
  });
}

}  // namespace onefold::cpu
#endif
