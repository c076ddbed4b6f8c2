// Philox, vectorised: for element e of sample s
//
//   words = philox(key, {lo32(e / 4), hi32(e / 4), lo32(s), hi32(s)}),   word e % 4 of them
//
// RandomWords(key, s).Fill(e, count, map, dst) writes what `map` makes of the words of `count`
// consecutive elements, from any first element on.
#if defined(ONEFOLD_KERNELS_CPU_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEFOLD_KERNELS_CPU_PHILOX_INL_H_
#undef ONEFOLD_KERNELS_CPU_PHILOX_INL_H_
#else
#define ONEFOLD_KERNELS_CPU_PHILOX_INL_H_
#endif

#include <algorithm>
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

class RandomWords {
 public:
  RandomWords(PhiloxKey key, uint64_t sample) : key_(key), sample_(sample) {}

  // map: pairs of words in 64-bit lanes to pairs of T, which is of 32 bits.
  template <class T, class Map>
  HWY_INLINE void Fill(uint64_t first, size_t count, const Map& map, T* HWY_RESTRICT dst) const {
    constexpr size_t kGroup = 4 * hn::MaxLanes(DU64());  // elements from one vector of counters
    uint64_t block = first / 4;
    size_t done = 0;
    if (const size_t skip = first % 4; skip != 0 && count != 0) {
      HWY_ALIGN T group[kGroup];
      FillGroup(block, map, group);
      done = std::min(count, kGroup - skip);
      std::memcpy(dst, group + skip, done * sizeof(T));
      block += kGroup / 4;
    }
    for (; done + kGroup <= count; done += kGroup, block += kGroup / 4)
      FillGroup(block, map, dst + done);
    if (done < count) {
      HWY_ALIGN T group[kGroup];
      FillGroup(block, map, group);
      std::memcpy(dst + done, group, (count - done) * sizeof(T));
    }
  }

 private:
  // Of the 4 * Lanes elements from element 4 * block on.
  template <class T, class Map>
  HWY_INLINE void FillGroup(uint64_t block, const Map& map, T* HWY_RESTRICT dst) const {
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
    hn::StoreInterleaved2(map(pair0), map(pair1), d, reinterpret_cast<uint64_t*>(dst));
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

  PhiloxKey key_;
  uint64_t sample_;
};

// Calls visit(i, io, factors) for vectors of elements [i, ...) below n. The factors that
// fill(begin, count, dst) draws pass through a buffer in the first-level cache, a block at a time.
template <class Fill, class Visit>
HWY_INLINE void SweepWithFactors(size_t n, const Fill& fill, const Visit& visit) {
  constexpr size_t kBlock = 1024;
  const DF d;
  HWY_ALIGN float factors[kBlock];
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t count = std::min(kBlock, n - begin);
    fill(begin, count, factors);
    Sweep(count,
          [&](size_t i, auto io) HWY_ATTR { visit(begin + i, io, io.Load(d, factors + i)); });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#endif
