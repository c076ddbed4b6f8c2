// Whole blocks, those with the largest norms: 4 bytes for each number of a block, and 4 for its
// place. Of equal norms, those that come first. The last block may be short; its packet is not.
//
// Error: none of what is sent; the rest decodes to 0. What subtract leaves is exact, as with other
// sparse packets.
#include "comm/wire_parts.h"

namespace onefold::wire {
namespace {

class BlockPacket : public Wire {
 public:
  explicit BlockPacket(const WireFormat& format) : block_(format.block), density_(format.density) {}

  int64_t packet_bytes(int64_t elems) const final {
    const int64_t room = room_for(elems);
    return Entries::bytes(room * block_, room);
  }

  void apply(const std::byte* packet, const WireDraw&, Apply how, std::span<float> dst) final {
    const auto elems = static_cast<int64_t>(dst.size());
    const int64_t room = room_for(elems);
    const Entries entries{const_cast<std::byte*>(packet), room * block_, room};
    if (how == Apply::set) std::fill(dst.begin(), dst.end(), 0.0f);
    for (int64_t b = 0; b < room; ++b) {
      const int64_t first = entries.place(b) * block_;
      for (int64_t i = 0; i < block_ && first + i < elems; ++i) {
        float& to = dst[static_cast<size_t>(first + i)];
        if (how == Apply::set || how == Apply::add)
          to += entries.value(b * block_ + i);
        else
          to = 0;
      }
    }
    if (how == Apply::subtract) entries.drop_not_finite(dst);
  }

 protected:
  int64_t block() const { return block_; }
  int64_t room_for(int64_t elems) const { return sent_elems(density_, blocks_of(elems, block_)); }

 private:
  const int64_t block_;
  const double density_;
};

class BlockWire final : public Choosing<BlockPacket> {
 public:
  using Choosing::Choosing;

 private:
  Squares write(std::span<const float> values, const WireDraw&, Lost, std::byte* packet) override {
    require_places(values.size());
    const auto elems = static_cast<int64_t>(values.size());
    const int64_t count = blocks_of(elems, block()), room = room_for(elems);
    const Entries entries{packet, room * block(), room};
    norms_.resize(static_cast<size_t>(count));
    squares_.resize(static_cast<size_t>(count));
    for (int64_t b = 0; b < count; ++b) {
      const Measures of = measure(numbers_of(values, b));
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
      const std::span<const float> numbers = numbers_of(values, b);
      std::byte* const to = packet + Entries::bytes(sent++ * block(), 0);
      std::memcpy(to, numbers.data(), numbers.size_bytes());
      std::memset(to + numbers.size_bytes(), 0,
                  static_cast<size_t>(Entries::bytes(block(), 0)) - numbers.size_bytes());
    }
    return squares;
  }

  std::span<const float> numbers_of(std::span<const float> values, int64_t b) const {
    const auto first = static_cast<size_t>(b * block());
    return values.subspan(first, std::min(static_cast<size_t>(block()), values.size() - first));
  }

  // The memory is reused by later calls.
  std::vector<uint32_t> norms_, order_;
  std::vector<double> squares_;
};

}  // namespace

std::unique_ptr<Wire> make_blocks(const WireFormat& format) {
  return std::make_unique<BlockWire>(format);
}

}  // namespace onefold::wire
