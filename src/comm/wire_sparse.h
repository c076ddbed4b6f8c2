// Sparse packets of single numbers: 8 bytes for each that there is room for, fp32 and its place.
//
// Error: none of what is sent; what is not sent decodes to 0 and is off by its own magnitude. What
// subtract leaves is exact: 0 where a number was sent, and the number itself elsewhere.
// Among numbers that are not finite one is sent, or stands for them in the first entry.
#pragma once

#include <functional>
#include <utility>

#include "comm/wire_parts.h"

namespace onefold::wire {

class SparseWire : public Wire {
 public:
  explicit SparseWire(const WireFormat& format) : density_(format.density) {}

  int64_t packet_bytes(int64_t elems) const override {
    const int64_t room = sent_elems(density_, elems);
    return Entries::bytes(room, room);
  }

  void encode(std::span<const float> values, const WireDraw& draw, std::byte* packet) override {
    require_places(values.size());
    const int64_t room = sent_elems(density_, static_cast<int64_t>(values.size()));
    const Entries entries{packet, room, room};
    int64_t count = 0;
    bool found = false;  // something that is not finite
    const auto send = [&](int64_t place) {
      const float value = values[static_cast<size_t>(place)];
      entries.set_value(count, value);
      entries.set_place(count, static_cast<uint32_t>(place));
      found |= !finite(value);
      return ++count < room;
    };
    select(values, draw, room, send);
    for (; count < room; ++count) {
      entries.set_value(count, 0);
      entries.set_place(count, static_cast<uint32_t>(values.size()));
    }
    if (found || largest(values) < kInfinity) return;
    entries.set_value(0, kNotANumber);
    entries.set_place(0, 0);
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
      if (how == Apply::set || how == Apply::add)
        to += entries.value(i);
      else
        to = 0;
    }
    if (how == Apply::subtract) drop_not_finite(dst);
  }

 protected:
  // Calls send(place) for what is sent, until it says that there is no more room.
  virtual void select(std::span<const float> values, const WireDraw& draw, int64_t room,
                      const std::function<bool(int64_t)>& send) const = 0;

  // From a drawn place on and around, those of at least this magnitude: where they are more than
  // there is room for, no place is always left out.
  static void send_from(std::span<const float> values, PhiloxKey key, uint32_t least,
                        const std::function<bool(int64_t)>& send) {
    const auto elems = static_cast<int64_t>(values.size());
    const auto begin = static_cast<int64_t>(philox_word(key, 0) % static_cast<uint64_t>(elems));
    for (const auto& [from, to] : {std::pair(begin, elems), std::pair(int64_t{0}, begin)})
      for (int64_t i = from; i < to; ++i)
        if (magnitude(values[static_cast<size_t>(i)]) >= least && !send(i)) return;
  }

  double density() const { return density_; }

 private:
  const double density_;
};

}  // namespace onefold::wire
