// int8 and int4: whole numbers from -L to L (127, 7) times a scale for each block, in bf16.
//
// The scale is the block's largest magnitude / L, rounded up to bf16, and at least the smallest of
// bf16, 2^-133. So with M the largest magnitude, s <= (M / L) (1 + 2^-7) + 2^-133, and the error is
// at most s / 2 to the nearest, and less than s stochastically. Zeros stay zeros.
// What subtract leaves is exact to the nearest: level times scale has at most 15 bits, all above
// the least bit of x (x is at most L times the scale), and the difference is no larger than x. A
// stochastic level may be far above a small x; then it is rounded once.
// Where L times the scale would be infinite, the scale is the next below; then what is beyond L
// times it is off by less than 2^-7 |x|.
// A block with something that is not finite has a scale that is no number.
#pragma once

#include "comm/wire_parts.h"

namespace onefold::wire {

// Codes: how levels of a block are stored. bytes(elems), store(codes, i, level), load(codes, i).
template <class Codes>
class IntWire final : public Wire {
 public:
  explicit IntWire(const WireFormat& format)
      : block_(format.block), stochastic_(format.stochastic) {}

  int64_t packet_bytes(int64_t elems) const override {
    return round_up(scale_bytes(elems) + Codes::bytes(elems), 4);
  }

  void encode(std::span<const float> values, const WireDraw& draw, std::byte* packet) override {
    const auto elems = static_cast<int64_t>(values.size());
    clear_tail(packet, packet_bytes(elems));
    auto* const scales = reinterpret_cast<uint16_t*>(packet);
    std::byte* const codes = packet + scale_bytes(elems);
    Codes::clear(codes, elems);
    for (int64_t first = 0; first < elems; first += block_) {
      const auto block = values.subspan(static_cast<size_t>(first),
                                        static_cast<size_t>(std::min(block_, elems - first)));
      const uint16_t scale = scale_of(largest(block));
      scales[first / block_] = scale;
      if (scale == kNoScale) continue;
      if (!stochastic_) Codes::store_block(codes, first, block, bf16_to_f32(scale));
    }
    if (stochastic_)
      for_each_draw(draw.own, elems, [&](int64_t first, std::span<const uint32_t> words) {
        const int64_t end = first + static_cast<int64_t>(words.size());
        for (int64_t at = first; at < end;) {
          const uint16_t scale = scales[at / block_];
          const float unit = bf16_to_f32(scale);
          const int64_t until = std::min(end, (at / block_ + 1) * block_);
          for (; at < until && scale != kNoScale; ++at)
            Codes::store(codes, at,
                         drawn_level(values[static_cast<size_t>(at)] / unit,
                                     philox_uniform(words[static_cast<size_t>(at - first)])));
          at = until;
        }
      });
  }

  void apply(const std::byte* packet, const WireDraw&, Apply how, std::span<float> dst) override {
    const auto elems = static_cast<int64_t>(dst.size());
    const auto* const scales = reinterpret_cast<const uint16_t*>(packet);
    const std::byte* const codes = packet + scale_bytes(elems);
    with(how, [&](const auto& put) {
      for (int64_t first = 0; first < elems; first += block_) {
        const float unit = bf16_to_f32(scales[first / block_]);
        const int64_t end = std::min(first + block_, elems);
        for (int64_t i = first; i < end; ++i)
          put(static_cast<float>(Codes::load(codes, i)) * unit, dst[static_cast<size_t>(i)]);
      }
    });
  }

 private:
  static constexpr uint16_t kNoScale = 0x7FC0;

  int64_t scale_bytes(int64_t elems) const {
    return blocks_of(elems, block_) * int64_t{sizeof(uint16_t)};
  }

  // Rounded up: the upper half of the bits, and one more if anything was below.
  static uint16_t scale_of(uint32_t most) {
    if (most >= kInfinity) return kNoScale;
    const float scale = std::bit_cast<float>(most) / static_cast<float>(Codes::kLevels);
    const auto upper = static_cast<uint16_t>((std::bit_cast<uint32_t>(scale) + 0xFFFFu) >> 16);
    if (!finite(static_cast<float>(Codes::kLevels) * bf16_to_f32(upper))) return upper - 1;
    return std::max<uint16_t>(upper, 1);
  }

  static int drawn_level(float ratio, float drawn) {
    const float moved = ratio + drawn;
    auto level = static_cast<int>(moved);
    level -= static_cast<int>(moved < static_cast<float>(level));  // the next whole number below
    return std::min(std::max(level, -Codes::kLevels), Codes::kLevels);
  }

  const int64_t block_;
  const bool stochastic_;
};

// To the nearest whole number, ties to even, for |ratio| below 2^22: where numbers have no
// fractions, the addition rounds.
inline float nearest(float ratio) {
  constexpr float kWhole = 0x1.8p23f;
  return (ratio + kWhole) - kWhole;
}

}  // namespace onefold::wire
