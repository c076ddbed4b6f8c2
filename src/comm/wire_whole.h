// Sparse packets of whole parts, blocks or rows: the numbers of those that are sent, one part after
// the other, and then the parts' places. A place that is left empty is that of no part.
//
// Error: none of what is sent; the rest decodes to 0. What subtract leaves is exact, as with other
// sparse packets.
#pragma once

#include "comm/wire_parts.h"

namespace onefold::wire {

class WholeWire : public ChoosingWire {
 public:
  explicit WholeWire(const WireFormat& format)
      : ChoosingWire(format), block_(format.block), density_(format.density) {}

  int64_t packet_bytes(int64_t elems) const final {
    const Entries entries = entries_of(nullptr, elems);
    return Entries::bytes(entries.room, entries.places);
  }

  void apply(const std::byte* packet, const WireDraw& draw, Apply how, std::span<float> dst) final {
    const auto elems = static_cast<int64_t>(dst.size());
    const Entries entries = entries_of(const_cast<std::byte*>(packet), elems);
    const int64_t parts = cut_parts(elems, draw);
    if (how == Apply::set) std::fill(dst.begin(), dst.end(), 0.0f);
    int64_t read = 0;
    for (int64_t i = 0; i < entries.places && entries.place(i) < parts; ++i)
      for (float& to : part(dst, entries.place(i))) {
        const float value = entries.value(read++);
        to = how == Apply::set || how == Apply::add ? to + value : 0;
      }
    if (how == Apply::subtract) entries.drop_not_finite(dst);
  }

 protected:
  int64_t block() const { return block_; }
  double density() const { return density_; }
  virtual Entries entries_of(std::byte* packet, int64_t elems) const = 0;

  // Cuts so many elements into parts: how many. Then the bounds of one are known.
  virtual int64_t cut_parts(int64_t elems, const WireDraw& draw) = 0;
  struct Bounds {
    int64_t begin, end;
  };
  virtual Bounds bounds(int64_t place) const = 0;
  template <class T>
  std::span<T> part(std::span<T> values, int64_t place) const {
    const Bounds of = bounds(place);
    return values.subspan(static_cast<size_t>(of.begin), static_cast<size_t>(of.end - of.begin));
  }

 private:
  const int64_t block_;
  const double density_;
};

}  // namespace onefold::wire
