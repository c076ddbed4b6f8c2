// bf16: 2 bytes for each number.
//
// Error: to the nearest at most 2^-8 |x| + 2^-134, stochastically less than 2^-7 |x| + 2^-133 (half
// of, or all of, the distance of neighbours). A finite number whose neighbour is infinite becomes
// the largest of bf16, which is off by less than 2^-7 |x|.
// What subtract leaves is exact: both numbers are multiples of the least bit of x, and their
// difference is smaller than x.
#include "comm/wire_parts.h"

namespace onefold::wire {
namespace {

class Bf16Wire final : public Wire {
 public:
  explicit Bf16Wire(const WireFormat& format) : stochastic_(format.stochastic) {}

  int64_t packet_bytes(int64_t elems) const override {
    return round_up(elems * int64_t{sizeof(uint16_t)}, 4);
  }

  void encode(std::span<const float> values, const WireDraw& draw, std::byte* packet) override {
    clear_tail(packet, packet_bytes(static_cast<int64_t>(values.size())));
    auto* const codes = reinterpret_cast<uint16_t*>(packet);
    const auto stored = [](uint16_t code, float value) -> uint16_t {
      return (code & 0x7FFF) == kInfinite && finite(value) ? code - 1 : code;
    };
    if (!stochastic_)
      for (size_t i = 0; i < values.size(); ++i)
        codes[i] = stored(f32_to_bf16(values[i]), values[i]);
    else
      for_each_draw(draw.own, static_cast<int64_t>(values.size()),
                    [&](int64_t first, std::span<const uint32_t> words) {
                      const auto part = values.subspan(static_cast<size_t>(first), words.size());
                      for (size_t i = 0; i < words.size(); ++i)
                        codes[static_cast<size_t>(first) + i] =
                            stored(f32_to_bf16_drawn(part[i], words[i]), part[i]);
                    });
  }

  void apply(const std::byte* packet, const WireDraw&, Apply how, std::span<float> dst) override {
    const auto* const codes = reinterpret_cast<const uint16_t*>(packet);
    with(how, [&](const auto& put) {
      for (size_t i = 0; i < dst.size(); ++i) put(bf16_to_f32(codes[i]), dst[i]);
    });
  }

 private:
  static constexpr uint16_t kInfinite = 0x7F80;
  const bool stochastic_;
};

}  // namespace

std::unique_ptr<Wire> make_bf16(const WireFormat& format) {
  return std::make_unique<Bf16Wire>(format);
}

}  // namespace onefold::wire
