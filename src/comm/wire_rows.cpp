// Whole rows of matrices, those with the largest norms: 4 bytes for each number that there is room
// for, and 4 for each place of a row, one to 16 numbers. Where rows begin is known to all ranks
// (WireDraw::rows); without that, every block begins one. A row that is longer than the room counts
// as several. From the largest norm down, what still fits is sent; of equal norms, what comes
// first.
//
// Error: none of what is sent; the rest decodes to 0. What subtract leaves is exact, as with other
// sparse packets.
#include <utility>

#include "comm/wire_parts.h"

namespace onefold::wire {
namespace {

class RowPacket : public Wire {
 public:
  explicit RowPacket(const WireFormat& format) : block_(format.block), density_(format.density) {}

  int64_t packet_bytes(int64_t elems) const final {
    const int64_t room = room_for(elems);
    return Entries::bytes(room, places_for(room));
  }

  void apply(const std::byte* packet, const WireDraw& draw, Apply how, std::span<float> dst) final {
    const auto elems = static_cast<int64_t>(dst.size());
    const int64_t room = room_for(elems), places = places_for(room);
    const Entries entries{const_cast<std::byte*>(packet), room, places};
    cut_rows(elems, room, draw.rows);
    if (how == Apply::set) std::fill(dst.begin(), dst.end(), 0.0f);
    int64_t read = 0;
    const auto rows = static_cast<int64_t>(bounds_.size()) - 1;
    for (int64_t i = 0; i < places && entries.place(i) < rows; ++i)
      for (float& to : part(dst, static_cast<size_t>(entries.place(i)))) {
        const float value = entries.value(read++);
        to = how == Apply::set || how == Apply::add ? to + value : 0;
      }
    if (how == Apply::subtract) entries.drop_not_finite(dst);
  }

 protected:
  int64_t room_for(int64_t elems) const { return sent_elems(density_, elems); }
  static int64_t places_for(int64_t room) { return std::max<int64_t>(1, room / 16); }

  // Where each part begins that is sent or not, and the end of the last.
  void cut_rows(int64_t elems, int64_t room, std::span<const int64_t> rows) {
    bounds_.clear();
    const auto cut = [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; at += room) bounds_.push_back(at);
    };
    if (rows.empty())
      for (int64_t at = 0; at < elems; at += block_) cut(at, std::min(at + block_, elems));
    for (size_t row = 0; row < rows.size(); ++row)
      cut(rows[row], row + 1 < rows.size() ? rows[row + 1] : elems);
    bounds_.push_back(elems);
  }
  size_t rows() const { return bounds_.size() - 1; }
  template <class T>
  std::span<T> part(std::span<T> values, size_t row) const {
    return values.subspan(static_cast<size_t>(bounds_[row]),
                          static_cast<size_t>(bounds_[row + 1] - bounds_[row]));
  }

 private:
  const int64_t block_;
  const double density_;
  std::vector<int64_t> bounds_;  // the memory is reused by later calls
};

class RowWire final : public Choosing<RowPacket> {
 public:
  using Choosing::Choosing;

 private:
  // Of equal norms the first row is the largest.
  struct Row {
    uint32_t norm, number;
    double squares;
    bool operator<(const Row& other) const {
      return norm != other.norm ? norm < other.norm : number > other.number;
    }
  };

  Squares write(std::span<const float> values, const WireDraw& draw, Lost,
                std::byte* packet) override {
    require_places(values.size());
    const auto elems = static_cast<int64_t>(values.size());
    const int64_t room = room_for(elems), places = places_for(room);
    const Entries entries{packet, room, places};
    cut_rows(elems, room, draw.rows);
    order_.clear();
    auto shortest = static_cast<size_t>(room);
    for (size_t row = 0; row < rows(); ++row) {
      const std::span<const float> numbers = part(values, row);
      const Measures of = measure(numbers);
      order_.push_back({norm_magnitude(of), static_cast<uint32_t>(row), of.squares});
      shortest = std::min(shortest, numbers.size());
    }
    // A heap: few of many rows are looked at.
    std::make_heap(order_.begin(), order_.end());
    Squares squares;
    const auto leave = [&](double of) {
      squares.given += of;
      squares.lost += of;
    };
    int64_t sent = 0, filled = 0;
    while (!order_.empty() && sent < places && filled + static_cast<int64_t>(shortest) <= room) {
      std::pop_heap(order_.begin(), order_.end());
      const Row row = order_.back();
      order_.pop_back();
      const std::span<const float> numbers = part(values, row.number);
      if (filled + static_cast<int64_t>(numbers.size()) > room) {
        leave(row.squares);
        continue;
      }
      squares.given += row.squares;
      entries.set_place(sent++, row.number);
      for (const float value : numbers) entries.set_value(filled++, value);
    }
    for (const Row& row : order_) leave(row.squares);
    for (; sent < places; ++sent) entries.set_place(sent, static_cast<uint32_t>(elems));
    for (; filled < room; ++filled) entries.set_value(filled, 0);
    return squares;
  }

  std::vector<Row> order_;  // the memory is reused by later calls
};

}  // namespace

std::unique_ptr<Wire> make_rows(const WireFormat& format) {
  return std::make_unique<RowWire>(format);
}

}  // namespace onefold::wire
