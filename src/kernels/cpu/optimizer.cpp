// Optimizer steps: one pass over flat tensors, bound by memory. Each element's arithmetic is the
// same wherever it lies in the tensor, so a shard's step has the bits of the whole's.
#include <cmath>
#include <cstring>

#include "base/block8.h"
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/stepping.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/optimizer.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/stepping-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

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
  const VF most = hn::Set(d, kLargestGradient), least = hn::Set(d, -kLargestGradient);
  Sweep(n, [&](size_t i, auto io) HWY_ATTR {
    p.Prefetch(i + kPrefetch);
    hwy::Prefetch(g + i + kPrefetch);
    hwy::Prefetch(m + i + kPrefetch);
    hwy::Prefetch(v + i + kPrefetch);
    const VF old = p.Load(io, i);
    VF gradient = hn::Mul(io.Load(d, g + i), scale);
    if (hyper.l2) gradient = hn::MulAdd(decay, old, gradient);
    gradient = hn::Clamp(gradient, least, most);
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

// A block of codes (base/block8.h) as the values that they stand for, and back.
template <Moment8 kMoment>
HWY_INLINE VF Level(VF k) {
  const VF t =
      hn::Div(k, hn::Set(DF(), static_cast<float>(block8::kLevels[static_cast<int>(kMoment)])));
  const VF square = hn::Mul(t, t);
  return kMoment == Moment8::first ? square : hn::Mul(square, square);
}

template <Moment8 kMoment>
HWY_INLINE void Decode(const uint8_t* codes, float scale, size_t n, float* values) {
  const DF d;
  const hn::Rebind<uint8_t, DF> d8;
  const hn::RebindToSigned<DF> d32;
  HWY_ALIGN uint8_t padded[kBlock8] = {};
  std::memcpy(padded, codes, n);
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    VF k = hn::ConvertTo(d, hn::PromoteTo(d32, hn::Load(d8, padded + i)));
    if (kMoment == Moment8::first) k = hn::Sub(k, hn::Set(d, 128.0f));
    const VF value = hn::Mul(hn::Set(d, scale), Level<kMoment>(k));
    hn::Store(kMoment == Moment8::first ? hn::CopySign(value, k) : value, d, values + i);
  }
}

// In the middle of 2^16 equal parts of [0, 1), by the word's upper 16 bits. Were it their lower
// end, 0 among them, a moment that is next to nothing beside its block's largest would be drawn up
// to the first level once in 2^16 times, and be divided by a second moment of its own size.
HWY_INLINE VF Threshold(VU word) {
  const DF d;
  const hn::RebindToSigned<DF> d32;
  const VF part = hn::ConvertTo(d, hn::BitCast(d32, hn::ShiftRight<16>(word)));
  return hn::Add(hn::Mul(part, hn::Set(d, 0x1p-16f)), hn::Set(d, 0x1p-17f));
}

template <Moment8 kMoment, class WordOf>
HWY_INLINE float Encode(const float* values, const uint32_t* words, const WordOf& word_of, size_t n,
                        uint8_t* codes) {
  const DF d;
  const hn::Rebind<uint8_t, DF> d8;
  const hn::RebindToSigned<DF> d32;
  const float scale = scale8({values, n});
  const auto last = static_cast<float>(block8::kLevels[static_cast<int>(kMoment)]);
  const VF zero = hn::Zero(d), one = hn::Set(d, 1.0f);
  HWY_ALIGN uint8_t padded[kBlock8];
  for (size_t i = 0; i < n && scale > 0; i += hn::Lanes(d)) {
    const VF value = hn::Load(d, values + i);
    const VF share = hn::Div(hn::Abs(value), hn::Set(d, scale));
    VF root = hn::Sqrt(share);
    if (kMoment == Moment8::second) root = hn::Sqrt(root);
    const VF below =
        hn::Min(hn::Max(hn::Floor(hn::Mul(root, hn::Set(d, last))), zero), hn::Set(d, last - 1));
    const VF low = Level<kMoment>(below), high = Level<kMoment>(hn::Add(below, one));
    const VF threshold = Threshold(word_of(hn::Load(DU(), words + i)));
    const auto up = hn::Gt(hn::Sub(share, low), hn::Mul(threshold, hn::Sub(high, low)));
    VF k = hn::IfThenElse(up, hn::Add(below, one), below);
    if (kMoment == Moment8::second)
      k = hn::IfThenElse(hn::Gt(value, zero), hn::Max(k, one), k);
    else
      k = hn::Add(hn::CopySign(k, value), hn::Set(d, 128.0f));
    hn::Store(hn::DemoteTo(d8, hn::ConvertTo(d32, k)), d8, padded + i);
  }
  if (scale > 0)
    std::memcpy(codes, padded, n);
  else
    std::memset(codes, kMoment == Moment8::first ? 128 : 0, n);
  return scale;
}

// Blocks of codes, widened while they are stepped.
template <class P, class G>
HWY_INLINE void AdamWCodes(const AdamW& hyper, float factor, size_t n, const Parameters<P>& p,
                           const G* g, const Moment& m, const Moment& v, size_t begin) {
  HWY_ALIGN float means[kBlock8], squares[kBlock8];
  for (size_t at = 0; at < n; at += kBlock8) {
    const size_t count = std::min<size_t>(kBlock8, n - at), block = (begin + at) / kBlock8;
    uint8_t* const mean_codes = m.values.as<uint8_t>() + begin + at;
    uint8_t* const square_codes = v.values.as<uint8_t>() + begin + at;
    float &mean_scale = m.scales.f32()[block], &square_scale = v.scales.f32()[block];
    Decode<Moment8::first>(mean_codes, mean_scale, count, means);
    Decode<Moment8::second>(square_codes, square_scale, count, squares);
    const Parameters<P> here{p.params + at, p.master ? p.master + at : nullptr, p.words + at};
    AdamWBlock(hyper, factor, count, here, g + at, means, squares);
    mean_scale = Encode<Moment8::first>(means, here.words, FirstMomentWord, count, mean_codes);
    square_scale =
        Encode<Moment8::second>(squares, here.words, SecondMomentWord, count, square_codes);
  }
}

// Moments are bf16, codes or f32.
void AdamWPiece(const AdamW& hyper, float factor, const Stepped& stepped, const Moment& m,
                const Moment& v) {
  WithPieces(stepped, [&](const auto& p, const auto* g, size_t begin, size_t n) HWY_ATTR {
    if (m.values.dtype == DType::u8)
      AdamWCodes(hyper, factor, n, p, g, m, v, begin);
    else if (m.values.dtype == DType::bf16)
      AdamWBlock(hyper, factor, n, p, g, m.values.as<Bf16>() + begin, v.values.as<Bf16>() + begin);
    else
      AdamWBlock(hyper, factor, n, p, g, m.values.f32() + begin, v.values.f32() + begin);
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

Moment range_of(const Moment& moment, int64_t begin, int64_t end) {
  return {piece_of(moment.values.flat(), 0, begin, end),
          moment.scales.empty()
              ? Tensor{}
              : piece_of(moment.scales.flat(), 0, begin / kBlock8, ceil_div(end, kBlock8))};
}

}  // namespace

// As std::min(1.0, limit / norm): 1 where that is no number.
void clip_each(const ClipEach& args) {
  for (int64_t i = 0; i < args.squares.elems(); ++i) {
    const double norm = std::sqrt(args.squares.f64()[i]) / args.scale;
    double limit = args.limit;
    if (!args.weights.empty()) limit *= std::max(std::sqrt(args.weights.f64()[i]), args.least);
    const double ratio = limit / (norm + args.eps);
    args.factors.f32()[i] = static_cast<float>((ratio < 1 ? ratio : 1.0) / args.scale);
  }
}

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
           const Moment& moment1, const Moment& moment2) {
  check_stepped(stepped);
  check_moment("adamw", stepped, moment1);
  check_moment("adamw", stepped, moment2);
  require(moment1.values.dtype == moment2.values.dtype, "adamw: moments of two types");
  static_assert(kChunkElems % kBlock8 == 0 && kPieceElems % kBlock8 == 0);
  if (*control.finite.i32() == 0) return;
  const float factor = factor_of(control, stepped);
  const auto piece = HWY_DYNAMIC_DISPATCH(AdamWPiece);
  for_each_piece(pool, 1, stepped.params.elems(), [&](int64_t, int64_t begin, int64_t end) {
    piece(hyper, factor, range_of(stepped, begin, end), range_of(moment1, begin, end),
          range_of(moment2, begin, end));
  });
}

void sgd(ThreadPool& pool, const Sgd& hyper, const StepControl& control, const Stepped& stepped,
         Tensor momentum) {
  check_stepped(stepped);
  if (hyper.momentum != 0) {
    check_moment("sgd", stepped, momentum);
    require(momentum.dtype != DType::u8, "sgd: a momentum of 8 bits");
  }
  if (*control.finite.i32() == 0) return;
  const float factor = factor_of(control, stepped);
  const auto piece = HWY_DYNAMIC_DISPATCH(SgdPiece);
  for_each_piece(pool, 1, stepped.params.elems(), [&](int64_t, int64_t begin, int64_t end) {
    piece(hyper, factor, range_of(stepped, begin, end),
          hyper.momentum == 0 ? Tensor{} : piece_of(momentum.flat(), 0, begin, end));
  });
}

}  // namespace onefold::cpu
#endif
