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
// S is known when all numbers were read, and they are read once: so there are two draws. The first,
// of the numbers, has a lower level l, from a sample, and makes about a quarter more candidates
// than there is room for: each stands for l, or for itself if it is larger. The second is that of
// above, of the candidates. Means of means are right; and whether l will do is decided by exact
// sums, not by what was drawn, so that they stay so.
//
// Error: at most S / k, 2^-4 of that more for sixteen lines that begin and end between two draws,
// and 2^-20 for rounding; none if there is room for all. The mean of what stands for x is off by at
// most a level / kLine, and 2^-20 of x. What subtract leaves is rounded once where a level was
// sent.
#include <cmath>
#include <limits>
#include <numeric>

#include "comm/wire_sparse.h"

namespace onefold::wire {
namespace {

class ImportanceWire final : public SparseWire {
 public:
  using SparseWire::SparseWire;

 private:
  // Numbers that are drawn from: candidates and their places, or all numbers. What is sent of one
  // is taken away from it.
  struct Items {
    std::span<float> numbers;
    std::span<const uint32_t> places = {};  // of candidates
    std::span<const float> large = {};      // those of at least the level
    float level = 0;                        // the least that a candidate stands for
    double others = 0;                      // squares of what is no candidate

    int64_t drawn() const { return static_cast<int64_t>(numbers.size() - large.size()); }
    double size(size_t i) const { return double{std::max(std::abs(numbers[i]), level)}; }
  };
  // A packet that is filled from its beginning.
  struct Sender {
    const Items& items;
    const Entries& entries;
    int64_t sent = 0;

    void send(size_t i, double size) {
      constexpr double kMost = std::numeric_limits<float>::max();
      float& number = items.numbers[i];
      const float value = std::copysign(static_cast<float>(std::min(size, kMost)), number);
      entries.set_value(sent, value);
      entries.set_place(sent++, items.places.empty() ? static_cast<uint32_t>(i) : items.places[i]);
      number -= value;
    }
  };

  Squares write(std::span<const float> values, const WireDraw& draw, Lost lost,
                std::byte* packet) override {
    require_places(values.size());
    const Entries entries = entries_of(packet, static_cast<int64_t>(values.size()));
    if (entries.room >= static_cast<int64_t>(values.size())) {
      std::copy(values.begin(), values.end(), entries.values().begin());
      std::iota(entries.place_list().begin(), entries.place_list().end(), 0u);
      return {.given = measure(values).squares, .lost = 0};
    }
    const Items items = items_of(values, draw.own, lost, entries.room);
    const Measures given = measure(items.numbers);
    Sender sender{items, entries};
    if (given.largest >= kInfinity) {
      entries.set_value(0, kNotANumber);
      entries.set_place(0, 0);
      sender.sent = 1;
    } else if (items.large.empty()) {
      draw_evenly(philox_word(draw.own, 0), sender);
    } else {
      draw_numbers(levels_of(items, entries.room), philox_uniform(philox_word(draw.own, 0)),
                   sender);
    }
    leave_empty(entries, sender.sent, values.size());
    Squares squares{.given = items.others + given.squares, .lost = items.others};
    if (lost == Lost::measured) squares.lost += measure(items.numbers).squares;
    return squares;
  }

  // Candidates, if a level is found that makes enough and not too many; else all numbers.
  Items items_of(std::span<const float> values, PhiloxKey key, Lost lost, int64_t room) {
    constexpr int64_t kLeast = 16384, kLeastRoom = 256, kAttempts = 4;
    constexpr double kLines = 16;  // each begins and ends between two draws
    if (static_cast<int64_t>(values.size()) < kLeast || room < kLeastRoom) return all_of(values);
    places_.resize(static_cast<size_t>(2 * room + 64));
    candidates_.resize(places_.size());
    const double most = static_cast<double>(places_.size()) - 3 * kLines;
    std::array<uint32_t, 16> starts;
    draw_words(key, 16, starts);
    // The level that leaves a quarter more than this room.
    const auto level_for = [](double sum, int64_t places) {
      return static_cast<float>(0.8 * sum / static_cast<double>(places));
    };
    float level = level_for(sampled_sum(values), room);
    bool summed = false;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      DrawnPlaces drawn;
      if (level >= kLeastLevel && std::isfinite(level))
        drawn = draw_places(values, level, starts, lost, places_, candidates_);
      if (drawn.all) {
        Items items;
        items.numbers = std::span(candidates_).first(static_cast<size_t>(drawn.count));
        items.places = places_;
        items.level = level;
        items.others = drawn.others;
        large_.resize(items.numbers.size());
        large_places_.resize(items.numbers.size());
        const int64_t large =
            find_places(items.numbers, magnitude(level), 0, Lost::unmeasured, large_places_, large_)
                .count;
        items.large = std::span(large_).first(static_cast<size_t>(large));
        // In levels: what lines have passed, exactly.
        auto passed = static_cast<double>(drawn.count - large);
        for (size_t line = 0; line < starts.size(); ++line)
          passed += (double(drawn.ends[line]) - double(starts[line] % kLine)) / kLine;
        const double count = passed + static_cast<double>(large);
        if (passed >= kLines * kLines && count >= static_cast<double>(room) + kLines &&
            count <= most)
          return items;
        if (large >= room) return all_of(values);
        level = level_for(passed * double{level}, room - large);
      } else if (summed) {
        return all_of(values);
      } else {
        double sum = 0;
        if (largest_magnitude(values, sum) >= kInfinity) return all_of(values);
        if (sum == 0) return {};
        level = level_for(sum, room);
        summed = true;
      }
    }
    return all_of(values);
  }

  Items all_of(std::span<const float> values) {
    candidates_.assign(values.begin(), values.end());
    return {.numbers = candidates_, .large = values};
  }

  // Of magnitudes, as runs of neighbours here and there have them.
  static double sampled_sum(std::span<const float> values) {
    constexpr size_t kRun = 4, kLeastRuns = 1024, kShare = 1024;
    const size_t runs = std::max(kLeastRuns, values.size() / kShare / kRun);
    double sum = 0;
    for_each_sample(values, runs, kRun, [&](float value) { sum += std::abs(double{value}); });
    return sum * static_cast<double>(values.size()) / static_cast<double>(runs * kRun);
  }

  // What is sent as it is, and what a draw of the rest stands for.
  struct Levels {
    double exact = std::numeric_limits<double>::infinity();  // from this magnitude on
    double level = 0;
    int64_t draws = 0;
  };

  static Levels levels_of(const Items& items, int64_t room) {
    constexpr int kRounds = 2;
    const double drawn = double{items.level} * static_cast<double>(items.drawn());
    Levels levels;
    for (int round = 0; round <= kRounds; ++round) {
      std::array<double, 4> masses = {drawn};  // so that no addition waits for the one before
      double largest = 0;
      levels.draws = room;
      for (size_t i = 0; i < items.large.size(); ++i) {
        const double size = std::abs(double{items.large[i]});
        const bool small = size < levels.exact;
        masses[i % 4] += small ? size : 0.0;
        largest = std::max(largest, small ? size : 0.0);
        levels.draws -= !small;
      }
      const double mass = (masses[0] + masses[1]) + (masses[2] + masses[3]);
      if (levels.draws <= 0 || mass == 0) return {levels.exact, 0, 0};
      levels.level = mass / static_cast<double>(levels.draws);
      if (largest < levels.level) break;
      if (round < kRounds) levels.exact = levels.level;
    }
    return levels;
  }

  // Of candidates that all stand for the same: the chance of each is the room as a share of them.
  static void draw_evenly(uint32_t word, Sender& sender) {
    const auto count = static_cast<uint64_t>(sender.items.drawn());
    const auto room = static_cast<uint64_t>(sender.entries.room);
    if (count == 0) return;
    const double level =
        double{sender.items.level} * static_cast<double>(count) / static_cast<double>(room);
    // Draw m is of candidate (m count + start) / room, rounded down.
    const uint64_t start = word * count >> 32;
    uint64_t i = start / room, rest = start % room;
    for (uint64_t m = 0; m < room; ++m) {
      sender.send(i, level);
      rest += count % room;
      i += count / room + (rest >= room ? 1 : 0);
      rest -= rest >= room ? room : 0;
    }
  }

  static void draw_numbers(const Levels& levels, double start, Sender& sender) {
    const Items& items = sender.items;
    double passed = 0, next = levels.level * start;  // the place of the next draw
    int64_t drawn = 0;
    for (size_t i = 0; i < items.numbers.size(); ++i) {
      const double size = items.size(i);
      if (size >= levels.exact) {
        sender.send(i, size);
        continue;
      }
      passed += size;
      const int64_t before = drawn;
      while (drawn < levels.draws && passed > next)
        next = levels.level * (start + static_cast<double>(++drawn));
      if (drawn > before && size > 0)
        sender.send(i, levels.level * static_cast<double>(drawn - before));
    }
  }

  // The memory is reused by later calls.
  std::vector<uint32_t> places_, large_places_;
  std::vector<float> candidates_, large_;
};

}  // namespace

std::unique_ptr<Wire> make_importance(const WireFormat& format) {
  return std::make_unique<ImportanceWire>(format);
}

}  // namespace onefold::wire
