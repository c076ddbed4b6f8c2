// Wire formats' loops that code numbers, and what is left of them.
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
#include "kernels/cpu/sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

using D8 = hn::Rebind<uint8_t, DF>;

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

// loop(values, codes, squares) for 32 numbers at a time, of kCodes codes, which become what these
// lack.
template <size_t kCodes, class Code, class Loop>
HWY_INLINE double KeepByThirtyTwo(float* values, Code* codes, size_t n, const Loop& loop) {
  Sums squares;
  size_t i = 0;
  for (; i + 32 <= n; i += 32) loop(values + i, codes + i * kCodes / 32, squares);
  if (i < n) {
    HWY_ALIGN float rest[32] = {};
    Code rest_codes[kCodes];
    std::memcpy(rest, values + i, (n - i) * sizeof(float));
    loop(rest, rest_codes, squares);
    std::memcpy(values + i, rest, (n - i) * sizeof(float));
    std::memcpy(codes + i * kCodes / 32, rest_codes, ((n - i) * kCodes + 31) / 32 * sizeof(Code));
  }
  return squares.Total();
}

// Of finite numbers: as above.
double KeepBf16(float* values, uint16_t* codes, size_t n) {
  return KeepByThirtyTwo<32>(values, codes, n, [](float* at, uint16_t* to, Sums& squares) HWY_ATTR {
    const DF d;
    const DI di;
    const DW du;
    const VI largest = hn::Set(di, static_cast<int32_t>(half::kInfinity) - 1);
    for (size_t k = 0; k < 2 * kVectors; ++k) {
      const VF v = hn::LoadU(d, at + k * kLanes);
      const VI moved = hn::Add(Magnitude(v), hn::BitCast(di, ToTheNearest(v)));
      const VW upper = hn::And(hn::BitCast(du, hn::Min(moved, largest)), hn::Set(du, 0xFFFF0000u));
      const VW rounded = hn::Or(upper, hn::And(hn::BitCast(du, v), hn::Set(du, half::kSign)));
      StoreBf16(Whole{}, rounded, to + k * kLanes);
      const VF left = hn::Sub(v, hn::BitCast(d, rounded));
      hn::StoreU(left, d, at + k * kLanes);
      squares.AddSquares(k % kVectors, left);
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
  return KeepByThirtyTwo<32>(values, bytes, n, [&](float* at, uint8_t* to, Sums& squares) HWY_ATTR {
    const DF d;
    for (size_t k = 0; k < 2 * kVectors; ++k) {
      const VF v = hn::LoadU(d, at + k * kLanes);
      const VI level = Nearest(hn::Div(v, scale), 127);
      hn::StoreU(LevelBytes(level), D8(), to + k * kLanes);
      const VF left = hn::Sub(v, hn::Mul(hn::ConvertTo(d, level), scale));
      hn::StoreU(left, d, at + k * kLanes);
      squares.AddSquares(k % kVectors, left);
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

// Two neighbours make a byte: of two vectors, those at even and those at odd places.
HWY_INLINE hn::Vec<D8> LevelPairs(VI first, VI second) {
  const DI di;
  const VI even = hn::ConcatEven(di, second, first), odd = hn::ConcatOdd(di, second, first);
  return LevelBytes(hn::Add(hn::Add(even, hn::ShiftLeft<4>(odd)), hn::Set(di, 0x88)));
}

template <bool kDrawn>
HWY_INLINE void PackInt4Loop(const float* values, float unit, const uint32_t* words, uint8_t* codes,
                             size_t n) {
  const VF scale = hn::Set(DF(), unit);
  const auto level = [&](const float* at, const uint32_t* word) HWY_ATTR {
    const VF ratio = hn::Div(hn::LoadU(DF(), at), scale);
    if constexpr (kDrawn) return Drawn(ratio, hn::LoadU(DW(), word), 7);
    return Nearest(ratio, 7);
  };
  const auto pack = [&](const float* at, const uint32_t* word, uint8_t* to) HWY_ATTR {
    hn::StoreU(LevelPairs(level(at, word), level(at + kLanes, word + (kDrawn ? kLanes : 0))), D8(),
               to);
  };
  size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes)
    pack(values + i, kDrawn ? words + i : nullptr, codes + i / 2);
  if (i == n) return;
  HWY_ALIGN float rest[2 * kLanes] = {};
  HWY_ALIGN uint32_t rest_words[2 * kLanes] = {};
  HWY_ALIGN uint8_t rest_codes[kLanes];
  std::memcpy(rest, values + i, (n - i) * sizeof(float));
  if (kDrawn) std::memcpy(rest_words, words + i, (n - i) * sizeof(uint32_t));
  pack(rest, rest_words, rest_codes);
  std::memcpy(codes + i / 2, rest_codes, (n - i + 1) / 2);
}
void PackInt4(const float* values, float unit, const uint32_t* words, uint8_t* codes, size_t n) {
  if (words)
    PackInt4Loop<true>(values, unit, words, codes, n);
  else
    PackInt4Loop<false>(values, unit, nullptr, codes, n);
}

double KeepInt4(float* values, float unit, uint8_t* codes, size_t n) {
  const VF scale = hn::Set(DF(), unit);
  return KeepByThirtyTwo<16>(values, codes, n, [&](float* at, uint8_t* to, Sums& squares) HWY_ATTR {
    const auto keep = [&](size_t k) HWY_ATTR {
      const VF v = hn::LoadU(DF(), at + k * kLanes);
      const VI level = Nearest(hn::Div(v, scale), 7);
      const VF left = hn::Sub(v, hn::Mul(hn::ConvertTo(DF(), level), scale));
      hn::StoreU(left, DF(), at + k * kLanes);
      squares.AddSquares(k % kVectors, left);
      return level;
    };
    for (size_t k = 0; k < 2 * kVectors; k += 2) {
      const VI first = keep(k);
      hn::StoreU(LevelPairs(first, keep(k + 1)), D8(), to + k * kLanes / 2);
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
