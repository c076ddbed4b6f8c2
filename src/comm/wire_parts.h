// What the wire formats share: magnitudes as bits, blocks, selection of the largest. Private to
// src/comm.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/half.h"
#include "comm/wire.h"

namespace onefold::wire {

inline constexpr uint32_t kInfinity = half::kInfinity;
inline constexpr float kNotANumber = std::bit_cast<float>(0x7FC00000u);

// Magnitudes compare as their bits do; what is not finite is larger than all else.
inline uint32_t magnitude(float value) { return std::bit_cast<uint32_t>(value) & ~half::kSign; }
inline bool finite(float value) { return magnitude(value) < kInfinity; }

inline double square(float value) { return double{value} * double{value}; }

inline int64_t round_up(int64_t count, int64_t to) { return (count + to - 1) / to * to; }
inline int64_t blocks_of(int64_t elems, int64_t block) { return (elems + block - 1) / block; }

// The last bytes of a packet, which the codes may not fill: they travel, and so are defined.
inline void clear_tail(std::byte* packet, int64_t bytes) { std::memset(packet + bytes - 4, 0, 4); }

// Calls visit(first, words) for the numbers from `begin`, a multiple of 4, to `end`, some at a
// time.
template <class Visit>
void for_each_draw(PhiloxKey key, int64_t begin, int64_t end, const Visit& visit) {
  std::array<uint32_t, 512> words;
  for (int64_t first = begin; first < end; first += int64_t{words.size()}) {
    const std::span<uint32_t> part(
        words.data(), static_cast<size_t>(std::min(end - first, int64_t{words.size()})));
    draw_words(key, static_cast<uint64_t>(first), part);
    visit(first, std::span<const uint32_t>(part));
  }
}

// Calls visit(number) for those of so many runs of neighbours, one in each of equal stretches.
// Where in it follows from its number, for rows of a matrix begin at every so many numbers too, and
// may begin alike.
template <class Visit>
void for_each_sample(std::span<const float> values, size_t runs, size_t run, const Visit& visit) {
  const size_t stretch = values.size() / runs;
  for (size_t r = 0; r < runs; ++r) {
    const size_t first = r * stretch + r * 2654435761u % (stretch - run + 1);
    for (size_t i = 0; i < run; ++i) visit(values[first + i]);
  }
}

// The k-th largest of some magnitudes, how many are larger, and how many are as large.
struct Cut {
  uint32_t magnitude = 0;
  int64_t above = 0, equal = 0;
};
// Of magnitudes that are overwritten. Their range is cut into bins, then that of the bin that has
// the k-th, until bins are single magnitudes: three sweeps at most, of which the later ones see
// few.
inline Cut cut_of(std::span<uint32_t> magnitudes, int64_t k) {
  constexpr int kBits = 11;
  // Two lists of bins, as neighbours are often in the same bin: one addition need not wait for
  // the other.
  std::array<std::array<uint32_t, 1 << kBits>, 2> bins;
  Cut cut;
  while (true) {
    uint32_t least = UINT32_MAX, most = 0;
    for (const uint32_t m : magnitudes) {
      least = std::min(least, m);
      most = std::max(most, m);
    }
    const int shift = std::max(0, static_cast<int>(std::bit_width(most - least)) - kBits);
    bins = {};
    size_t i = 0;
    for (; i + 1 < magnitudes.size(); i += 2) {
      ++bins[0][(magnitudes[i] - least) >> shift];
      ++bins[1][(magnitudes[i + 1] - least) >> shift];
    }
    if (i < magnitudes.size()) ++bins[0][(magnitudes[i] - least) >> shift];
    uint32_t bin = (most - least) >> shift;
    const auto in_bin = [&] { return int64_t{bins[0][bin]} + bins[1][bin]; };
    while (bin > 0 && cut.above + in_bin() < k) {
      cut.above += in_bin();
      --bin;
    }
    cut.equal = in_bin();
    cut.magnitude = least + (bin << shift);
    if (shift == 0) return cut;
    size_t left = 0;
    for (const uint32_t m : magnitudes) {
      magnitudes[left] = m;
      left += (m - least) >> shift == bin ? 1 : 0;
    }
    magnitudes = magnitudes.first(left);
  }
}

// The norm of numbers as the magnitude of a float, whose range would not hold every sum of squares:
// its root. Numbers of which one is not finite come before all others.
inline uint32_t norm_magnitude(const Measures& of) {
  if (of.largest >= kInfinity) return of.largest;
  return std::min(magnitude(static_cast<float>(std::sqrt(of.squares))), kInfinity - 1);
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
  std::span<float> values() const {
    return {reinterpret_cast<float*>(data), static_cast<size_t>(room)};
  }
  std::span<uint32_t> place_list() const {
    return {reinterpret_cast<uint32_t*>(data + bytes(room, 0)), static_cast<size_t>(places)};
  }

  // What sparse formats do to elements that they have not sent: those that are not finite were
  // found, and are not kept. Where there are some, the packet has one.
  void drop_not_finite(std::span<float> dst) const {
    if (largest_magnitude(values()) < kInfinity) return;
    for (float& value : dst)
      if (!finite(value)) value = 0;
  }
};

// Formats that code every number at its place: any stretch of blocks by itself. pack() takes a
// stretch through all it does while the nearest cache holds it.
class DenseWire : public Wire {
 public:
  // `block`: elements that are coded together.
  DenseWire(const WireFormat& format, int64_t block) : Wire(format), block_(block) {}
  void encode(std::span<const float> values, const WireDraw& draw, std::byte* packet) final;
  void apply(const std::byte* packet, const WireDraw& draw, Apply how, std::span<float> dst) final;
  Squares pack(std::span<float> values, const WireDraw& draw, std::byte* packet) final;

 protected:
  int64_t block() const { return block_; }
  // Elements [begin, end) of `values`; a stretch begins at a block and at a byte of any code.
  struct Stretch {
    int64_t begin, end;
  };
  virtual void encode_part(std::span<const float> values, Stretch part, const WireDraw& draw,
                           std::byte* packet) = 0;
  virtual void apply_part(const std::byte* packet, Stretch part, Apply how,
                          std::span<float> dst) = 0;
  // encode_part(), and apply_part() that subtracts; formats that can do both at once.
  virtual Squares keep_part(std::span<float> values, Stretch part, const WireDraw& draw,
                            std::byte* packet);
  // The bytes that no stretch writes.
  virtual void finish(std::byte* packet, int64_t elems) { clear_tail(packet, packet_bytes(elems)); }

 private:
  const int64_t block_;
};

// Formats that choose what they send: as a packet is written, it is known what is left.
class ChoosingWire : public Wire {
 public:
  using Wire::Wire;
  void encode(std::span<const float> values, const WireDraw& draw, std::byte* packet) final {
    write(values, draw, Lost::unmeasured, packet);
  }
  Squares pack(std::span<float> values, const WireDraw& draw, std::byte* packet) final {
    Squares squares = write(values, draw, Lost::measured, packet);
    apply(packet, draw, Apply::subtract, values);
    // What was not finite is gone.
    if (!std::isfinite(squares.given)) squares.lost = measure(values).squares;
    return squares;
  }

 private:
  // encode(): the squares of all numbers, and of what is not sent, if they are measured.
  virtual Squares write(std::span<const float> values, const WireDraw& draw, Lost lost,
                        std::byte* packet) = 0;
};

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
std::unique_ptr<Wire> make_rows(const WireFormat& format);
std::unique_ptr<Wire> make_importance(const WireFormat& format);

}  // namespace onefold::wire
