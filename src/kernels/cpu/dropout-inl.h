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

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/philox.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {

using DU64 = hn::ScalableTag<uint64_t>;
using DU32 = hn::Repartition<uint32_t, DU64>;
using VU64 = hn::Vec<DU64>;

// One generator of multipliers for one key, sample and rate.
class KeepMask {
 public:
  KeepMask(PhiloxKey key, int64_t sample, float rate)
      : key_(key),
        sample_(static_cast<uint64_t>(sample)),
        // The comparison with the rate is exact on integers: rate * 2^24 is exact, and
        // philox_uniform is the upper 24 bits of a word over 2^24.
        threshold_(static_cast<int32_t>(std::ceil(rate * 0x1p24f))),
        scale_(1.0f / (1.0f - rate)) {}

  // dst[i] = the multiplier of element first + i, i in [0, count).
  HWY_INLINE void FillMultipliers(uint64_t first, size_t count, float* HWY_RESTRICT dst) const {
    constexpr size_t kGroup = 4 * hn::MaxLanes(DU64());  // elements from one vector of counters
    uint64_t block = first / 4;
    size_t done = 0;
    if (const size_t skip = first % 4; skip != 0 && count != 0) {
      HWY_ALIGN float group[kGroup];
      FillGroup(block, group);
      done = std::min(count, kGroup - skip);
      std::memcpy(dst, group + skip, done * sizeof(float));
      block += kGroup / 4;
    }
    for (; done + kGroup <= count; done += kGroup, block += kGroup / 4)
      FillGroup(block, dst + done);
    if (done < count) {
      HWY_ALIGN float group[kGroup];
      FillGroup(block, group);
      std::memcpy(dst + done, group, (count - done) * sizeof(float));
    }
  }

 private:
  // The multipliers of the 4 * Lanes elements from element 4 * block on.
  HWY_INLINE void FillGroup(uint64_t block, float* HWY_RESTRICT dst) const {
    const DU64 d;
    const VU64 blocks = hn::Add(hn::Set(d, block), hn::Iota(d, 0));
    VU64 words[4] = {blocks, hn::ShiftRight<32>(blocks), hn::Set(d, sample_),
                     hn::Set(d, sample_ >> 32)};
    Philox(words);
    // Lane i has words 0 .. 3 of block + i in the low halves of words[0 .. 3]: pack pairs, then
    // interleave the pairs in memory.
    const VU64 low = hn::Set(d, 0xFFFFFFFFu);
    const VU64 pair0 = hn::OrAnd(hn::ShiftLeft<32>(words[1]), words[0], low);
    const VU64 pair1 = hn::OrAnd(hn::ShiftLeft<32>(words[3]), words[2], low);
    hn::StoreInterleaved2(Multipliers(pair0), Multipliers(pair1), d,
                          reinterpret_cast<uint64_t*>(dst));
  }

  // Ten rounds, one counter to each 64-bit lane. Only the low half of a lane counts: MulEven reads
  // no more, so what is left in the high half needs no cleaning.
  HWY_INLINE void Philox(VU64 (&c)[4]) const {
    const DU64 d;
    const DU32 d32;
    const auto mul0 = hn::BitCast(d32, hn::Set(d, kPhiloxMul0));
    const auto mul1 = hn::BitCast(d32, hn::Set(d, kPhiloxMul1));
    uint32_t lo = key_.lo;
    uint32_t hi = key_.hi;
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const VU64 p0 = hn::MulEven(hn::BitCast(d32, c[0]), mul0);
      const VU64 p1 = hn::MulEven(hn::BitCast(d32, c[2]), mul1);
      c[0] = hn::Xor3(hn::ShiftRight<32>(p1), c[1], hn::Set(d, lo));
      c[1] = p1;
      c[2] = hn::Xor3(hn::ShiftRight<32>(p0), c[3], hn::Set(d, hi));
      c[3] = p0;
      lo += kPhiloxWeyl0;
      hi += kPhiloxWeyl1;
    }
  }

  HWY_INLINE VU64 Multipliers(VU64 words) const {
    const hn::RebindToSigned<DU32> d;
    const DF df;
    const auto upper = hn::BitCast(d, hn::ShiftRight<8>(hn::BitCast(DU32(), words)));
    const auto dropped = hn::Lt(upper, hn::Set(d, threshold_));
    const VF multipliers = hn::IfThenZeroElse(hn::RebindMask(df, dropped), hn::Set(df, scale_));
    return hn::BitCast(DU64(), multipliers);
  }

  PhiloxKey key_;
  uint64_t sample_;
  int32_t threshold_;
  float scale_;
};

}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#endif
