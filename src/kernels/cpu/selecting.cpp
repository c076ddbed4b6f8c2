// Wire formats' loops that measure numbers, and that find those which sparse packets send.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/half.h"
#include "kernels/packing.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/selecting.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

uint32_t Largest(const float* values, size_t n) {
  const DF d;
  const DI di;
  VI most[4] = {hn::Zero(di), hn::Zero(di), hn::Zero(di), hn::Zero(di)};
  SweepBy4(n, [&](size_t i, auto io, auto k)
                  HWY_ATTR { most[k] = hn::Max(most[k], Magnitude(io.Load(d, values + i))); });
  const VI all = hn::Max(hn::Max(most[0], most[1]), hn::Max(most[2], most[3]));
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, all)));
}

template <bool kMagnitudes, bool kSquares>
HWY_INLINE Measures MeasureAll(const float* values, size_t n, double* magnitudes) {
  VI most[kVectors];
  for (size_t k = 0; k < kVectors; ++k) most[k] = hn::Zero(DI());
  Sums sizes, squares;
  HWY_ALIGN float rest[16] = {};
  for (size_t i = 0; i < n; i += 16) {
    const float* const at = SixteenAt(values, i, n, rest);
    for (size_t k = 0; k < kVectors; ++k) {
      const VF v = hn::LoadU(DF(), at + k * kLanes);
      most[k] = hn::Max(most[k], Magnitude(v));
      if constexpr (kMagnitudes) sizes.AddMagnitudes(k, v);
      if constexpr (kSquares) squares.AddSquares(k, v);
    }
  }
  for (size_t k = 1; k < kVectors; ++k) most[0] = hn::Max(most[0], most[k]);
  if constexpr (kMagnitudes) *magnitudes = sizes.Total();
  return {static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(DI(), most[0]))), squares.Total()};
}
Measures Measure(const float* values, size_t n) {
  return MeasureAll<false, true>(values, n, nullptr);
}
Measures MeasureSizes(const float* values, size_t n, double* magnitudes) {
  return MeasureAll<true, true>(values, n, magnitudes);
}
uint32_t LargestAndSum(const float* values, size_t n, double* magnitudes) {
  return MeasureAll<true, false>(values, n, magnitudes).largest;
}

// For each set of eight lanes these lanes, then 0. (Highway has them, in an array that GCC copies
// to the stack for each vector.)
constexpr auto kLanesOf = [] {
  std::array<std::array<uint8_t, 8>, 256> lists{};
  for (size_t set = 0; set < lists.size(); ++set)
    for (size_t lane = 0, count = 0; lane < 8; ++lane)
      if ((set >> lane & 1) != 0) lists[set][count++] = static_cast<uint8_t>(lane);
  return lists;
}();

// Places that were found, in order, and the numbers there. What is found in a vector is moved to
// its front and all of it is stored, so there is no branch that depends on the numbers. (Stores of
// a compressed vector by one instruction take AMD's cores a hundred cycles.)
class Found {
 public:
  HWY_INLINE Found(uint32_t first, uint32_t* places, float* numbers, size_t room)
      : first_(first), places_(places), numbers_(numbers), room_(room) {}
  HWY_INLINE size_t Count() const { return count_; }

  // Calls visit(sixteen numbers, place of the first) as long as there is room for all that it may
  // find: up to which place.
  template <class Visit>
  HWY_INLINE size_t Sweep(const float* values, size_t n, const Visit& visit) {
    constexpr size_t kStretch = 4096;  // the nearest cache still has it when numbers are taken
    HWY_ALIGN float rest[16] = {};
    size_t i = 0;
    while (i < n && count_ + 16 <= room_) {
      const size_t begin = count_;
      const size_t end = i + std::min({kStretch, n - i, room_ - count_}) / 16 * 16;
      for (; i < end; i += 16) visit(values + i, i);
      if (i < n && n - i < 16 && count_ + 16 <= room_) {
        visit(SixteenAt(values, i, n, rest), i);
        i = n;
      }
      for (size_t c = begin; c < count_; ++c) numbers_[c] = values[places_[c] - first_];
    }
    return i;
  }

  // Those of a vector that begins at place i: there is room for all of it.
  template <class Mask>
  HWY_INLINE void Add(Mask found, size_t i) {
    const DI di;
    const VI begin = hn::Set(di, static_cast<int32_t>(first_ + i));
#if HWY_TARGET <= HWY_AVX3
    const VI places = hn::Compress(hn::Add(lanes_, begin), found);
    const size_t count = hn::CountTrue(di, found);
#else
    uint8_t bits[8];
    hn::StoreMaskBits(di, found, bits);
    const VI lanes = hn::PromoteTo(di, hn::LoadU(D8(), kLanesOf[bits[0]].data()));
    const VI places = hn::Add(lanes, begin);
    const auto count = static_cast<size_t>(std::popcount(bits[0]));
#endif
    hn::StoreU(places, di, reinterpret_cast<int32_t*>(places_ + count_));
    count_ += count;
  }
  // One number, if there is room.
  HWY_INLINE bool AddOne(float number, size_t i) {
    if (count_ == room_) return false;
    numbers_[count_] = number;
    places_[count_++] = first_ + static_cast<uint32_t>(i);
    return true;
  }

 private:
  using D8 = hn::Rebind<uint8_t, DF>;
  const VI lanes_ = hn::Iota(DI(), 0);
  const uint32_t first_;
  uint32_t* const places_;
  float* const numbers_;
  const size_t room_;
  size_t count_ = 0;
};

template <bool kSquares>
HWY_INLINE FoundPlaces FindPlacesIn(const float* values, size_t n, uint32_t least, uint32_t first,
                                    uint32_t* places, float* numbers, size_t room) {
  const DF d;
  const VI below = hn::Set(DI(), static_cast<int32_t>(least) - 1);
  Found found(first, places, numbers, room);
  Sums others;
  size_t i = found.Sweep(values, n, [&](const float* at, size_t begin) HWY_ATTR {
    for (size_t k = 0; k < kVectors; ++k) {
      const VF v = hn::LoadU(d, at + k * kLanes);
      const auto large = hn::Gt(Magnitude(v), below);
      found.Add(large, begin + k * kLanes);
      if constexpr (kSquares) others.AddSquares(k, hn::IfThenZeroElse(hn::RebindMask(d, large), v));
    }
  });
  // Room for less than sixteen, or for none: one by one.
  VI most = hn::Zero(DI());
  for (; i < n; i += 16) {
    HWY_ALIGN float left[16] = {};
    std::memcpy(left, values + i, std::min<size_t>(16, n - i) * sizeof(float));
    if (found.Count() < room)
      for (size_t lane = 0; lane < 16; ++lane)
        if ((std::bit_cast<uint32_t>(left[lane]) & ~half::kSign) >= least &&
            found.AddOne(left[lane], i + lane))
          left[lane] = 0;
    for (size_t k = 0; k < kVectors; ++k) {
      const VF v = hn::Load(d, left + k * kLanes);
      most = hn::Max(most, Magnitude(v));
      if constexpr (kSquares) others.AddSquares(k, v);
    }
  }
  const auto largest = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(DI(), most)));
  const double unmeasured = largest < half::kInfinity ? 0 : std::numeric_limits<double>::infinity();
  return {static_cast<int64_t>(found.Count()), kSquares ? others.Total() : unmeasured};
}
FoundPlaces FindPlaces(const float* values, size_t n, uint32_t least, uint32_t first,
                       uint32_t* places, float* numbers, size_t room) {
  return FindPlacesIn<false>(values, n, least, first, places, numbers, room);
}
FoundPlaces FindAndMeasure(const float* values, size_t n, uint32_t least, uint32_t first,
                           uint32_t* places, float* numbers, size_t room) {
  return FindPlacesIn<true>(values, n, least, first, places, numbers, room);
}

// What a line has passed is a sum of whole numbers, and one more number fits. To these a number is
// rounded by the addition of 2^23, where floats have no fractions and their bits count up.
template <bool kSquares>
HWY_INLINE DrawnPlaces DrawPlacesIn(const float* values, size_t n, float level,
                                    const uint32_t* starts, uint32_t* places, float* numbers,
                                    size_t room) {
  const DF d;
  const DI di;
  const VF scale = hn::Set(d, static_cast<float>(kLine) / level), whole = hn::Set(d, 0x1p23f);
  const VI below = hn::Set(di, std::bit_cast<int32_t>(level) - 1);
  const VI last = hn::Set(di, static_cast<int32_t>(kLine) - 1);
  VI passed[kVectors];
  for (size_t k = 0; k < kVectors; ++k)
    passed[k] = hn::And(hn::LoadU(di, reinterpret_cast<const int32_t*>(starts) + k * kLanes), last);
  Found found(0, places, numbers, room);
  Sums others;
  const size_t end = found.Sweep(values, n, [&](const float* at, size_t begin) HWY_ATTR {
    for (size_t k = 0; k < kVectors; ++k) {
      const VF v = hn::LoadU(d, at + k * kLanes);
      const auto large = hn::Gt(Magnitude(v), below);
      const VF moved = hn::Add(hn::Mul(hn::Abs(v), scale), whole);
      const VI part = hn::Sub(hn::BitCast(di, moved), hn::BitCast(di, whole));
      passed[k] = hn::Add(passed[k], hn::IfThenZeroElse(large, part));
      const auto taken = hn::Or(large, hn::Gt(passed[k], last));
      passed[k] = hn::And(passed[k], last);
      found.Add(taken, begin + k * kLanes);
      if constexpr (kSquares) others.AddSquares(k, hn::IfThenZeroElse(hn::RebindMask(d, taken), v));
    }
  });
  DrawnPlaces drawn{.count = static_cast<int64_t>(found.Count()), .all = end == n, .ends = {}};
  if constexpr (kSquares) drawn.others = others.Total();
  for (size_t k = 0; k < kVectors; ++k)
    hn::StoreU(passed[k], di, reinterpret_cast<int32_t*>(drawn.ends.data()) + k * kLanes);
  return drawn;
}
DrawnPlaces DrawPlaces(const float* values, size_t n, float level, const uint32_t* starts,
                       uint32_t* places, float* numbers, size_t room) {
  return DrawPlacesIn<false>(values, n, level, starts, places, numbers, room);
}
DrawnPlaces DrawAndMeasure(const float* values, size_t n, float level, const uint32_t* starts,
                           uint32_t* places, float* numbers, size_t room) {
  return DrawPlacesIn<true>(values, n, level, starts, places, numbers, room);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onefold {
namespace cpu {
namespace {
HWY_EXPORT(Largest);
HWY_EXPORT(Measure);
HWY_EXPORT(MeasureSizes);
HWY_EXPORT(LargestAndSum);
HWY_EXPORT(FindPlaces);
HWY_EXPORT(FindAndMeasure);
HWY_EXPORT(DrawPlaces);
HWY_EXPORT(DrawAndMeasure);
}  // namespace
}  // namespace cpu

using namespace cpu;

uint32_t largest_magnitude(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(Largest)(values.data(), values.size());
}

uint32_t largest_magnitude(std::span<const float> values, double& magnitudes) {
  return HWY_DYNAMIC_DISPATCH(LargestAndSum)(values.data(), values.size(), &magnitudes);
}

Measures measure(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(Measure)(values.data(), values.size());
}

Measures measure(std::span<const float> values, double& magnitudes) {
  return HWY_DYNAMIC_DISPATCH(MeasureSizes)(values.data(), values.size(), &magnitudes);
}

FoundPlaces find_places(std::span<const float> values, uint32_t least, uint32_t first, Lost lost,
                        std::span<uint32_t> places, std::span<float> numbers) {
  require(least > 0, "find_places: every number is at least 0");
  require(numbers.size() >= places.size(), "find_places: {} places, room for {} numbers",
          places.size(), numbers.size());
  const auto find = [&](const auto& loop) {
    return loop(values.data(), values.size(), std::min(least, half::kInfinity), first,
                places.data(), numbers.data(), places.size());
  };
  return lost == Lost::measured ? find(HWY_DYNAMIC_DISPATCH(FindAndMeasure))
                                : find(HWY_DYNAMIC_DISPATCH(FindPlaces));
}

DrawnPlaces draw_places(std::span<const float> values, float level,
                        std::span<const uint32_t, 16> starts, Lost lost, std::span<uint32_t> places,
                        std::span<float> numbers) {
  require(level >= kLeastLevel && std::isfinite(level), "draw_places: a level of {}", level);
  require(numbers.size() >= places.size(), "draw_places: {} places, room for {} numbers",
          places.size(), numbers.size());
  const auto draw = [&](const auto& loop) {
    return loop(values.data(), values.size(), level, starts.data(), places.data(), numbers.data(),
                places.size());
  };
  return lost == Lost::measured ? draw(HWY_DYNAMIC_DISPATCH(DrawAndMeasure))
                                : draw(HWY_DYNAMIC_DISPATCH(DrawPlaces));
}

}  // namespace onefold
#endif
