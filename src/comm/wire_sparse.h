// Sparse packets of single numbers: 8 bytes for each that there is room for, fp32 and its place.
//
// Of numbers that are sent as they are, the error is none; what is not sent decodes to 0 and is off
// by its own magnitude. What subtract leaves is exact: 0 where a number was sent, and the number
// itself elsewhere. Among numbers that are not finite one is sent, or stands for them in the first
// entry.
#pragma once

#include "comm/wire_parts.h"

namespace onefold::wire {

// Numbers at places of their own.
class SparseWire : public ChoosingWire {
 public:
  explicit SparseWire(const WireFormat& format) : ChoosingWire(format), density_(format.density) {}

  int64_t packet_bytes(int64_t elems) const final {
    const int64_t room = sent_elems(density_, elems);
    return Entries::bytes(room, room);
  }

  void apply(const std::byte* packet, const WireDraw&, Apply how, std::span<float> dst) final {
    const auto elems = static_cast<int64_t>(dst.size());
    const Entries entries = entries_of(const_cast<std::byte*>(packet), elems);
    if (how == Apply::set) std::fill(dst.begin(), dst.end(), 0.0f);
    // From the last on, which a sweep over the numbers has left in a cache.
    for (int64_t i = entries.room - 1; i >= 0; --i) {
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

 protected:
  Entries entries_of(std::byte* packet, int64_t elems) const {
    const int64_t room = sent_elems(density_, elems);
    return {packet, room, room};
  }
  // The entries from `sent` on are empty.
  static void leave_empty(const Entries& entries, int64_t sent, size_t elems) {
    for (; sent < entries.room; ++sent) {
      entries.set_value(sent, 0);
      entries.set_place(sent, static_cast<uint32_t>(elems));
    }
  }

 private:
  const double density_;
};

// Numbers that are chosen, and sent as they are.
class ChosenWire : public SparseWire {
 public:
  using SparseWire::SparseWire;

 protected:
  // Writes what is sent and its places, as much as there is room for. What is not finite is among
  // it as long as there is room.
  virtual FoundPlaces select(std::span<const float> values, const WireDraw& draw, Lost lost,
                             const Entries& entries) = 0;

  // From a drawn place on and around, those of at least this magnitude: where they are more than
  // there is room for, no place is always left out.
  static FoundPlaces places_around(std::span<const float> values, PhiloxKey key, uint32_t least,
                                   Lost lost, const Entries& entries) {
    const auto begin = static_cast<size_t>(philox_word(key, 0) % values.size());
    const std::span<uint32_t> places = entries.place_list();
    const std::span<float> numbers = entries.values();
    const FoundPlaces behind = find_places(values.subspan(begin), least,
                                           static_cast<uint32_t>(begin), lost, places, numbers);
    const auto count = static_cast<size_t>(behind.count);
    const FoundPlaces before = find_places(values.first(begin), least, 0, lost,
                                           places.subspan(count), numbers.subspan(count));
    return {behind.count + before.count, behind.others + before.others};
  }

 private:
  Squares write(std::span<const float> values, const WireDraw& draw, Lost lost,
                std::byte* packet) final {
    require_places(values.size());
    const Entries entries = entries_of(packet, static_cast<int64_t>(values.size()));
    const FoundPlaces found = select(values, draw, lost, entries);
    const Measures sent = measure(entries.values().first(static_cast<size_t>(found.count)));
    leave_empty(entries, found.count, values.size());
    // There was no room for any that is not finite: squares of other numbers are.
    if (sent.largest < kInfinity && !std::isfinite(found.others)) {
      entries.set_value(0, kNotANumber);
      entries.set_place(0, 0);
    }
    return {found.others + sent.squares, found.others};
  }
};

}  // namespace onefold::wire
