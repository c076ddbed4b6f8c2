// 1 bit for each number, its sign, and 2 bytes for each block, the mean of its
// magnitudes in bf16.
//
// Error: a decoded number is the mean m with the sign of x, so it is off by ||x| - m|, which is at
// most the block's largest magnitude, and 2^-8 m + 2^-134 more for the rounding of the mean.
// What subtract leaves is rounded once: it is exact where m <= 2 |x| and |x| <= 2 m.
// A block with something that is not finite has a mean that is no number.
#include "comm/wire_parts.h"

namespace onefold::wire {
namespace {

class SignWire final : public DenseWire {
 public:
  explicit SignWire(const WireFormat& format) : DenseWire(format, format.block) {}

  int64_t packet_bytes(int64_t elems) const override {
    return round_up(mean_bytes(elems) + (elems + 7) / 8, 4);
  }

 private:
  struct Block {
    int64_t first, end;
    template <class T>
    std::span<T> of(std::span<T> values) const {
      return values.subspan(static_cast<size_t>(first), static_cast<size_t>(end - first));
    }
  };
  // Blocks that do not begin at a byte: all signs of a stretch at once, and then the means.
  bool at_bytes() const { return block() % 8 == 0; }
  template <class Visit>
  void for_each_block(Stretch part, const Visit& visit) const {
    for (int64_t first = part.begin; first < part.end; first += block())
      visit(Block{first, std::min(first + block(), part.end)});
  }
  uint16_t* mean_at(std::byte* packet, int64_t first) const {
    return reinterpret_cast<uint16_t*>(packet) + first / block();
  }
  uint8_t* signs_at(std::byte* packet, int64_t elems, int64_t first) const {
    return reinterpret_cast<uint8_t*>(packet + mean_bytes(elems)) + first / 8;
  }

  void encode_part(std::span<const float> values, Stretch part, const WireDraw&,
                   std::byte* packet) override {
    const auto elems = static_cast<int64_t>(values.size());
    const Block all{part.begin, part.end};
    if (!at_bytes()) pack_signs(all.of(values), signs_at(packet, elems, part.begin));
    for_each_block(part, [&](const Block& block) {
      const std::span<const float> here = block.of(values);
      double sum = 0;
      const uint32_t largest = largest_magnitude(here, sum);
      *mean_at(packet, block.first) = mean_of(here.size(), largest, sum);
      if (at_bytes()) pack_signs(here, signs_at(packet, elems, block.first));
    });
  }

  Squares keep_part(std::span<float> values, Stretch part, const WireDraw&,
                    std::byte* packet) override {
    const auto elems = static_cast<int64_t>(values.size());
    const Block all{part.begin, part.end};
    if (!at_bytes()) pack_signs(all.of(values), signs_at(packet, elems, part.begin));
    Squares squares;
    for_each_block(part, [&](const Block& block) {
      const std::span<float> here = block.of(values);
      double sum = 0;
      const Measures given = measure(here, sum);
      const uint16_t mean = mean_of(here.size(), given.largest, sum);
      *mean_at(packet, block.first) = mean;
      if (at_bytes()) pack_signs(here, signs_at(packet, elems, block.first));
      squares.given += given.squares;
      if (mean == kNoMean)
        std::fill(here.begin(), here.end(), 0.0f);
      else
        squares.lost += keep_signs(here, bf16_to_f32(mean));
    });
    return squares;
  }

  void apply_part(const std::byte* packet, Stretch part, Apply how, std::span<float> dst) override {
    const auto* const means = reinterpret_cast<const uint16_t*>(packet);
    const auto* const signs =
        reinterpret_cast<const uint8_t*>(packet + mean_bytes(static_cast<int64_t>(dst.size())));
    for (int64_t first = part.begin; first < part.end; first += block()) {
      const float mean = bf16_to_f32(means[first / block()]);
      const int64_t end = std::min(first + block(), part.end);
      int64_t at = first;
      for (; at < end && at % 8 != 0; ++at) {
        const auto sign = static_cast<uint8_t>(signs[at / 8] >> (at % 8));
        unpack_signs(&sign, mean, how, dst.subspan(static_cast<size_t>(at), 1));
      }
      unpack_signs(signs + at / 8, mean, how,
                   dst.subspan(static_cast<size_t>(at), static_cast<size_t>(end - at)));
    }
  }

  int64_t mean_bytes(int64_t elems) const {
    return blocks_of(elems, block()) * int64_t{sizeof(uint16_t)};
  }

  static constexpr uint16_t kNoMean = 0x7FC0;

  // The mean of finite numbers is finite, in bf16 too if it is cut off there.
  static uint16_t mean_of(size_t elems, uint32_t largest, double sum) {
    if (largest >= kInfinity) return kNoMean;
    const uint16_t mean = f32_to_bf16(static_cast<float>(sum / static_cast<double>(elems)));
    return mean == 0x7F80 ? uint16_t{0x7F7F} : mean;
  }
};

}  // namespace

std::unique_ptr<Wire> make_sign(const WireFormat& format) {
  return std::make_unique<SignWire>(format);
}

}  // namespace onefold::wire
