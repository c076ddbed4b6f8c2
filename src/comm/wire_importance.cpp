// Numbers that are drawn in proportion to their magnitudes (Wangni et al. 2018): 8 bytes for each
// that there is room for, fp32 and its place.
//
// With room for k numbers whose magnitudes sum to S, what is at least S / k is sent as it is, and
// leaves sum and room to the rest: a few times over. Of the rest a draw stands for a level L, the
// sum that is left over the room that is left, which is at most S / k. Draws lie L apart on the
// line of magnitudes, from a drawn place on, so that a number is drawn |x| / L times, rounded down
// or up, and on average exactly so; each draw sends L with the number's sign. So the mean of what
// packets hold is what was given, without error feedback too.
//
// Error: at most S / k, and 2^-20 of that for rounding; none if there is room for all. What
// subtract leaves is rounded once where a level was sent.
#include <cmath>
#include <limits>

#include "comm/wire_parts.h"

namespace onefold::wire {
namespace {

class ImportanceWire final : public Wire {
 public:
  explicit ImportanceWire(const WireFormat& format) : density_(format.density) {}

  int64_t packet_bytes(int64_t elems) const override {
    const int64_t room = sent_elems(density_, elems);
    return Entries::bytes(room, room);
  }

  void encode(std::span<const float> values, const WireDraw& draw, std::byte* packet) override {
    require_places(values.size());
    const int64_t room = sent_elems(density_, static_cast<int64_t>(values.size()));
    const Entries entries{packet, room, room};
    int64_t sent = 0;
    const auto send = [&](size_t place, float value) {
      entries.set_value(sent, value);
      entries.set_place(sent++, static_cast<uint32_t>(place));
    };
    if (largest_magnitude(values) >= kInfinity)
      send(0, kNotANumber);
    else
      draw_numbers(values, room, philox_uniform(philox_word(draw.own, 0)), send);
    for (; sent < room; ++sent) {
      entries.set_value(sent, 0);
      entries.set_place(sent, static_cast<uint32_t>(values.size()));
    }
  }

  void apply(const std::byte* packet, const WireDraw&, Apply how, std::span<float> dst) override {
    const auto elems = static_cast<int64_t>(dst.size());
    const int64_t room = sent_elems(density_, elems);
    const Entries entries{const_cast<std::byte*>(packet), room, room};
    if (how == Apply::set) std::fill(dst.begin(), dst.end(), 0.0f);
    for (int64_t i = 0; i < room; ++i) {
      const int64_t place = entries.place(i);
      if (place >= elems) continue;
      float& to = dst[static_cast<size_t>(place)];
      if (how == Apply::clear)
        to = 0;
      else
        to += how == Apply::subtract ? -entries.value(i) : entries.value(i);
    }
    if (how == Apply::subtract) entries.drop_not_finite(dst);
  }

 private:
  // What is sent as it is, and what a draw of the rest stands for.
  struct Levels {
    double exact = 0;  // from this magnitude on
    double level = 0;
    int64_t draws = 0;
  };

  static Levels levels_of(std::span<const float> values, int64_t room) {
    constexpr int kRounds = 2;
    Levels levels{.exact = std::numeric_limits<double>::infinity(), .level = 0, .draws = room};
    for (int round = 0; round <= kRounds; ++round) {
      // In parts, so that no addition waits for the one before; how many fixes the bits.
      std::array<double, 8> masses = {};
      std::array<int64_t, 8> exact = {};
      const auto add = [&](size_t part, float value) {
        const double size = std::abs(double{value});
        const bool small = size < levels.exact;
        masses[part] += small ? size : 0.0;
        exact[part] += !small;
      };
      const size_t even = values.size() / 8 * 8;
      for (size_t i = 0; i < even; i += 8)
        for (size_t part = 0; part < 8; ++part) add(part, values[i + part]);
      for (size_t i = even; i < values.size(); ++i) add(i - even, values[i]);
      double mass = 0;
      levels.draws = room;
      for (size_t part = 0; part < 8; ++part) {
        mass += masses[part];
        levels.draws -= exact[part];
      }
      if (levels.draws <= 0 || mass == 0) return {levels.exact, 0, 0};
      levels.level = mass / static_cast<double>(levels.draws);
      if (round < kRounds) levels.exact = levels.level;
    }
    return levels;
  }

  template <class Send>
  static void draw_numbers(std::span<const float> values, int64_t room, float start,
                           const Send& send) {
    if (room >= static_cast<int64_t>(values.size())) {
      for (size_t i = 0; i < values.size(); ++i) send(i, values[i]);
      return;
    }
    const Levels levels = levels_of(values, room);
    double passed = 0, next = levels.level * double{start};  // the place of the next draw
    int64_t drawn = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double size = std::abs(double{values[i]});
      if (size >= levels.exact) {
        send(i, values[i]);
        continue;
      }
      passed += size;
      if (passed <= next || drawn == levels.draws) continue;
      const int64_t before = drawn;
      while (drawn < levels.draws && passed > next)
        next = levels.level * (double{start} + static_cast<double>(++drawn));
      if (size == 0) continue;
      const double value = levels.level * static_cast<double>(drawn - before);
      constexpr double kMost = std::numeric_limits<float>::max();
      send(i, std::copysign(static_cast<float>(std::min(value, kMost)), values[i]));
    }
  }

  const double density_;
};

}  // namespace

std::unique_ptr<Wire> make_importance(const WireFormat& format) {
  return std::make_unique<ImportanceWire>(format);
}

}  // namespace onefold::wire
