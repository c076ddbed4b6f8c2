// Vectors of bf16 and f16 to float and back, with the bits of base/half.h (of a NaN, only that it
// is one). Highway's own conversions are used where they are the processor's; its bf16 is truncated
// and its f16 on SSE4 takes infinities for numbers, so those are ours.
#if defined(ONEFOLD_KERNELS_CPU_HALF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEFOLD_KERNELS_CPU_HALF_INL_H_
#undef ONEFOLD_KERNELS_CPU_HALF_INL_H_
#else
#define ONEFOLD_KERNELS_CPU_HALF_INL_H_
#endif

#include <type_traits>

#include "base/half.h"
#include "kernels/cpu/targets.h"
// After targets.h, which configures it.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// For templates that take pointers to Bf16 or F16 alone.
template <class Half>
using HalfTag = std::enable_if_t<std::is_same_v<Half, Bf16> || std::is_same_v<Half, F16>>;

template <class Half>
HWY_INLINE const uint16_t* Bits(const Half* from) {
  return reinterpret_cast<const uint16_t*>(from);
}
template <class Half>
HWY_INLINE uint16_t* Bits(Half* to) {
  return reinterpret_cast<uint16_t*>(to);
}

template <class D>
using VecOf16 = hn::Vec<hn::Rebind<uint16_t, D>>;

template <class D>
HWY_INLINE hn::Vec<D> Widened(D d, VecOf16<D> bits, Bf16) {
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
}

template <class D>
HWY_INLINE VecOf16<D> Narrowed(D, hn::Vec<D> v, Bf16) {
#if HWY_TARGET == HWY_AVX3
  // The same by masks, and the upper halves by one permutation: half as many instructions, of which
  // what is stored in 16 bits has had more than of arithmetic.
  const __m512i bits = _mm512_castps_si512(v.raw);
  const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  const __mmask16 nan = _mm512_cmp_ps_mask(v.raw, v.raw, _CMP_UNORD_Q);
  __m512i wide = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF));
  wide = _mm512_mask_add_epi32(wide, odd, bits, _mm512_set1_epi32(0x8000));
  wide = _mm512_mask_or_epi32(wide, nan, bits, _mm512_set1_epi32(0x400000));
  alignas(64) static constexpr uint16_t kUpper[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                      23, 25, 27, 29, 31, 1,  3,  5,  7,  9,  11,
                                                      13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
  const __m512i upper = _mm512_permutexvar_epi16(_mm512_load_si512(kUpper), wide);
  return VecOf16<D>{_mm512_castsi512_si256(upper)};
#else
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint16_t, D> du16;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto nearest = hn::Add(hn::Add(bits, hn::Set(du, 0x7FFF)), odd);
  // A NaN would be rounded to infinity, or to zero.
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
  const auto wide = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, nearest);
  return hn::DemoteTo(du16, hn::BitCast(di, hn::ShiftRight<16>(wide)));
#endif
}

template <class D>
HWY_INLINE hn::Vec<D> Widened(D d, VecOf16<D> bits, F16) {
#if HWY_TARGET == HWY_SSE4
  const hn::RebindToUnsigned<D> du;
  const auto wide = hn::PromoteTo(du, bits);
  const auto magnitude = hn::And(wide, hn::Set(du, 0x7FFF));
  // An exponent that is 112 too small, also for subnormals: the product is exact.
  const auto value = hn::Mul(hn::BitCast(d, hn::ShiftLeft<13>(magnitude)), hn::Set(d, 0x1p112f));
  const auto special = hn::Gt(hn::BitCast(hn::RebindToSigned<D>(), magnitude),
                              hn::Set(hn::RebindToSigned<D>(), 0x7BFF));
  const auto infinite = hn::IfThenElseZero(hn::RebindMask(du, special), hn::Set(du, 0x7F800000));
  const auto sign = hn::ShiftLeft<16>(hn::And(wide, hn::Set(du, 0x8000)));
  return hn::BitCast(d, hn::Or(hn::Or(hn::BitCast(du, value), infinite), sign));
#else
  const hn::Rebind<hwy::float16_t, D> dh;
  return hn::PromoteTo(d, hn::BitCast(dh, bits));
#endif
}

template <class D>
HWY_INLINE VecOf16<D> Narrowed(D d, hn::Vec<D> v, F16) {
  const hn::Rebind<uint16_t, D> du16;
#if HWY_TARGET == HWY_SSE4
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(du, v);
  const auto magnitude = hn::BitCast(di, hn::And(bits, hn::Set(du, 0x7FFFFFFF)));
  // Below 2^-14: adding 0.5, whose last place is 2^-24, rounds to a multiple of that.
  const auto half = hn::Set(d, 0.5f);
  const auto small =
      hn::Sub(hn::BitCast(di, hn::Add(hn::BitCast(d, magnitude), half)), hn::BitCast(di, half));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(di, 1));
  const auto rounded = hn::Add(hn::Sub(magnitude, hn::Set(di, (112 << 23) - 0xFFF)), odd);
  const auto normal = hn::Min(hn::ShiftRight<13>(rounded), hn::Set(di, 0x7C00));
  const auto finite = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x38800000)), small, normal);
  const auto nan = hn::RebindMask(di, hn::IsNaN(v));
  const auto sign = hn::BitCast(di, hn::ShiftRight<16>(hn::And(bits, hn::Set(du, 0x80000000u))));
  return hn::DemoteTo(du16, hn::Or(hn::IfThenElse(nan, hn::Set(di, 0x7E00), finite), sign));
#else
  const hn::Rebind<hwy::float16_t, D> dh;
  return hn::BitCast(du16, hn::DemoteTo(dh, v));
#endif
}

// To the neighbour that a random word for each lane chooses (f32_to_bf16_drawn).
template <class D>
HWY_INLINE VecOf16<D> Drawn(D, hn::Vec<D> v, hn::Vec<hn::RebindToUnsigned<D>> words, Bf16) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint16_t, D> du16;
  const auto bits = hn::BitCast(du, v);
  const auto chosen = hn::Add(bits, hn::ShiftRight<16>(words));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
  const auto wide = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, chosen);
  return hn::DemoteTo(du16, hn::BitCast(di, hn::ShiftRight<16>(wide)));
}

// One by one: parameters of f16 without a master are rare.
template <class D>
HWY_INLINE VecOf16<D> Drawn(D d, hn::Vec<D> v, hn::Vec<hn::RebindToUnsigned<D>> words, F16) {
  HWY_ALIGN float values[hn::MaxLanes(d)];
  HWY_ALIGN uint32_t random[hn::MaxLanes(d)];
  HWY_ALIGN uint16_t bits[hn::MaxLanes(d)];
  hn::Store(v, d, values);
  hn::Store(words, hn::RebindToUnsigned<D>(), random);
  for (size_t i = 0; i < hn::MaxLanes(d); ++i) bits[i] = f32_to_f16_drawn(values[i], random[i]);
  return hn::Load(hn::Rebind<uint16_t, D>(), bits);
}

}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#endif
