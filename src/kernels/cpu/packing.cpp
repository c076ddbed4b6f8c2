// Wire formats' loops: magnitudes, places, codes.
#include "kernels/packing.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/half.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/packing.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/philox-inl.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

using DI = hn::RebindToSigned<DF>;
using DW = hn::RebindToUnsigned<DF>;
using D8 = hn::Rebind<uint8_t, DF>;
using VI = hn::Vec<DI>;
using VW = hn::Vec<DW>;

HWY_INLINE VI Magnitude(VF v) {
  const DI di;
  return hn::And(hn::BitCast(di, v), hn::Set(di, 0x7FFFFFFF));
}

uint32_t Largest(const float* values, size_t n) {
  const DF d;
  const DI di;
  VI most[4] = {hn::Zero(di), hn::Zero(di), hn::Zero(di), hn::Zero(di)};
  SweepBy4(n, [&](size_t i, auto io, auto k)
                  HWY_ATTR { most[k] = hn::Max(most[k], Magnitude(io.Load(d, values + i))); });
  const VI all = hn::Max(hn::Max(most[0], most[1]), hn::Max(most[2], most[3]));
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, all)));
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

template <bool kMagnitudes>
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
      squares.AddSquares(k, v);
    }
  }
  for (size_t k = 1; k < kVectors; ++k) most[0] = hn::Max(most[0], most[k]);
  if constexpr (kMagnitudes) *magnitudes = sizes.Total();
  return {static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(DI(), most[0]))), squares.Total()};
}
Measures Measure(const float* values, size_t n) { return MeasureAll<false>(values, n, nullptr); }
Measures MeasureSizes(const float* values, size_t n, double* magnitudes) {
  return MeasureAll<true>(values, n, magnitudes);
}

void MeasureParts(const float* values, size_t n, PartMeasures* parts) {
  HWY_ALIGN float rest[16] = {};
  for (size_t i = 0; i < n; i += 16, ++parts) {
    const float* const at = SixteenAt(values, i, n, rest);
    VI most = hn::Zero(DI());
    Sums magnitudes;
    for (size_t k = 0; k < kVectors; ++k) {
      const VF v = hn::LoadU(DF(), at + k * kLanes);
      most = hn::Max(most, Magnitude(v));
      magnitudes.AddMagnitudes(k, v);
    }
    parts->largest = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(DI(), most)));
    parts->magnitudes = magnitudes.Total();
  }
}

// Most vectors have nothing that is looked for. (A compression of each vector's numbers, without a
// branch, was a quarter as fast.)
FoundPlaces FindPlaces(const float* values, size_t n, uint32_t least, uint32_t first,
                       uint32_t* places, float* numbers, size_t room) {
  const DF d;
  const DI di;
  const VI below = hn::Set(di, static_cast<int32_t>(least) - 1);
  size_t count = 0;
  Sums others;
  HWY_ALIGN float rest[16] = {};
  for (size_t i = 0; i < n; i += 16) {
    const float* const at = SixteenAt(values, i, n, rest);
    for (size_t k = 0; k < kVectors; ++k) {
      VF v = hn::LoadU(d, at + k * kLanes);
      const auto found = hn::Gt(Magnitude(v), below);
      if (!hn::AllFalse(di, found)) {
        // Without the numbers for which there is room.
        uint8_t bytes[8] = {};
        hn::StoreMaskBits(di, found, bytes);
        uint64_t bits = 0;
        std::memcpy(&bits, bytes, sizeof(bits));
        uint64_t left = bits;
        for (; left != 0 && count < room; left &= left - 1, ++count) {
          const size_t lane = k * kLanes + static_cast<size_t>(std::countr_zero(left));
          places[count] = first + static_cast<uint32_t>(i + lane);
          numbers[count] = at[lane];
        }
        bits ^= left;
        std::memcpy(bytes, &bits, sizeof(bits));
        v = hn::IfThenZeroElse(hn::LoadMaskBits(d, bytes), v);
      }
      others.AddSquares(k, v);
    }
  }
  return {static_cast<int64_t>(count), others.Total()};
}

void FoldGradient(const float* gradient, float scale, float momentum, float* velocity, float* kept,
                  size_t n) {
  const DF d;
  const VF factor = hn::Set(d, scale), mu = hn::Set(d, momentum);
  Sweep(n, [&](size_t i, auto io) HWY_ATTR {
    VF given = hn::Mul(io.Load(d, gradient + i), factor);
    if (velocity) {
      given = hn::Add(given, hn::Mul(mu, io.Load(d, velocity + i)));
      io.Store(given, d, velocity + i);
    }
    io.Store(hn::Add(io.Load(d, kept + i), given), d, kept + i);
  });
}

void DrawWords(PhiloxKey key, uint64_t first, uint32_t* words, size_t n) {
  RandomWords(key, 0).Fill(
      first, n, [](VU64 pair) HWY_ATTR { return pair; }, words);
}

// What is left of a number that was sent as `decoded`.
HWY_INLINE VF Left(VF value, VF decoded) {
  const VF left = hn::Sub(value, decoded);
  return hn::IfThenElseZero(hn::IsFinite(left), left);
}

template <Apply kHow, class Io>
HWY_INLINE void Put(const Io& io, VF decoded, float* dst) {
  const DF d;
  if constexpr (kHow == Apply::set) {
    io.Store(decoded, d, dst);
  } else if constexpr (kHow == Apply::add) {
    io.Store(hn::Add(io.Load(d, dst), decoded), d, dst);
  } else {
    io.Store(Left(io.Load(d, dst), decoded), d, dst);
  }
}

// Loop(how), with `how` a compile-time constant.
template <class Loop>
HWY_INLINE void WithApply(Apply how, const Loop& loop) {
  if (how == Apply::set)
    loop(std::integral_constant<Apply, Apply::set>());
  else if (how == Apply::add)
    loop(std::integral_constant<Apply, Apply::add>());
  else
    loop(std::integral_constant<Apply, Apply::subtract>());
}

// Bytes of a vector's lanes; of a part through memory, as few targets can mask them.
HWY_INLINE hn::Vec<D8> LoadBytes(Whole, const uint8_t* from) { return hn::LoadU(D8(), from); }
HWY_INLINE hn::Vec<D8> LoadBytes(Part part, const uint8_t* from) {
  HWY_ALIGN uint8_t lanes[hn::MaxLanes(D8())] = {};
  std::memcpy(lanes, from, part.count);
  return hn::Load(D8(), lanes);
}
HWY_INLINE void StoreBytes(Whole, hn::Vec<D8> v, uint8_t* to) { hn::StoreU(v, D8(), to); }
HWY_INLINE void StoreBytes(Part part, hn::Vec<D8> v, uint8_t* to) {
  HWY_ALIGN uint8_t lanes[hn::MaxLanes(D8())];
  hn::Store(v, D8(), lanes);
  std::memcpy(to, lanes, part.count);
}

// As f32_to_bf16 and f32_to_bf16_drawn round, but that no finite number becomes infinite: the bits
// of the rounded numbers, whose lower halves count for nothing. `added` decides on the rounding.
HWY_INLINE VW RoundedToBf16(VF v, VW added) {
  const DI di;
  const DW du;
  const VI infinite = hn::Set(di, static_cast<int32_t>(half::kInfinity));
  const VI magnitude = Magnitude(v);
  const VI moved = hn::Add(magnitude, hn::BitCast(di, added));
  const VI most = hn::Sub(infinite, hn::Set(di, 1));
  const VI finite = hn::Min(moved, most);  // the largest of bf16 is the upper half of `most`
  const VI special = hn::IfThenElse(hn::Gt(magnitude, infinite), hn::Set(di, 0x7FC00000), infinite);
  const VI rounded = hn::IfThenElse(hn::Lt(magnitude, infinite), finite, special);
  const VW sign = hn::And(hn::BitCast(du, v), hn::Set(du, half::kSign));
  return hn::Or(hn::BitCast(du, rounded), sign);
}
HWY_INLINE VW ToTheNearest(VF v) {
  const DW du;
  return hn::Add(hn::And(hn::ShiftRight<16>(hn::BitCast(du, v)), hn::Set(du, 1)),
                 hn::Set(du, 0x7FFF));
}
template <class Io>
HWY_INLINE void StoreBf16(const Io& io, VW rounded, uint16_t* code) {
  const hn::Rebind<uint16_t, DF> du16;
  const VI upper = hn::BitCast(DI(), hn::ShiftRight<16>(rounded));
  io.StoreBits(hn::DemoteTo(du16, upper), DF(), reinterpret_cast<Bf16*>(code));
}

void PackBf16(const float* values, const uint32_t* words, uint16_t* codes, size_t n) {
  Sweep(n, [&](size_t i, auto io) HWY_ATTR {
    const VF v = io.Load(DF(), values + i);
    const VW added = words ? hn::ShiftRight<16>(io.Load(DW(), words + i)) : ToTheNearest(v);
    StoreBf16(io, RoundedToBf16(v, added), codes + i);
  });
}

// loop(values, codes, squares) for sixteen numbers at a time, of kCodes codes, which become what
// these lack.
template <size_t kCodes, class Code, class Loop>
HWY_INLINE double KeepBySixteen(float* values, Code* codes, size_t n, const Loop& loop) {
  Sums squares;
  HWY_ALIGN float rest[16] = {};
  Code rest_codes[kCodes] = {};
  for (size_t i = 0; i < n; i += 16) {
    const bool whole = i + 16 <= n;
    Code* const to = codes + i * kCodes / 16;
    if (!whole) std::memcpy(rest, values + i, (n - i) * sizeof(float));
    loop(whole ? values + i : rest, whole ? to : rest_codes, squares);
    if (whole) continue;
    std::memcpy(values + i, rest, (n - i) * sizeof(float));
    std::memcpy(to, rest_codes, ((n - i) * kCodes + 15) / 16 * sizeof(Code));
  }
  return squares.Total();
}

// Of finite numbers: as above.
double KeepBf16(float* values, uint16_t* codes, size_t n) {
  return KeepBySixteen<16>(values, codes, n, [](float* at, uint16_t* to, Sums& squares) HWY_ATTR {
    const DF d;
    const DI di;
    const DW du;
    const VI largest = hn::Set(di, static_cast<int32_t>(half::kInfinity) - 1);
    for (size_t k = 0; k < kVectors; ++k) {
      const VF v = hn::LoadU(d, at + k * kLanes);
      const VI moved = hn::Add(Magnitude(v), hn::BitCast(di, ToTheNearest(v)));
      const VW upper = hn::And(hn::BitCast(du, hn::Min(moved, largest)), hn::Set(du, 0xFFFF0000u));
      const VW rounded = hn::Or(upper, hn::And(hn::BitCast(du, v), hn::Set(du, half::kSign)));
      StoreBf16(Whole{}, rounded, to + k * kLanes);
      const VF left = hn::Sub(v, hn::BitCast(d, rounded));
      hn::StoreU(left, d, at + k * kLanes);
      squares.AddSquares(k, left);
    }
  });
}

void UnpackBf16(const uint16_t* codes, Apply how, float* dst, size_t n) {
  const DF d;
  const auto* const from = reinterpret_cast<const Bf16*>(codes);
  WithApply(how, [&](auto apply) HWY_ATTR {
    Sweep(n, [&](size_t i, auto io)
                 HWY_ATTR { Put<decltype(apply)::value>(io, io.Load(d, from + i), dst + i); });
  });
}

HWY_INLINE VI ClampedLevel(VI level, int32_t most) {
  const DI di;
  return hn::Min(hn::Max(level, hn::Set(di, -most)), hn::Set(di, most));
}
// Whole numbers of at most `most` in magnitude; |ratio| is below 2^22. To the nearest, the addition
// rounds: there, numbers have no fractions, and their bits count up with them.
HWY_INLINE VI Nearest(VF ratio, int32_t most) {
  const DI di;
  const VF whole = hn::Set(DF(), 0x1.8p23f);
  const VI level = hn::Sub(hn::BitCast(di, hn::Add(ratio, whole)), hn::BitCast(di, whole));
  return ClampedLevel(level, most);
}
HWY_INLINE VI Drawn(VF ratio, VW word, int32_t most) {
  const DF d;
  const DI di;
  const VF uniform =
      hn::Mul(hn::ConvertTo(d, hn::BitCast(di, hn::ShiftRight<8>(word))), hn::Set(d, 0x1p-24f));
  return ClampedLevel(hn::ConvertTo(di, hn::Floor(hn::Add(ratio, uniform))), most);
}
HWY_INLINE hn::Vec<D8> LevelBytes(VI level) {
  return hn::TruncateTo(D8(), hn::BitCast(DW(), level));
}

void PackInt8(const float* values, float unit, const uint32_t* words, int8_t* codes, size_t n) {
  const DF d;
  const VF scale = hn::Set(d, unit);
  auto* const to = reinterpret_cast<uint8_t*>(codes);
  Sweep(n, [&](size_t i, auto io) HWY_ATTR {
    const VF ratio = hn::Div(io.Load(d, values + i), scale);
    const VI level = words ? Drawn(ratio, io.Load(DW(), words + i), 127) : Nearest(ratio, 127);
    StoreBytes(io, LevelBytes(level), to + i);
  });
}

double KeepInt8(float* values, float unit, int8_t* codes, size_t n) {
  const VF scale = hn::Set(DF(), unit);
  auto* const bytes = reinterpret_cast<uint8_t*>(codes);
  return KeepBySixteen<16>(values, bytes, n, [&](float* at, uint8_t* to, Sums& squares) HWY_ATTR {
    const DF d;
    for (size_t k = 0; k < kVectors; ++k) {
      const VF v = hn::LoadU(d, at + k * kLanes);
      const VI level = Nearest(hn::Div(v, scale), 127);
      hn::StoreU(LevelBytes(level), D8(), to + k * kLanes);
      const VF left = hn::Sub(v, hn::Mul(hn::ConvertTo(d, level), scale));
      hn::StoreU(left, d, at + k * kLanes);
      squares.AddSquares(k, left);
    }
  });
}

void UnpackInt8(const int8_t* codes, float unit, Apply how, float* dst, size_t n) {
  const DF d;
  const VF scale = hn::Set(d, unit);
  const auto* const from = reinterpret_cast<const uint8_t*>(codes);
  WithApply(how, [&](auto apply) HWY_ATTR {
    Sweep(n, [&](size_t i, auto io) HWY_ATTR {
      const auto bytes = hn::BitCast(hn::RebindToSigned<D8>(), LoadBytes(io, from + i));
      const VF level = hn::ConvertTo(d, hn::PromoteTo(DI(), bytes));
      Put<decltype(apply)::value>(io, hn::Mul(level, scale), dst + i);
    });
  });
}

// Two neighbours make a byte: levels are lanes of 32 bits, and pairs of them lanes of 64.
using D64 = hn::Repartition<uint64_t, DF>;
using D8Of64 = hn::Rebind<uint8_t, D64>;
HWY_INLINE hn::Vec<D8Of64> LevelPairs(VI level) {
  const auto codes = hn::BitCast(D64(), hn::Add(level, hn::Set(DI(), 8)));
  return hn::TruncateTo(D8Of64(), hn::Or(codes, hn::ShiftRight<28>(codes)));
}

void PackInt4(const float* values, float unit, const uint32_t* words, uint8_t* codes, size_t n) {
  const DF d;
  const VF scale = hn::Set(d, unit);
  HWY_ALIGN float rest[kLanes] = {};
  HWY_ALIGN uint32_t rest_words[kLanes] = {};
  HWY_ALIGN uint8_t rest_codes[kLanes] = {};
  for (size_t i = 0; i < n; i += kLanes) {
    const bool whole = i + kLanes <= n;
    if (!whole) std::memcpy(rest, values + i, (n - i) * sizeof(float));
    if (!whole && words) std::memcpy(rest_words, words + i, (n - i) * sizeof(uint32_t));
    const VF ratio = hn::Div(hn::LoadU(d, whole ? values + i : rest), scale);
    const VI level = words ? Drawn(ratio, hn::LoadU(DW(), whole ? words + i : rest_words), 7)
                           : Nearest(ratio, 7);
    hn::StoreU(LevelPairs(level), D8Of64(), whole ? codes + i / 2 : rest_codes);
    if (!whole) std::memcpy(codes + i / 2, rest_codes, (n - i + 1) / 2);
  }
}

double KeepInt4(float* values, float unit, uint8_t* codes, size_t n) {
  const VF scale = hn::Set(DF(), unit);
  return KeepBySixteen<8>(values, codes, n, [&](float* at, uint8_t* to, Sums& squares) HWY_ATTR {
    const DF d;
    for (size_t k = 0; k < kVectors; ++k) {
      const VF v = hn::LoadU(d, at + k * kLanes);
      const VI level = Nearest(hn::Div(v, scale), 7);
      hn::StoreU(LevelPairs(level), D8Of64(), to + k * kLanes / 2);
      const VF left = hn::Sub(v, hn::Mul(hn::ConvertTo(d, level), scale));
      hn::StoreU(left, d, at + k * kLanes);
      squares.AddSquares(k, left);
    }
  });
}

void UnpackInt4(const uint8_t* codes, float unit, Apply how, float* dst, size_t n) {
  const DF d;
  const DI di;
  const VF scale = hn::Set(d, unit);
  constexpr size_t kPairs = hn::MaxLanes(DF());
  WithApply(how, [&](auto apply) HWY_ATTR {
    const auto put = [&](hn::Vec<D8> bytes, float* to) HWY_ATTR {
      const VI pairs = hn::PromoteTo(di, bytes);
      const VI eight = hn::Set(di, 8);
      const VI low = hn::Sub(hn::And(pairs, hn::Set(di, 15)), eight);
      const VI high = hn::Sub(hn::ShiftRight<4>(pairs), eight);
      HWY_ALIGN float levels[2 * kPairs];
      hn::StoreInterleaved2(hn::Mul(hn::ConvertTo(d, low), scale),
                            hn::Mul(hn::ConvertTo(d, high), scale), d, levels);
      Put<decltype(apply)::value>(Whole{}, hn::Load(d, levels), to);
      Put<decltype(apply)::value>(Whole{}, hn::Load(d, levels + kPairs), to + kPairs);
    };
    size_t i = 0;
    for (; i + 2 * kPairs <= n; i += 2 * kPairs) put(hn::LoadU(D8(), codes + i / 2), dst + i);
    if (i == n) return;
    HWY_ALIGN float rest[2 * kPairs] = {};
    std::memcpy(rest, dst + i, (n - i) * sizeof(float));
    put(LoadBytes(Part{(n - i + 1) / 2}, codes + i / 2), rest);
    std::memcpy(dst + i, rest, (n - i) * sizeof(float));
  });
}

// A byte has the signs of two vectors of four lanes, or of a part of a wider one.
constexpr size_t kBitLanes = hn::MaxLanes(DF()) < 8 ? 8 : hn::MaxLanes(DF());

HWY_INLINE void StoreSigns(const float* values, uint8_t* codes) {
  const DF d;
  const DI di;
  const size_t lanes = hn::Lanes(d);
  uint8_t bytes[8] = {};
  hn::StoreMaskBits(di, hn::Lt(hn::BitCast(di, hn::LoadU(d, values)), hn::Zero(di)), bytes);
  if (lanes < 8) {
    uint8_t upper[8] = {};
    hn::StoreMaskBits(di, hn::Lt(hn::BitCast(di, hn::LoadU(d, values + lanes)), hn::Zero(di)),
                      upper);
    bytes[0] = static_cast<uint8_t>(bytes[0] | upper[0] << 4);
  }
  std::memcpy(codes, bytes, kBitLanes / 8);
}

void PackSigns(const float* values, uint8_t* codes, size_t n) {
  size_t i = 0;
  for (; i + kBitLanes <= n; i += kBitLanes) StoreSigns(values + i, codes + i / 8);
  if (i == n) return;
  HWY_ALIGN float rest[kBitLanes] = {};
  std::memcpy(rest, values + i, (n - i) * sizeof(float));
  uint8_t bytes[8];
  StoreSigns(rest, bytes);
  std::memcpy(codes + i / 8, bytes, (n - i + 7) / 8);
}

template <Apply kHow>
HWY_INLINE void PutSigns(const uint8_t* codes, VF mean, float* dst) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  uint8_t bytes[8] = {};
  std::memcpy(bytes, codes, kBitLanes / 8);
  const auto put = [&](float* to) HWY_ATTR {
    const auto negative = hn::LoadMaskBits(d, bytes);
    Put<kHow>(Whole{}, hn::Or(mean, hn::IfThenElseZero(negative, hn::SignBit(d))), to);
  };
  put(dst);
  if (lanes < 8) {
    bytes[0] = static_cast<uint8_t>(bytes[0] >> 4);
    put(dst + lanes);
  }
}

void UnpackSigns(const uint8_t* codes, float mean, Apply how, float* dst, size_t n) {
  const VF magnitude = hn::Set(DF(), mean);
  WithApply(how, [&](auto apply) HWY_ATTR {
    constexpr Apply kHow = decltype(apply)::value;
    size_t i = 0;
    for (; i + kBitLanes <= n; i += kBitLanes) PutSigns<kHow>(codes + i / 8, magnitude, dst + i);
    if (i == n) return;
    HWY_ALIGN float rest[kBitLanes] = {};
    uint8_t bytes[8] = {};
    std::memcpy(rest, dst + i, (n - i) * sizeof(float));
    std::memcpy(bytes, codes + i / 8, (n - i + 7) / 8);
    PutSigns<kHow>(bytes, magnitude, rest);
    std::memcpy(dst + i, rest, (n - i) * sizeof(float));
  });
}

double KeepSigns(float* values, float mean, size_t n) {
  const DF d;
  const VF magnitude = hn::Set(d, mean);
  Sums squares;
  HWY_ALIGN float rest[16];
  std::fill(rest, rest + 16, mean);  // of which nothing is left
  for (size_t i = 0; i < n; i += 16) {
    const bool whole = i + 16 <= n;
    if (!whole) std::memcpy(rest, values + i, (n - i) * sizeof(float));
    float* const at = whole ? values + i : rest;
    for (size_t k = 0; k < kVectors; ++k) {
      const VF v = hn::LoadU(d, at + k * kLanes);
      const VF left = hn::Sub(v, hn::Or(magnitude, hn::And(v, hn::SignBit(d))));
      hn::StoreU(left, d, at + k * kLanes);
      squares.AddSquares(k, left);
    }
    if (!whole) std::memcpy(values + i, rest, (n - i) * sizeof(float));
  }
  return squares.Total();
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
HWY_EXPORT(MeasureParts);
HWY_EXPORT(FindPlaces);
HWY_EXPORT(FoldGradient);
HWY_EXPORT(DrawWords);
HWY_EXPORT(PackBf16);
HWY_EXPORT(PackInt8);
HWY_EXPORT(PackInt4);
HWY_EXPORT(PackSigns);
HWY_EXPORT(KeepBf16);
HWY_EXPORT(KeepInt8);
HWY_EXPORT(KeepInt4);
HWY_EXPORT(KeepSigns);
HWY_EXPORT(UnpackBf16);
HWY_EXPORT(UnpackInt8);
HWY_EXPORT(UnpackInt4);
HWY_EXPORT(UnpackSigns);
}  // namespace
}  // namespace cpu

using namespace cpu;

uint32_t largest_magnitude(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(Largest)(values.data(), values.size());
}

Measures measure(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(Measure)(values.data(), values.size());
}

Measures measure(std::span<const float> values, double& magnitudes) {
  return HWY_DYNAMIC_DISPATCH(MeasureSizes)(values.data(), values.size(), &magnitudes);
}

void measure_parts(std::span<const float> values, std::span<PartMeasures> parts) {
  require(parts.size() == (values.size() + kMeasuredPart - 1) / kMeasuredPart,
          "measure_parts: {} parts of {} numbers", parts.size(), values.size());
  HWY_DYNAMIC_DISPATCH(MeasureParts)(values.data(), values.size(), parts.data());
}

FoundPlaces find_places(std::span<const float> values, uint32_t least, uint32_t first,
                        std::span<uint32_t> places, std::span<float> numbers) {
  require(least > 0, "find_places: every number is at least 0");
  require(numbers.size() >= places.size(), "find_places: {} places, room for {} numbers",
          places.size(), numbers.size());
  return HWY_DYNAMIC_DISPATCH(FindPlaces)(values.data(), values.size(), least, first, places.data(),
                                          numbers.data(), places.size());
}

void fold_gradient(std::span<const float> gradient, const Fold& fold, float* velocity,
                   float* kept) {
  HWY_DYNAMIC_DISPATCH(FoldGradient)
  (gradient.data(), fold.scale, fold.momentum, velocity, kept, gradient.size());
}

void draw_words(PhiloxKey key, uint64_t first, std::span<uint32_t> words) {
  HWY_DYNAMIC_DISPATCH(DrawWords)(key, first, words.data(), words.size());
}

void pack_bf16(std::span<const float> values, const uint32_t* words, uint16_t* codes) {
  HWY_DYNAMIC_DISPATCH(PackBf16)(values.data(), words, codes, values.size());
}

void pack_int8(std::span<const float> values, float unit, const uint32_t* words, int8_t* codes) {
  HWY_DYNAMIC_DISPATCH(PackInt8)(values.data(), unit, words, codes, values.size());
}

void pack_int4(std::span<const float> values, float unit, const uint32_t* words, uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(PackInt4)(values.data(), unit, words, codes, values.size());
}

void pack_signs(std::span<const float> values, uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(PackSigns)(values.data(), codes, values.size());
}

double keep_bf16(std::span<float> values, uint16_t* codes) {
  return HWY_DYNAMIC_DISPATCH(KeepBf16)(values.data(), codes, values.size());
}

double keep_int8(std::span<float> values, float unit, int8_t* codes) {
  return HWY_DYNAMIC_DISPATCH(KeepInt8)(values.data(), unit, codes, values.size());
}

double keep_int4(std::span<float> values, float unit, uint8_t* codes) {
  return HWY_DYNAMIC_DISPATCH(KeepInt4)(values.data(), unit, codes, values.size());
}

double keep_signs(std::span<float> values, float mean) {
  return HWY_DYNAMIC_DISPATCH(KeepSigns)(values.data(), mean, values.size());
}

void unpack_bf16(const uint16_t* codes, Apply how, std::span<float> dst) {
  HWY_DYNAMIC_DISPATCH(UnpackBf16)(codes, how, dst.data(), dst.size());
}

void unpack_int8(const int8_t* codes, float unit, Apply how, std::span<float> dst) {
  HWY_DYNAMIC_DISPATCH(UnpackInt8)(codes, unit, how, dst.data(), dst.size());
}

void unpack_int4(const uint8_t* codes, float unit, Apply how, std::span<float> dst) {
  HWY_DYNAMIC_DISPATCH(UnpackInt4)(codes, unit, how, dst.data(), dst.size());
}

void unpack_signs(const uint8_t* codes, float mean, Apply how, std::span<float> dst) {
  HWY_DYNAMIC_DISPATCH(UnpackSigns)(codes, mean, how, dst.data(), dst.size());
}

}  // namespace onefold
#endif
