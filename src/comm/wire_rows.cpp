// Whole rows of matrices, those with the largest norms: 4 bytes for each number that there is room
// for, and 4 for each place of a row, one to 16 numbers. Where rows begin is known to all ranks
// (WireDraw::rows); without that, every block begins one. A row that is longer than the room counts
// as several. From the largest norm down, what still fits is sent; of equal norms, what comes
// first.
#include <utility>

#include "comm/wire_whole.h"

namespace onefold::wire {
namespace {

class RowWire final : public WholeWire {
 public:
  using WholeWire::WholeWire;

 private:
  Entries entries_of(std::byte* packet, int64_t elems) const override {
    const int64_t room = sent_elems(density(), elems);
    return {packet, room, std::max<int64_t>(1, room / 16)};
  }
  // Where each part begins that is sent or not, and the end of the last.
  int64_t cut_parts(int64_t elems, const WireDraw& draw) override {
    const int64_t room = sent_elems(density(), elems);
    bounds_.clear();
    const auto cut_row = [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; at += room) bounds_.push_back(at);
    };
    if (draw.rows.empty())
      for (int64_t at = 0; at < elems; at += block()) cut_row(at, std::min(at + block(), elems));
    for (size_t row = 0; row < draw.rows.size(); ++row)
      cut_row(draw.rows[row], row + 1 < draw.rows.size() ? draw.rows[row + 1] : elems);
    bounds_.push_back(elems);
    return static_cast<int64_t>(bounds_.size()) - 1;
  }
  Bounds bounds(int64_t row) const override {
    return {bounds_[static_cast<size_t>(row)], bounds_[static_cast<size_t>(row) + 1]};
  }

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
    const Entries entries = entries_of(packet, elems);
    const int64_t room = entries.room, places = entries.places, rows = cut_parts(elems, draw);
    order_.clear();
    auto shortest = static_cast<size_t>(room);
    for (int64_t row = 0; row < rows; ++row) {
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

  // The memory is reused by later calls.
  std::vector<int64_t> bounds_;
  std::vector<Row> order_;
};

}  // namespace

std::unique_ptr<Wire> make_rows(const WireFormat& format) {
  return std::make_unique<RowWire>(format);
}

}  // namespace onefold::wire
