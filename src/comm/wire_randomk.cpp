// One number out of each of equal stretches, drawn alike on all ranks: 4 bytes for each, and no
// places.
//
// Error: none of what is sent; the rest decodes to 0. What subtract leaves is exact, as with other
// sparse packets. Numbers are sent as they are: without error feedback the mean of many draws is
// the numbers times the density.
#include <utility>

#include "comm/wire_parts.h"

namespace onefold::wire {
namespace {

class RandomWire final : public Wire {
 public:
  explicit RandomWire(const WireFormat& format) : Wire(format), density_(format.density) {}

  int64_t packet_bytes(int64_t elems) const override {
    return Entries::bytes(sent_elems(density_, elems), 0);
  }

  void encode(std::span<const float> values, const WireDraw& draw, std::byte* packet) override {
    const auto elems = static_cast<int64_t>(values.size());
    const Entries entries = entries_of(packet, elems);
    uint32_t largest = 0;
    for_each_run(draw.common, entries.room, elems, [&](const Run& run) {
      largest = std::max(largest, largest_magnitude(run.of(values)));
      for (size_t k = 0; k < run.places.size(); ++k)
        entries.set_value(run.first + static_cast<int64_t>(k),
                          values[static_cast<size_t>(run.places[k])]);
    });
    if (largest >= kInfinity) entries.set_value(0, kNotANumber);
  }

  // What is sent is taken away before the rest is looked at.
  Squares pack(std::span<float> values, const WireDraw& draw, std::byte* packet) override {
    const auto elems = static_cast<int64_t>(values.size());
    const Entries entries = entries_of(packet, elems);
    Squares squares;
    uint32_t largest = 0;
    for_each_run(draw.common, entries.room, elems, [&](const Run& run) {
      // In order, so that memory is read ahead of the places.
      largest = std::max(largest, largest_magnitude(run.of(values)));
      for (size_t k = 0; k < run.places.size(); ++k) {
        float& value = values[static_cast<size_t>(run.places[k])];
        entries.set_value(run.first + static_cast<int64_t>(k), value);
        squares.given += square(std::exchange(value, 0.0f));
      }
      squares.lost += measure(run.of(values)).squares;
    });
    squares.given += squares.lost;
    if (largest < kInfinity) return squares;
    entries.set_value(0, kNotANumber);
    entries.drop_not_finite(values);
    squares.lost = measure(values).squares;
    return squares;
  }

  void apply(const std::byte* packet, const WireDraw& draw, Apply how,
             std::span<float> dst) override {
    const auto elems = static_cast<int64_t>(dst.size());
    const Entries entries = entries_of(const_cast<std::byte*>(packet), elems);
    for_each_run(draw.common, entries.room, elems, [&](const Run& run) {
      const std::span<float> here = run.of(dst);
      if (how == Apply::set) std::fill(here.begin(), here.end(), 0.0f);
      for (size_t k = 0; k < run.places.size(); ++k) {
        float& to = dst[static_cast<size_t>(run.places[k])];
        if (how == Apply::set || how == Apply::add)
          to += entries.value(run.first + static_cast<int64_t>(k));
        else
          to = 0;
      }
    });
    if (how == Apply::subtract) entries.drop_not_finite(dst);
  }

 private:
  Entries entries_of(std::byte* packet, int64_t elems) const {
    return {packet, sent_elems(density_, elems), 0};
  }

  // Some stretches: the number of the first one, where they begin and end, and one place in each.
  struct Run {
    int64_t first, begin, end;
    std::span<const int64_t> places;
    template <class T>
    std::span<T> of(std::span<T> values) const {
      return values.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    }
  };
  // Calls visit(run) for all `room` stretches, a few at a time, so that the nearest caches hold
  // their numbers.
  template <class Visit>
  static void for_each_run(PhiloxKey key, int64_t room, int64_t elems, const Visit& visit) {
    constexpr size_t kStretches = 32;
    std::array<int64_t, kStretches> places;
    int64_t begin = 0;
    for_each_draw(key, 0, room, [&](int64_t first, std::span<const uint32_t> words) {
      for (size_t w = 0; w < words.size(); w += kStretches) {
        const size_t count = std::min(kStretches, words.size() - w);
        Run run{first + static_cast<int64_t>(w), begin, begin, {places.data(), count}};
        for (size_t k = 0; k < count; ++k) {
          const int64_t end = (run.first + static_cast<int64_t>(k) + 1) * elems / room;
          places[k] =
              begin + static_cast<int64_t>(words[w + k] % static_cast<uint64_t>(end - begin));
          begin = end;
        }
        run.end = begin;
        visit(run);
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
