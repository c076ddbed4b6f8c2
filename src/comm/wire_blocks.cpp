// Whole blocks, those with the largest norms: 4 bytes for each number of a block, and 4 for its
// place. Of equal norms, those that come first. The last block may be short; its packet is not.
#include "comm/wire_whole.h"

namespace onefold::wire {
namespace {

class BlockWire final : public WholeWire {
 public:
  using WholeWire::WholeWire;

 private:
  Entries entries_of(std::byte* packet, int64_t elems) const override {
    const int64_t room = sent_elems(density(), blocks_of(elems, block()));
    return {packet, room * block(), room};
  }
  int64_t cut_parts(int64_t elems, const WireDraw&) override {
    elems_ = elems;
    return blocks_of(elems, block());
  }
  Bounds bounds(int64_t b) const override {
    return {b * block(), std::min((b + 1) * block(), elems_)};
  }

  Squares write(std::span<const float> values, const WireDraw& draw, Lost,
                std::byte* packet) override {
    require_places(values.size());
    const auto elems = static_cast<int64_t>(values.size());
    const Entries entries = entries_of(packet, elems);
    const int64_t count = cut_parts(elems, draw), room = entries.places;
    norms_.resize(static_cast<size_t>(count));
    squares_.resize(static_cast<size_t>(count));
    for (int64_t b = 0; b < count; ++b) {
      const Measures of = measure(part(values, b));
      norms_[static_cast<size_t>(b)] = norm_magnitude(of);
      squares_[static_cast<size_t>(b)] = of.squares;
    }
    order_ = norms_;
    const Cut cut = cut_of(order_, room);
    int64_t equal = room - cut.above, sent = 0;
    Squares squares;
    for (int64_t b = 0; b < count; ++b) {
      const uint32_t norm = norms_[static_cast<size_t>(b)];
      squares.given += squares_[static_cast<size_t>(b)];
      if (norm < cut.magnitude || (norm == cut.magnitude && equal-- <= 0)) {
        squares.lost += squares_[static_cast<size_t>(b)];
        continue;
      }
      entries.set_place(sent, static_cast<uint32_t>(b));
      const std::span<const float> numbers = part(values, b);
      std::byte* const to = packet + Entries::bytes(sent++ * block(), 0);
      std::memcpy(to, numbers.data(), numbers.size_bytes());
      std::memset(to + numbers.size_bytes(), 0,
                  static_cast<size_t>(Entries::bytes(block(), 0)) - numbers.size_bytes());
    }
    return squares;
  }

  int64_t elems_ = 0;  // of what was cut
  // The memory is reused by later calls.
  std::vector<uint32_t> norms_, order_;
  std::vector<double> squares_;
};

}  // namespace

std::unique_ptr<Wire> make_blocks(const WireFormat& format) {
  return std::make_unique<BlockWire>(format);
}

}  // namespace onefold::wire
