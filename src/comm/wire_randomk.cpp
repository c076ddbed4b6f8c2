// One number out of each of equal stretches, drawn alike on all ranks: 4 bytes for each, and no
// places.
//
// Error: none of what is sent; the rest decodes to 0. What subtract leaves is exact, as with other
// sparse packets. Numbers are sent as they are: without error feedback the mean of many draws is
// the numbers times the density.
#include "comm/wire_parts.h"

namespace onefold::wire {
namespace {

class RandomWire final : public Wire {
 public:
  explicit RandomWire(const WireFormat& format) : density_(format.density) {}

  int64_t packet_bytes(int64_t elems) const override {
    return Entries::bytes(sent_elems(density_, elems), 0);
  }

  void encode(std::span<const float> values, const WireDraw& draw, std::byte* packet) override {
    const auto elems = static_cast<int64_t>(values.size());
    const int64_t room = sent_elems(density_, elems);
    const Entries entries{packet, room, 0};
    for_each_place(draw.common, room, elems, [&](int64_t i, int64_t place) {
      entries.set_value(i, values[static_cast<size_t>(place)]);
    });
    if (largest_magnitude(values) >= kInfinity) entries.set_value(0, kNotANumber);
  }

  void apply(const std::byte* packet, const WireDraw& draw, Apply how,
             std::span<float> dst) override {
    const auto elems = static_cast<int64_t>(dst.size());
    const int64_t room = sent_elems(density_, elems);
    const Entries entries{const_cast<std::byte*>(packet), room, 0};
    if (how == Apply::set) std::fill(dst.begin(), dst.end(), 0.0f);
    for_each_place(draw.common, room, elems, [&](int64_t i, int64_t place) {
      float& to = dst[static_cast<size_t>(place)];
      if (how == Apply::set || how == Apply::add)
        to += entries.value(i);
      else
        to = 0;
    });
    if (how == Apply::subtract) entries.drop_not_finite(dst);
  }

 private:
  // Calls visit(i, place) for each of `room` stretches.
  template <class Visit>
  static void for_each_place(PhiloxKey key, int64_t room, int64_t elems, const Visit& visit) {
    int64_t begin = 0;
    for_each_draw(key, 0, room, [&](int64_t first, std::span<const uint32_t> words) {
      for (size_t w = 0; w < words.size(); ++w) {
        const int64_t i = first + static_cast<int64_t>(w), end = (i + 1) * elems / room;
        visit(i, begin + static_cast<int64_t>(words[w] % static_cast<uint64_t>(end - begin)));
        begin = end;
      }
    });
  }

  const double density_;
};

}  // namespace

std::unique_ptr<Wire> make_randomk(const WireFormat& format) {
  return std::make_unique<RandomWire>(format);
}

}  // namespace onefold::wire
