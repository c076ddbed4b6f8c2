// What the wire formats share: magnitudes as bits, blocks, selection of the largest. Private to
// src/comm.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/error.h"
#include "base/half.h"
#include "comm/wire.h"

namespace onefold::wire {

inline constexpr uint32_t kInfinity = half::kInfinity;
inline constexpr float kNotANumber = std::bit_cast<float>(0x7FC00000u);

// Magnitudes compare as their bits do; what is not finite is larger than all else.
inline uint32_t magnitude(float value) { return std::bit_cast<uint32_t>(value) & ~half::kSign; }
inline bool finite(float value) { return magnitude(value) < kInfinity; }

inline uint32_t largest(std::span<const float> values) {
  int32_t most = 0;  // magnitudes have no sign bit, and vectors of signed numbers have a maximum
  for (const float value : values) most = std::max(most, static_cast<int32_t>(magnitude(value)));
  return static_cast<uint32_t>(most);
}

inline int64_t round_up(int64_t count, int64_t to) { return (count + to - 1) / to * to; }
inline int64_t blocks_of(int64_t elems, int64_t block) { return (elems + block - 1) / block; }

// The last bytes of a packet, which the codes may not fill: they travel, and so are defined.
inline void clear_tail(std::byte* packet, int64_t bytes) { std::memset(packet + bytes - 4, 0, 4); }

// One decoded number into what is there.
inline void put(Apply how, float decoded, float& dst) {
  if (how == Apply::set) {
    dst = decoded;
  } else if (how == Apply::add) {
    dst += decoded;
  } else {
    const float left = dst - decoded;
    dst = finite(left) ? left : 0.0f;
  }
}

// A function of each decoded number, chosen once for a loop.
template <class Loop>
void with(Apply how, const Loop& loop) {
  require(how != Apply::clear, "a dense packet sends every element");
  if (how == Apply::set)
    loop([](float decoded, float& dst) { dst = decoded; });
  else if (how == Apply::add)
    loop([](float decoded, float& dst) { dst += decoded; });
  else
    loop([](float decoded, float& dst) { put(Apply::subtract, decoded, dst); });
}

// philox_word() of `first` and the numbers after it, `first` a multiple of 4: many counters at a
// time, which vectors can do.
inline void draw_words(PhiloxKey key, uint64_t first, std::span<uint32_t> words) {
  constexpr size_t kCounters = 16;
  std::array<std::array<uint32_t, kCounters>, 4> c;
  for (size_t done = 0; done < words.size(); done += 4 * kCounters) {
    for (size_t i = 0; i < kCounters; ++i) {
      const uint64_t counter = (first + done) / 4 + i;
      c[0][i] = static_cast<uint32_t>(counter);
      c[1][i] = static_cast<uint32_t>(counter >> 32);
      c[2][i] = c[3][i] = 0;
    }
    PhiloxKey now = key;
    for (int round = 0; round < kPhiloxRounds; ++round) {
      for (size_t i = 0; i < kCounters; ++i) {
        const uint64_t p0 = uint64_t{kPhiloxMul0} * c[0][i], p1 = uint64_t{kPhiloxMul1} * c[2][i];
        c[0][i] = static_cast<uint32_t>(p1 >> 32) ^ c[1][i] ^ now.lo;
        c[2][i] = static_cast<uint32_t>(p0 >> 32) ^ c[3][i] ^ now.hi;
        c[1][i] = static_cast<uint32_t>(p1);
        c[3][i] = static_cast<uint32_t>(p0);
      }
      now.lo += kPhiloxWeyl0;
      now.hi += kPhiloxWeyl1;
    }
    for (size_t i = 0; i < 4 * kCounters && done + i < words.size(); ++i)
      words[done + i] = c[i % 4][i / 4];
  }
}

// Calls visit(first, words) for so many numbers, some at a time.
template <class Visit>
void for_each_draw(PhiloxKey key, int64_t elems, const Visit& visit) {
  std::array<uint32_t, 512> words;
  for (int64_t first = 0; first < elems; first += int64_t{words.size()}) {
    const std::span<uint32_t> part(
        words.data(), static_cast<size_t>(std::min(elems - first, int64_t{words.size()})));
    draw_words(key, static_cast<uint64_t>(first), part);
    visit(first, std::span<const uint32_t>(part));
  }
}

// The k-th largest of `count` magnitudes, and how many are larger: three sweeps over their bits.
struct Cut {
  uint32_t magnitude = 0;
  int64_t above = 0;
};
template <class MagnitudeOf>
Cut cut_of(int64_t count, int64_t k, const MagnitudeOf& magnitude_of) {
  struct Level {
    int shift, bits;
  };
  constexpr Level kLevels[] = {{20, 11}, {9, 11}, {0, 9}};
  std::array<int64_t, 2048> bins;
  Cut cut;
  uint64_t known = 0;  // the bits above this level's
  for (const auto [shift, bits] : kLevels) {
    bins.fill(0);
    const uint32_t mask = (1u << bits) - 1;
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t m = magnitude_of(i);
      if ((uint64_t{m} >> (shift + bits)) == known) ++bins[(m >> shift) & mask];
    }
    uint32_t bin = mask;
    while (bin > 0 && cut.above + bins[bin] < k) cut.above += bins[bin--];
    known = known << bits | bin;
  }
  cut.magnitude = static_cast<uint32_t>(known);
  return cut;
}

// Numbers and their places, which sparse packets are made of: first all numbers, then all places.
// A place that is left empty is `elems`.
struct Entries {
  std::byte* data;
  int64_t room;  // in numbers
  int64_t places;

  static int64_t bytes(int64_t room, int64_t places) {
    return room * int64_t{sizeof(float)} + places * int64_t{sizeof(uint32_t)};
  }
  void set_value(int64_t i, float value) const {
    std::memcpy(data + i * int64_t{sizeof(float)}, &value, sizeof(float));
  }
  void set_place(int64_t i, uint32_t place) const {
    std::memcpy(data + bytes(room, i), &place, sizeof(uint32_t));
  }
  float value(int64_t i) const {
    float value;
    std::memcpy(&value, data + i * int64_t{sizeof(float)}, sizeof(float));
    return value;
  }
  int64_t place(int64_t i) const {
    uint32_t place;
    std::memcpy(&place, data + bytes(room, i), sizeof(uint32_t));
    return place;
  }
};

// What sparse formats do to elements that they have not sent: those that are not finite were
// found, and are not kept.
inline void drop_not_finite(std::span<float> values) {
  if (largest(values) < kInfinity) return;
  for (float& value : values)
    if (!finite(value)) value = 0;
}

// Places are 32 bits.
inline void require_places(size_t elems) {
  require(elems < UINT32_MAX, "a sparse packet of {} elements", elems);
}

std::unique_ptr<Wire> make_bf16(const WireFormat& format);
std::unique_ptr<Wire> make_int8(const WireFormat& format);
std::unique_ptr<Wire> make_int4(const WireFormat& format);
std::unique_ptr<Wire> make_sign(const WireFormat& format);
std::unique_ptr<Wire> make_topk(const WireFormat& format);
std::unique_ptr<Wire> make_sampled(const WireFormat& format);
std::unique_ptr<Wire> make_threshold(const WireFormat& format);
std::unique_ptr<Wire> make_randomk(const WireFormat& format);
std::unique_ptr<Wire> make_blocks(const WireFormat& format);

}  // namespace onefold::wire
