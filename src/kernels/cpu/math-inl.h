// exp, sigmoid and the normal distribution on vectors of float. Errors are measured over all
// exponents by tests/kernels/math_test.cpp and written at each function.
#if defined(ONEFOLD_KERNELS_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEFOLD_KERNELS_CPU_MATH_INL_H_
#undef ONEFOLD_KERNELS_CPU_MATH_INL_H_
#else
#define ONEFOLD_KERNELS_CPU_MATH_INL_H_
#endif

#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {

// e^x within 2 ulp; 0 below -86.9 (no denormals), infinity above 88.72, NaN for NaN; exactly 1 at
// 0.
//
// x = n ln2 + r, |r| <= ln2 / 2; e^r = 1 + r + r² P(r) with P minimax of degree 4 (8e-9 relative).
// Where the scale is a factor, the polynomial below is twice that and the scale 2^(n-1), so that n
// = 128 still has a finite scale; where an instruction scales by powers of two, it is e^r, and bits
// are the same. kNoOverflow: of what is known to be below 88.72.
inline constexpr bool kNoOverflow = false;
template <bool kMayOverflow = true, class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V log2e = hn::Set(d, 1.44269504088896341f);
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits: no conversion needed.
  const V magic = hn::Set(d, 12582912.0f);
  const V shifted = hn::MulAdd(x, log2e, magic);
  const V n = hn::Sub(shifted, magic);
  // ln2 in two parts; n times the first is exact, with or without FMA.
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);

#if HWY_TARGET == HWY_AVX3
  constexpr float kTimes = 0.5f;
#else
  constexpr float kTimes = 1.0f;
#endif
  V p = hn::Set(d, kTimes * 0.002780306431f);
  p = hn::MulAdd(p, r, hn::Set(d, kTimes * 0.01672747974f));
  p = hn::MulAdd(p, r, hn::Set(d, kTimes * 0.08333372192f));
  p = hn::MulAdd(p, r, hn::Set(d, kTimes * 0.3333314739f));
  p = hn::MulAdd(p, r, hn::Set(d, kTimes * 0.9999999905f));
  const V first = hn::Set(d, kTimes * 2.0f);
  p = hn::MulAdd(hn::MulAdd(p, r, first), r, first);

#if HWY_TARGET == HWY_AVX3
  if constexpr (kMayOverflow) {
    const V inf = hn::BitCast(d, hn::Set(di, 0x7F800000));
    p = hn::IfThenElse(hn::Gt(x, hn::Set(d, 88.72283f)), inf, p);
  }
  const __mmask16 normal = _mm512_cmp_ps_mask(x.raw, _mm512_set1_ps(-86.9f), _CMP_NLT_UQ);
  return V{_mm512_maskz_scalef_ps(normal, p.raw, n.raw)};
#else
  const V scale = hn::BitCast(
      d, hn::Add(hn::ShiftLeft<23>(hn::BitCast(di, shifted)), hn::Set(di, int32_t{126} << 23)));
  // A product, not integer arithmetic on p's exponent, so that NaN stays NaN.
  V e = hn::Mul(p, scale);
  if constexpr (kMayOverflow) {
    const V inf = hn::BitCast(d, hn::Set(di, 0x7F800000));
    e = hn::IfThenElse(hn::Gt(x, hn::Set(d, 88.72283f)), inf, e);
  }
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -86.9f)), e);
#endif
}

// 1 / (1 + e^-x) within 3 ulp while it is above 2^-125. tanh(x) = 2 Sigmoid(2x) - 1, but its users
// are better off with the sigmoid: 1 + tanh(x) has no cancellation then.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, Exp(d, hn::Neg(x))));
}

// Within 5 ulp; NaN for NaN. Near 0 as x + x³ P(x²), P being minimax of degree 4 on [0, 0.4], for
// 1 - 2 / (e^2x + 1) cancels there.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Tanh(D d, V x) {
  const V size = hn::Abs(x), square = hn::Mul(x, x), one = hn::Set(d, 1.0f);
  V p = hn::Set(d, -0.00605371780f);
  p = hn::MulAdd(p, square, hn::Set(d, 0.0209682044f));
  p = hn::MulAdd(p, square, hn::Set(d, -0.0538449958f));
  p = hn::MulAdd(p, square, hn::Set(d, 0.133327335f));
  p = hn::MulAdd(p, square, hn::Set(d, -0.333333284f));
  const V near = hn::MulAdd(size, hn::Mul(square, p), size);
  const V far = hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(Exp(d, hn::Add(size, size)), one)));
  const V result = hn::IfThenElse(hn::Lt(size, hn::Set(d, 0.625f)), near, far);
  return hn::CopySignToAbs(result, x);
}

// The standard normal distribution function within 6 ulp, and its density `pdf`.
//
// For a = |x|, Φ(-a) = e^(-a²/2) M(a), where s = 1 / (1 + 0.35 a) and M = s Q(s), Q minimax of
// degree 8 (3.2e-8 relative on [0, 13.3]). Against 0.5 (1 + erf(x/√2)) this costs no more, keeps
// relative accuracy in the lower tail, and has the exponential that the derivative of GELU needs
// anyway.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V NormalCdf(D d, V x, V& pdf) {
  const V one = hn::Set(d, 1.0f);
  // Beyond 13.2 e^(-a²/2) is 0. The order of arguments keeps NaN.
  const V a = hn::Min(hn::Set(d, 13.3f), hn::Abs(x));
  const V square = hn::Mul(a, a);
#if HWY_NATIVE_FMA
  const V rest = hn::MulSub(a, a, square);  // what rounding took from the square
#else
  const V rest = hn::Zero(d);
#endif
  const V half = hn::Set(d, 0.5f);
  V e = Exp(d, hn::Mul(hn::Neg(half), square));
  e = hn::NegMulAdd(hn::Mul(half, rest), e, e);

  const V s = hn::Div(one, hn::MulAdd(hn::Set(d, 0.35f), a, one));
  V q = hn::Set(d, -0.02911502672f);
  q = hn::MulAdd(q, s, hn::Set(d, 0.1438184649f));
  q = hn::MulAdd(q, s, hn::Set(d, -0.2553910987f));
  q = hn::MulAdd(q, s, hn::Set(d, 0.1587966467f));
  q = hn::MulAdd(q, s, hn::Set(d, -0.0228434727f));
  q = hn::MulAdd(q, s, hn::Set(d, 0.1053921623f));
  q = hn::MulAdd(q, s, hn::Set(d, 0.1198630857f));
  q = hn::MulAdd(q, s, hn::Set(d, 0.1398575624f));
  q = hn::MulAdd(q, s, hn::Set(d, 0.1396216603f));

  const V lower = hn::Mul(hn::Mul(q, s), e);  // Φ(-a)
  pdf = hn::Mul(e, hn::Set(d, 0.3989422804f));
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), lower, hn::Sub(one, lower));
}

}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#endif
