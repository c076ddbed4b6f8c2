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

// Codes: how levels are stored. kLevels; bytes(elems); finish(codes, elems), what no block writes;
// store(codes, first, values, unit, words), of values from place `first` on; keep(codes, first,
// values, unit), the same to the nearest, and values become what codes lack, if keeps(block);
// load(codes, first, unit, how, dst).
template <class Codes>
class IntWire final : public DenseWire {
 public:
  explicit IntWire(const WireFormat& format)
      : DenseWire(format, format.block), stochastic_(format.stochastic) {}

  int64_t packet_bytes(int64_t elems) const override {
    return round_up(scale_bytes(elems) + Codes::bytes(elems), 4);
  }

 private:
  static constexpr uint16_t kNoScale = 0x7FC0;

  void finish(std::byte* packet, int64_t elems) override {
    DenseWire::finish(packet, elems);
    Codes::finish(packet + scale_bytes(elems), elems);
  }

  void encode_part(std::span<const float> values, Stretch part, const WireDraw& draw,
                   std::byte* packet) override {
    auto* const scales = reinterpret_cast<uint16_t*>(packet);
    std::byte* const codes = packet + scale_bytes(static_cast<int64_t>(values.size()));
    const auto store = [&](int64_t first, int64_t end, const uint32_t* words) {
      const uint16_t scale = scales[first / block()];
      const auto elems = static_cast<size_t>(end - first);
      // The codes of a block without a scale count for nothing; they are those of zeros.
      if (scale == kNoScale)
        Codes::store(codes, first, std::vector<float>(elems), 1, nullptr);
      else
        Codes::store(codes, first, values.subspan(static_cast<size_t>(first), elems),
                     bf16_to_f32(scale), words);
    };
    for (int64_t first = part.begin; first < part.end; first += block()) {
      const int64_t end = std::min(first + block(), part.end);
      scales[first / block()] = scale_of(largest_magnitude(
          values.subspan(static_cast<size_t>(first), static_cast<size_t>(end - first))));
      if (!stochastic_) store(first, end, nullptr);
    }
    if (!stochastic_) return;
    for_each_draw(draw.own, part.begin, part.end,
                  [&](int64_t first, std::span<const uint32_t> words) {
                    const int64_t end = first + static_cast<int64_t>(words.size());
                    for (int64_t at = first, until = 0; at < end; at = until) {
                      until = std::min(end, (at / block() + 1) * block());
                      store(at, until, words.data() + (at - first));
                    }
                  });
  }

  Squares keep_part(std::span<float> values, Stretch part, const WireDraw& draw,
                    std::byte* packet) override {
    if (stochastic_ || !Codes::keeps(block()))
      return DenseWire::keep_part(values, part, draw, packet);
    auto* const scales = reinterpret_cast<uint16_t*>(packet);
    std::byte* const codes = packet + scale_bytes(static_cast<int64_t>(values.size()));
    Squares squares;
    for (int64_t first = part.begin; first < part.end; first += block()) {
      const int64_t end = std::min(first + block(), part.end);
      const auto here =
          values.subspan(static_cast<size_t>(first), static_cast<size_t>(end - first));
      const Measures given = measure(here);
      squares.given += given.squares;
      const uint16_t scale = scales[first / block()] = scale_of(given.largest);
      if (scale == kNoScale) std::fill(here.begin(), here.end(), 0.0f);
      squares.lost += Codes::keep(codes, first, here, scale == kNoScale ? 1 : bf16_to_f32(scale));
    }
    return squares;
  }

  void apply_part(const std::byte* packet, Stretch part, Apply how, std::span<float> dst) override {
    const auto* const scales = reinterpret_cast<const uint16_t*>(packet);
    const std::byte* const codes = packet + scale_bytes(static_cast<int64_t>(dst.size()));
    for (int64_t first = part.begin; first < part.end; first += block()) {
      const int64_t end = std::min(first + block(), part.end);
      Codes::load(codes, first, bf16_to_f32(scales[first / block()]), how,
                  dst.subspan(static_cast<size_t>(first), static_cast<size_t>(end - first)));
    }
  }

  int64_t scale_bytes(int64_t elems) const {
    return blocks_of(elems, block()) * int64_t{sizeof(uint16_t)};
  }

  // Rounded up: the upper half of the bits, and one more if anything was below.
  static uint16_t scale_of(uint32_t most) {
    if (most >= kInfinity) return kNoScale;
    const float scale = std::bit_cast<float>(most) / static_cast<float>(Codes::kLevels);
    const auto upper = static_cast<uint16_t>((std::bit_cast<uint32_t>(scale) + 0xFFFFu) >> 16);
    if (!finite(static_cast<float>(Codes::kLevels) * bf16_to_f32(upper))) return upper - 1;
    return std::max<uint16_t>(upper, 1);
  }

  const bool stochastic_;
};

}  // namespace onefold::wire
