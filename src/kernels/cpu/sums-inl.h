// Sums of fp32 numbers in double, with the same bits on every SIMD target, and magnitudes as bits:
// what the loops of wire formats share.
#if defined(ONEFOLD_KERNELS_CPU_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEFOLD_KERNELS_CPU_SUMS_INL_H_
#undef ONEFOLD_KERNELS_CPU_SUMS_INL_H_
#else
#define ONEFOLD_KERNELS_CPU_SUMS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {

using DI = hn::RebindToSigned<DF>;
using DW = hn::RebindToUnsigned<DF>;
using VI = hn::Vec<DI>;
using VW = hn::Vec<DW>;

HWY_INLINE VI Magnitude(VF v) {
  const DI di;
  return hn::And(hn::BitCast(di, v), hn::Set(di, 0x7FFFFFFF));
}

// Sixteen numbers are taken at a time, whatever the width of vectors; the last ones of an array by
// way of a copy. So loops have one body, whose sums stay in registers.
constexpr size_t kLanes = hn::MaxLanes(DF()), kVectors = 16 / kLanes;
static_assert(kVectors * kLanes == 16);

HWY_INLINE const float* SixteenAt(const float* values, size_t i, size_t n, float* rest) {
  if (i + 16 <= n) return values + i;
  std::memcpy(rest, values + i, (n - i) * sizeof(float));
  return rest;
}

// Sums in double of every sixteenth number, and their sum by a tree. A square of an fp32 number is
// exact in double: fused or not, the bits are the same.
class Sums {
 public:
  HWY_INLINE Sums() {
    for (size_t k = 0; k < 2 * kVectors; ++k) sums_[k] = hn::Zero(DD());
  }
  // Of vector k of sixteen numbers.
  HWY_INLINE void AddSquares(size_t k, VF v) {
    const auto low = Lower(v), upper = Upper(v);
    sums_[2 * k] = hn::MulAdd(low, low, sums_[2 * k]);
    sums_[2 * k + 1] = hn::MulAdd(upper, upper, sums_[2 * k + 1]);
  }
  HWY_INLINE void AddMagnitudes(size_t k, VF v) {
    sums_[2 * k] = hn::Add(sums_[2 * k], hn::Abs(Lower(v)));
    sums_[2 * k + 1] = hn::Add(sums_[2 * k + 1], hn::Abs(Upper(v)));
  }
  // Element i and element i + 8, i + 4, and so on.
  HWY_INLINE double Total() const {
    hn::Vec<DD> left[2 * kVectors];
    for (size_t k = 0; k < 2 * kVectors; ++k) left[k] = sums_[k];
    for (size_t half = kVectors; half > 0; half /= 2)
      for (size_t k = 0; k < half; ++k) left[k] = hn::Add(left[k], left[k + half]);
    HWY_ALIGN double parts[hn::MaxLanes(DD())];
    hn::Store(left[0], DD(), parts);
    for (size_t half = hn::MaxLanes(DD()) / 2; half > 0; half /= 2)
      for (size_t i = 0; i < half; ++i) parts[i] += parts[i + half];
    return parts[0];
  }

 private:
  using DD = hn::Repartition<double, DF>;
  using DHalf = hn::Half<DF>;
  static HWY_INLINE hn::Vec<DD> Lower(VF v) {
    return hn::PromoteTo(DD(), hn::LowerHalf(DHalf(), v));
  }
  static HWY_INLINE hn::Vec<DD> Upper(VF v) {
    return hn::PromoteTo(DD(), hn::UpperHalf(DHalf(), v));
  }
  hn::Vec<DD> sums_[2 * kVectors];
};

}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#endif
