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

// The sum of term(x) in double: eight sums, whatever the width of vectors, added in their order.
template <class Term>
HWY_INLINE double EightSums(const float* values, size_t n, const Term& term) {
  const hn::CappedTag<double, 8> dd;
  const hn::Rebind<float, decltype(dd)> df;
  constexpr size_t kVectors = 8 / hn::MaxLanes(dd);
  hn::Vec<decltype(dd)> sums[kVectors];
  for (auto& sum : sums) sum = hn::Zero(dd);
  size_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (size_t k = 0; k < kVectors; ++k)
      sums[k] = hn::Add(
          sums[k], term(dd, hn::PromoteTo(dd, hn::LoadU(df, values + i + k * hn::MaxLanes(dd)))));
  HWY_ALIGN double parts[8];
  for (size_t k = 0; k < kVectors; ++k) hn::Store(sums[k], dd, parts + k * hn::MaxLanes(dd));
  const hn::CappedTag<double, 1> one;
  for (; i < n; ++i)
    parts[i % 8] += hn::GetLane(term(one, hn::Set(one, static_cast<double>(values[i]))));
  double sum = 0;
  for (const double part : parts) sum += part;
  return sum;
}

double SumMagnitudes(const float* values, size_t n) {
  return EightSums(values, n, [](auto, auto v) HWY_ATTR { return hn::Abs(v); });
}

double SumSquares(const float* values, size_t n) {
  return EightSums(values, n, [](auto, auto v) HWY_ATTR { return hn::Mul(v, v); });
}

// Four vectors at a time are looked at together; most of them have nothing.
size_t FindPlaces(const float* values, size_t n, uint32_t least, uint32_t first, uint32_t* places,
                  size_t room) {
  const DF d;
  const DI di;
  const size_t lanes = hn::Lanes(d);
  const VI below = hn::Set(di, static_cast<int32_t>(least) - 1);
  size_t count = 0, i = 0;
  const auto take = [&](VI magnitudes, size_t at) HWY_ATTR {
    uint8_t bytes[8] = {};
    hn::StoreMaskBits(di, hn::Gt(magnitudes, below), bytes);
    uint64_t bits = 0;
    std::memcpy(&bits, bytes, sizeof(bits));
    for (; bits != 0 && count < room; bits &= bits - 1)
      places[count++] =
          first + static_cast<uint32_t>(at + static_cast<size_t>(std::countr_zero(bits)));
  };
  for (; i + 4 * lanes <= n && count < room; i += 4 * lanes) {
    const VI m0 = Magnitude(hn::LoadU(d, values + i));
    const VI m1 = Magnitude(hn::LoadU(d, values + i + lanes));
    const VI m2 = Magnitude(hn::LoadU(d, values + i + 2 * lanes));
    const VI m3 = Magnitude(hn::LoadU(d, values + i + 3 * lanes));
    const VI most = hn::Max(hn::Max(m0, m1), hn::Max(m2, m3));
    if (hn::AllFalse(di, hn::Gt(most, below))) continue;
    take(m0, i);
    take(m1, i + lanes);
    take(m2, i + 2 * lanes);
    take(m3, i + 3 * lanes);
  }
  for (; i + lanes <= n && count < room; i += lanes) take(Magnitude(hn::LoadU(d, values + i)), i);
  if (i < n && count < room) take(Magnitude(Part{n - i}.Load(d, values + i)), i);
  return count;
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

template <Apply kHow, class Io>
HWY_INLINE void Put(const Io& io, VF decoded, float* dst) {
  const DF d;
  if constexpr (kHow == Apply::set) {
    io.Store(decoded, d, dst);
  } else if constexpr (kHow == Apply::add) {
    io.Store(hn::Add(io.Load(d, dst), decoded), d, dst);
  } else {
    const VF left = hn::Sub(io.Load(d, dst), decoded);
    io.Store(hn::IfThenElseZero(hn::IsFinite(left), left), d, dst);
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

// As f32_to_bf16 and f32_to_bf16_drawn round, but that no finite number becomes infinite.
void PackBf16(const float* values, const uint32_t* words, uint16_t* codes, size_t n) {
  const DF d;
  const DI di;
  const DW du;
  const hn::Rebind<uint16_t, DF> du16;
  const VI infinite = hn::Set(di, static_cast<int32_t>(half::kInfinity));
  auto* const to = reinterpret_cast<Bf16*>(codes);
  Sweep(n, [&](size_t i, auto io) HWY_ATTR {
    const VF v = io.Load(d, values + i);
    const VI magnitude = Magnitude(v);
    VW added;
    if (words)
      added = hn::ShiftRight<16>(io.Load(du, words + i));
    else
      added = hn::Add(hn::And(hn::ShiftRight<16>(hn::BitCast(du, v)), hn::Set(du, 1)),
                      hn::Set(du, 0x7FFF));
    const VI moved = hn::Add(magnitude, hn::BitCast(di, added));
    const VI most = hn::Sub(infinite, hn::Set(di, 1));
    const VI finite = hn::Min(moved, most);  // the largest of bf16 is the upper half of `most`
    const VI special =
        hn::IfThenElse(hn::Gt(magnitude, infinite), hn::Set(di, 0x7FC00000), infinite);
    const VI rounded = hn::IfThenElse(hn::Lt(magnitude, infinite), finite, special);
    const VW sign = hn::And(hn::BitCast(du, v), hn::Set(du, half::kSign));
    const VW upper = hn::ShiftRight<16>(hn::Or(hn::BitCast(du, rounded), sign));
    io.StoreBits(hn::DemoteTo(du16, hn::BitCast(di, upper)), d, to + i);
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

// Whole numbers of at most `most` in magnitude; |ratio| is below 2^22. To the nearest, the addition
// rounds: there, numbers have no fractions.
HWY_INLINE VI Nearest(VF ratio, float most) {
  const DF d;
  const VF whole = hn::Set(d, 0x1.8p23f);
  const VF level = hn::Sub(hn::Add(ratio, whole), whole);
  return hn::ConvertTo(DI(), hn::Clamp(level, hn::Set(d, -most), hn::Set(d, most)));
}
HWY_INLINE VI Drawn(VF ratio, VW word, float most) {
  const DF d;
  const DI di;
  const VF uniform =
      hn::Mul(hn::ConvertTo(d, hn::BitCast(di, hn::ShiftRight<8>(word))), hn::Set(d, 0x1p-24f));
  const VF level = hn::Floor(hn::Add(ratio, uniform));
  return hn::ConvertTo(di, hn::Clamp(level, hn::Set(d, -most), hn::Set(d, most)));
}

void PackInt8(const float* values, float unit, const uint32_t* words, int8_t* codes, size_t n) {
  const DF d;
  const VF scale = hn::Set(d, unit);
  auto* const to = reinterpret_cast<uint8_t*>(codes);
  Sweep(n, [&](size_t i, auto io) HWY_ATTR {
    const VF ratio = hn::Div(io.Load(d, values + i), scale);
    const VI level = words ? Drawn(ratio, io.Load(DW(), words + i), 127) : Nearest(ratio, 127);
    StoreBytes(io, hn::BitCast(D8(), hn::DemoteTo(hn::RebindToSigned<D8>(), level)), to + i);
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

// Two vectors of numbers make one of bytes; the rest goes by way of memory.
void PackInt4(const float* values, float unit, const uint32_t* words, uint8_t* codes, size_t n) {
  const DF d;
  const DW du;
  const VF scale = hn::Set(d, unit);
  constexpr size_t kPairs = hn::MaxLanes(DF());
  const auto pairs_of = [&](const float* from, const uint32_t* random) HWY_ATTR {
    VF even, odd;
    hn::LoadInterleaved2(d, from, even, odd);
    even = hn::Div(even, scale);
    odd = hn::Div(odd, scale);
    VI low, high;
    if (random) {
      VW even_words, odd_words;
      hn::LoadInterleaved2(du, random, even_words, odd_words);
      low = Drawn(even, even_words, 7);
      high = Drawn(odd, odd_words, 7);
    } else {
      low = Nearest(even, 7);
      high = Nearest(odd, 7);
    }
    const VI eight = hn::Set(DI(), 8);
    return hn::DemoteTo(D8(), hn::Or(hn::Add(low, eight), hn::ShiftLeft<4>(hn::Add(high, eight))));
  };
  size_t i = 0;
  for (; i + 2 * kPairs <= n; i += 2 * kPairs)
    hn::StoreU(pairs_of(values + i, words ? words + i : nullptr), D8(), codes + i / 2);
  if (i == n) return;
  HWY_ALIGN float rest[2 * kPairs] = {};
  HWY_ALIGN uint32_t random[2 * kPairs] = {};
  std::memcpy(rest, values + i, (n - i) * sizeof(float));
  if (words) std::memcpy(random, words + i, (n - i) * sizeof(uint32_t));
  StoreBytes(Part{(n - i + 1) / 2}, pairs_of(rest, words ? random : nullptr), codes + i / 2);
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

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onefold {
namespace cpu {
namespace {
HWY_EXPORT(Largest);
HWY_EXPORT(SumMagnitudes);
HWY_EXPORT(SumSquares);
HWY_EXPORT(FindPlaces);
HWY_EXPORT(FoldGradient);
HWY_EXPORT(DrawWords);
HWY_EXPORT(PackBf16);
HWY_EXPORT(PackInt8);
HWY_EXPORT(PackInt4);
HWY_EXPORT(PackSigns);
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

double sum_of_magnitudes(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(SumMagnitudes)(values.data(), values.size());
}

double sum_of_squares(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(SumSquares)(values.data(), values.size());
}

int64_t find_places(std::span<const float> values, uint32_t least, uint32_t first,
                    std::span<uint32_t> places) {
  require(least > 0, "find_places: every number is at least 0");
  return static_cast<int64_t>(HWY_DYNAMIC_DISPATCH(FindPlaces)(
      values.data(), values.size(), least, first, places.data(), places.size()));
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
