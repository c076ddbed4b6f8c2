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

class SignWire final : public Wire {
 public:
  explicit SignWire(const WireFormat& format) : block_(format.block) {}

  int64_t packet_bytes(int64_t elems) const override {
    return round_up(mean_bytes(elems) + (elems + 7) / 8, 4);
  }

  void encode(std::span<const float> values, const WireDraw&, std::byte* packet) override {
    const auto elems = static_cast<int64_t>(values.size());
    clear_tail(packet, packet_bytes(elems));
    auto* const means = reinterpret_cast<uint16_t*>(packet);
    for (int64_t first = 0; first < elems; first += block_)
      means[first / block_] = mean_of(values.subspan(
          static_cast<size_t>(first), static_cast<size_t>(std::min(block_, elems - first))));
    auto* const bits = reinterpret_cast<uint8_t*>(packet + mean_bytes(elems));
    for (int64_t first = 0; first < elems; first += 8) {
      uint32_t byte = 0;
      for (int64_t i = first; i < std::min(first + 8, elems); ++i)
        byte |= (std::bit_cast<uint32_t>(values[static_cast<size_t>(i)]) >> 31) << (i - first);
      bits[first / 8] = static_cast<uint8_t>(byte);
    }
  }

  void apply(const std::byte* packet, const WireDraw&, Apply how, std::span<float> dst) override {
    const auto elems = static_cast<int64_t>(dst.size());
    const auto* const means = reinterpret_cast<const uint16_t*>(packet);
    const auto* const bits = reinterpret_cast<const uint8_t*>(packet + mean_bytes(elems));
    with(how, [&](const auto& put) {
      for (int64_t first = 0; first < elems; first += block_) {
        const uint32_t mean = static_cast<uint32_t>(means[first / block_]) << 16;
        const int64_t end = std::min(first + block_, elems);
        for (int64_t i = first; i < end; ++i) {  // no branches: signs cannot be foreseen
          const uint32_t negative = static_cast<uint32_t>(bits[i / 8]) >> (i % 8) & 1u;
          put(std::bit_cast<float>(mean | negative << 31), dst[static_cast<size_t>(i)]);
        }
      }
    });
  }

 private:
  int64_t mean_bytes(int64_t elems) const {
    return blocks_of(elems, block_) * int64_t{sizeof(uint16_t)};
  }

  // Summed in double, eight sums at a time in a fixed order. The mean of finite numbers is finite,
  // in bf16 too if it is cut off there.
  static uint16_t mean_of(std::span<const float> block) {
    if (largest(block) >= kInfinity) return 0x7FC0;
    std::array<double, 8> sums{};
    for (size_t i = 0; i < block.size(); ++i)
      sums[i % 8] += std::bit_cast<float>(magnitude(block[i]));
    double sum = 0;
    for (const double part : sums) sum += part;
    const uint16_t mean = f32_to_bf16(static_cast<float>(sum / static_cast<double>(block.size())));
    return mean == 0x7F80 ? 0x7F7F : mean;
  }

  const int64_t block_;
};

}  // namespace

std::unique_ptr<Wire> make_sign(const WireFormat& format) {
  return std::make_unique<SignWire>(format);
}

}  // namespace onefold::wire
