// Dropout's keep mask, vectorised. The scalar contract, which any other implementation must match:
//
//   words = philox(key, {lo32(e / 4), hi32(e / 4), lo32(s), hi32(s)})   for element e of sample s
//   kept  = philox_uniform(words[e % 4]) >= rate
//   multiplier = kept ? 1 / (1 - rate) : 0
//
// KeepMask(key, s, rate).FillMultipliers(e, count, dst) writes those of `count` consecutive
// elements from any first element on; 0 <= rate < 1.
#if defined(ONEFOLD_KERNELS_CPU_DROPOUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEFOLD_KERNELS_CPU_DROPOUT_INL_H_
#undef ONEFOLD_KERNELS_CPU_DROPOUT_INL_H_
#else
#define ONEFOLD_KERNELS_CPU_DROPOUT_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include "kernels/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {

// One generator of multipliers for one key, sample and rate.
class KeepMask {
 public:
  KeepMask(PhiloxKey key, int64_t sample, float rate)
      : words_(key, static_cast<uint64_t>(sample)),
        // The comparison with the rate is exact on integers: rate * 2^24 is exact, and
        // philox_uniform is the upper 24 bits of a word over 2^24.
        threshold_(static_cast<int32_t>(std::ceil(rate * 0x1p24f))),
        scale_(1.0f / (1.0f - rate)) {}

  // dst[i] = the multiplier of element first + i, i in [0, count).
  HWY_INLINE void FillMultipliers(uint64_t first, size_t count, float* HWY_RESTRICT dst) const {
    words_.Fill(
        first, count, [this](VU64 words) HWY_ATTR { return Multipliers(words); }, dst);
  }

 private:
  HWY_INLINE VU64 Multipliers(VU64 words) const {
    const hn::RebindToSigned<DU32> d;
    const DF df;
    const auto upper = hn::BitCast(d, hn::ShiftRight<8>(hn::BitCast(DU32(), words)));
    const auto dropped = hn::Lt(upper, hn::Set(d, threshold_));
    const VF multipliers = hn::IfThenZeroElse(hn::RebindMask(df, dropped), hn::Set(df, scale_));
    return hn::BitCast(DU64(), multipliers);
  }

  RandomWords words_;
  int32_t threshold_;
  float scale_;
};

}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#endif
