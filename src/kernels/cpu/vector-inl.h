// Loops over vectors with a partial one at the end, for all -inl headers and kernels. A loop body
// is written once, as a function of (index, io): io.Load and io.Store move a whole vector, or only
// the first lanes of one, so no byte outside the array is touched and the tail is computed by the
// same arithmetic as the rest. Bits therefore do not depend on where a vector starts.
//
// Elements of 16 bits are widened as they are loaded and rounded to the nearest even as they are
// stored (half-inl.h), so that a body computes on floats whatever its arrays hold.
#if defined(ONEFOLD_KERNELS_CPU_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEFOLD_KERNELS_CPU_VECTOR_INL_H_
#undef ONEFOLD_KERNELS_CPU_VECTOR_INL_H_
#else
#define ONEFOLD_KERNELS_CPU_VECTOR_INL_H_
#endif

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

// A whole vector.
struct Whole {
  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, const hn::TFromD<D>* from) const {
    return hn::LoadU(d, from);
  }
  template <class D>
  HWY_INLINE void Store(hn::Vec<D> v, D d, hn::TFromD<D>* to) const {
    hn::StoreU(v, d, to);
  }
  template <class D, class Half, HalfTag<Half>* = nullptr>
  HWY_INLINE hn::Vec<D> Load(D d, const Half* from) const {
    const hn::Rebind<uint16_t, D> du16;
    return Widened(d, hn::LoadU(du16, Bits(from)), Half());
  }
  template <class D, class Half, HalfTag<Half>* = nullptr>
  HWY_INLINE void Store(hn::Vec<D> v, D d, Half* to) const {
    StoreBits(Narrowed(d, v, Half()), d, to);
  }
  // What was narrowed in another way.
  template <class D, class Half, HalfTag<Half>* = nullptr>
  HWY_INLINE void StoreBits(VecOf16<D> bits, D, Half* to) const {
    hn::StoreU(bits, hn::Rebind<uint16_t, D>(), Bits(to));
  }
  // v with zeros beyond the end: what a sum may add.
  template <class D>
  HWY_INLINE hn::Vec<D> OnlyValid(D, hn::Vec<D> v) const {
    return v;
  }
};

// The first `count` lanes of a vector; lanes beyond them load as zero.
struct Part {
  size_t count;

  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, const hn::TFromD<D>* from) const {
#if HWY_MEM_OPS_MIGHT_FAULT  // a masked load of this target reads the whole vector
    HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(d)] = {};
    std::memcpy(lanes, from, count * sizeof(lanes[0]));
    return hn::Load(d, lanes);
#else
    return hn::MaskedLoad(hn::FirstN(d, count), d, from);
#endif
  }
  template <class D>
  HWY_INLINE void Store(hn::Vec<D> v, D d, hn::TFromD<D>* to) const {
#if HWY_MEM_OPS_MIGHT_FAULT
    HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(d)];
    hn::Store(v, d, lanes);
    std::memcpy(to, lanes, count * sizeof(lanes[0]));
#else
    hn::BlendedStore(v, hn::FirstN(d, count), d, to);
#endif
  }
  // Few targets can mask lanes of 16 bits: through memory.
  template <class D, class Half, HalfTag<Half>* = nullptr>
  HWY_INLINE hn::Vec<D> Load(D d, const Half* from) const {
    const hn::Rebind<uint16_t, D> du16;
    HWY_ALIGN uint16_t lanes[hn::MaxLanes(d)] = {};
    std::memcpy(lanes, from, count * sizeof(lanes[0]));
    return Widened(d, hn::Load(du16, lanes), Half());
  }
  template <class D, class Half, HalfTag<Half>* = nullptr>
  HWY_INLINE void Store(hn::Vec<D> v, D d, Half* to) const {
    StoreBits(Narrowed(d, v, Half()), d, to);
  }
  template <class D, class Half, HalfTag<Half>* = nullptr>
  HWY_INLINE void StoreBits(VecOf16<D> bits, D d, Half* to) const {
    HWY_ALIGN uint16_t lanes[hn::MaxLanes(d)];
    hn::Store(bits, hn::Rebind<uint16_t, D>(), lanes);
    std::memcpy(to, lanes, count * sizeof(lanes[0]));
  }
  template <class D>
  HWY_INLINE hn::Vec<D> OnlyValid(D d, hn::Vec<D> v) const {
    return hn::IfThenElseZero(hn::FirstN(d, count), v);
  }
};

// body(i, io) for each vector of an array of n floats.
template <class Body>
HWY_INLINE void Sweep(size_t n, const Body& body) {
  const size_t lanes = hn::Lanes(DF());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) body(i, Whole{});
  if (i < n) body(i, Part{n - i});
}

// The same, four vectors at a time: body(i, io, k) with k = 0, 1, 2, 3 a compile-time number, so
// that a sum can keep four independent accumulators.
template <class Body>
HWY_INLINE void SweepBy4(size_t n, const Body& body) {
  const size_t lanes = hn::Lanes(DF());
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    body(i, Whole{}, std::integral_constant<int, 0>());
    body(i + lanes, Whole{}, std::integral_constant<int, 1>());
    body(i + 2 * lanes, Whole{}, std::integral_constant<int, 2>());
    body(i + 3 * lanes, Whole{}, std::integral_constant<int, 3>());
  }
  for (; i + lanes <= n; i += lanes) body(i, Whole{}, std::integral_constant<int, 0>());
  if (i < n) body(i, Part{n - i}, std::integral_constant<int, 1>());
}

// The sum of all lanes of four accumulators.
HWY_INLINE float Total(const VF (&sums)[4]) {
  const DF d;
  return hn::GetLane(
      hn::SumOfLanes(d, hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]))));
}

}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#endif
