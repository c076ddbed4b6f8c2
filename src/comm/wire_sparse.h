// Sparse packets of single numbers: 8 bytes for each that there is room for, fp32 and its place.
//
// Error: none of what is sent; what is not sent decodes to 0 and is off by its own magnitude. What
// subtract leaves is exact: 0 where a number was sent, and the number itself elsewhere.
// Among numbers that are not finite one is sent, or stands for them in the first entry.
#pragma once

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
    const std::span<uint32_t> places = entries.place_list();
    const int64_t count = select(values, draw, places);
    bool found = false;  // something that is not finite
    for (int64_t i = 0; i < count; ++i) {
      const float value = values[places[static_cast<size_t>(i)]];
      entries.set_value(i, value);
      found |= !finite(value);
    }
    for (int64_t i = count; i < room; ++i) {
      entries.set_value(i, 0);
      entries.set_place(i, static_cast<uint32_t>(values.size()));
    }
    // The largest come first in what is selected, unless there was no room for all of it.
    if (found || count < room || sends_the_largest() || largest_magnitude(values) < kInfinity)
      return;
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
    if (how == Apply::subtract) entries.drop_not_finite(dst);
  }

 protected:
  // Writes the places of what is sent, as many as there is room for: how many. What is not finite
  // is among them as long as there is room.
  virtual int64_t select(std::span<const float> values, const WireDraw& draw,
                         std::span<uint32_t> places) = 0;
  // Whether nothing that is left out is larger than what is sent.
  virtual bool sends_the_largest() const { return false; }

  // From a drawn place on and around, those of at least this magnitude: where they are more than
  // there is room for, no place is always left out.
  static int64_t places_around(std::span<const float> values, PhiloxKey key, uint32_t least,
                               std::span<uint32_t> places) {
    const auto begin = static_cast<size_t>(philox_word(key, 0) % values.size());
    const int64_t behind =
        find_places(values.subspan(begin), least, static_cast<uint32_t>(begin), places);
    return behind +
           find_places(values.first(begin), least, 0, places.subspan(static_cast<size_t>(behind)));
  }

 private:
  const double density_;
};

}  // namespace onefold::wire
