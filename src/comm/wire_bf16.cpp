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

class Bf16Wire final : public DenseWire {
 public:
  explicit Bf16Wire(const WireFormat& format)
      : DenseWire(format, 1), stochastic_(format.stochastic) {}

  int64_t packet_bytes(int64_t elems) const override {
    return round_up(elems * int64_t{sizeof(uint16_t)}, 4);
  }

 private:
  void encode_part(std::span<const float> values, Stretch part, const WireDraw& draw,
                   std::byte* packet) override {
    auto* const codes = reinterpret_cast<uint16_t*>(packet);
    const auto pack = [&](int64_t first, size_t elems, const uint32_t* words) {
      pack_bf16(values.subspan(static_cast<size_t>(first), elems), words, codes + first);
    };
    if (!stochastic_) return pack(part.begin, static_cast<size_t>(part.end - part.begin), nullptr);
    for_each_draw(draw.own, part.begin, part.end,
                  [&](int64_t first, std::span<const uint32_t> words) {
                    pack(first, words.size(), words.data());
                  });
  }

  Squares keep_part(std::span<float> values, Stretch part, const WireDraw& draw,
                    std::byte* packet) override {
    const auto here =
        values.subspan(static_cast<size_t>(part.begin), static_cast<size_t>(part.end - part.begin));
    const Measures given = measure(here);
    if (stochastic_ || given.largest >= kInfinity)
      return DenseWire::keep_part(values, part, draw, packet);
    return {given.squares, keep_bf16(here, reinterpret_cast<uint16_t*>(packet) + part.begin)};
  }

  void apply_part(const std::byte* packet, Stretch part, Apply how, std::span<float> dst) override {
    unpack_bf16(
        reinterpret_cast<const uint16_t*>(packet) + part.begin, how,
        dst.subspan(static_cast<size_t>(part.begin), static_cast<size_t>(part.end - part.begin)));
  }

  const bool stochastic_;
};

}  // namespace

std::unique_ptr<Wire> make_bf16(const WireFormat& format) {
  return std::make_unique<Bf16Wire>(format);
}

}  // namespace onefold::wire
