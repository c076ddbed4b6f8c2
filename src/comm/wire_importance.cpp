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

#include "comm/wire_sparse.h"

namespace onefold::wire {
namespace {

class ImportanceWire final : public SparseWire {
 public:
  using SparseWire::SparseWire;

  void encode(std::span<const float> values, const WireDraw& draw, std::byte* packet) override {
    require_places(values.size());
    const Entries entries = entries_of(packet, static_cast<int64_t>(values.size()));
    int64_t sent = 0;
    const auto send = [&](size_t place, float value) {
      entries.set_value(sent, value);
      entries.set_place(sent++, static_cast<uint32_t>(place));
    };
    if (entries.room >= static_cast<int64_t>(values.size()))
      for (size_t i = 0; i < values.size(); ++i) send(i, values[i]);
    else if (uint32_t largest = measure_all(values); largest >= kInfinity)
      send(0, kNotANumber);
    else
      draw_numbers(values, levels_of(values, entries.room),
                   double{philox_uniform(philox_word(draw.own, 0))}, send);
    leave_empty(entries, sent, values.size());
  }

 private:
  // What is sent as it is, and what a draw of the rest stands for.
  struct Levels {
    double exact = 0;  // from this magnitude on
    double level = 0;
    int64_t draws = 0;
  };

  // The one sweep over all numbers; what follows looks at parts of them, and at numbers of the few
  // parts that have something to send.
  uint32_t measure_all(std::span<const float> values) {
    parts_.resize((values.size() + kMeasuredPart - 1) / kMeasuredPart);
    measure_parts(values, parts_);
    uint32_t largest = 0;
    for (const PartMeasures& part : parts_) largest = std::max(largest, part.largest);
    return largest;
  }

  static std::span<const float> part_of(std::span<const float> values, size_t part) {
    const size_t first = part * kMeasuredPart;
    return values.subspan(first, std::min(kMeasuredPart, values.size() - first));
  }
  // Whether all numbers of a part are less.
  static bool below(const PartMeasures& part, double exact) {
    return double{std::bit_cast<float>(part.largest)} < exact;
  }

  Levels levels_of(std::span<const float> values, int64_t room) const {
    constexpr int kRounds = 2;
    Levels levels{.exact = std::numeric_limits<double>::infinity(), .level = 0, .draws = room};
    for (int round = 0; round <= kRounds; ++round) {
      std::array<double, 4> masses = {};  // so that no addition waits for the one before
      levels.draws = room;
      for (size_t p = 0; p < parts_.size(); ++p) {
        if (below(parts_[p], levels.exact)) {
          masses[p % 4] += parts_[p].magnitudes;
          continue;
        }
        for (const float value : part_of(values, p)) {
          const double size = std::abs(double{value});
          const bool small = size < levels.exact;
          masses[p % 4] += small ? size : 0.0;
          levels.draws -= !small;
        }
      }
      const double mass = (masses[0] + masses[1]) + (masses[2] + masses[3]);
      if (levels.draws <= 0 || mass == 0) return {levels.exact, 0, 0};
      levels.level = mass / static_cast<double>(levels.draws);
      if (round < kRounds) levels.exact = levels.level;
    }
    return levels;
  }

  template <class Send>
  void draw_numbers(std::span<const float> values, const Levels& levels, double start,
                    const Send& send) const {
    double passed = 0, next = levels.level * start;  // the place of the next draw
    int64_t drawn = 0;
    for (size_t p = 0; p < parts_.size(); ++p) {
      const bool small = below(parts_[p], levels.exact);
      if (small && (drawn == levels.draws || passed + parts_[p].magnitudes <= next)) {
        passed += parts_[p].magnitudes;
        continue;
      }
      for (size_t i = p * kMeasuredPart; const float number : part_of(values, p)) {
        const size_t place = i++;
        const double size = std::abs(double{number});
        if (size >= levels.exact) {
          send(place, number);
          continue;
        }
        passed += size;
        if (passed <= next || drawn == levels.draws) continue;
        const int64_t before = drawn;
        while (drawn < levels.draws && passed > next)
          next = levels.level * (start + static_cast<double>(++drawn));
        if (size == 0) continue;
        const double value = levels.level * static_cast<double>(drawn - before);
        constexpr double kMost = std::numeric_limits<float>::max();
        send(place, std::copysign(static_cast<float>(std::min(value, kMost)), number));
      }
    }
  }

  std::vector<PartMeasures> parts_;  // the memory is reused by later calls
};

}  // namespace

std::unique_ptr<Wire> make_importance(const WireFormat& format) {
  return std::make_unique<ImportanceWire>(format);
}

}  // namespace onefold::wire
