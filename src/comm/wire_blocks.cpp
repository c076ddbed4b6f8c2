// Whole blocks, those with the largest norms: 4 bytes for each number of a block, and 4 for its
// place. Of equal norms, those that come first. The last block may be short; its packet is not.
//
// Error: none of what is sent; the rest decodes to 0. What subtract leaves is exact, as with other
// sparse packets.
#include "comm/wire_parts.h"

namespace onefold::wire {
namespace {

class BlockWire final : public Wire {
 public:
  explicit BlockWire(const WireFormat& format) : block_(format.block), density_(format.density) {}

  int64_t packet_bytes(int64_t elems) const override {
    const int64_t room = room_for(elems);
    return Entries::bytes(room * block_, room);
  }

  void encode(std::span<const float> values, const WireDraw&, std::byte* packet) override {
    require_places(values.size());
    const auto elems = static_cast<int64_t>(values.size());
    const int64_t count = blocks_of(elems, block_), room = room_for(elems);
    const Entries entries{packet, room * block_, room};
    norms_.resize(static_cast<size_t>(count));
    for (int64_t b = 0; b < count; ++b) norms_[static_cast<size_t>(b)] = norm_of(values, b);
    const auto norm = [&](int64_t b) { return norms_[static_cast<size_t>(b)]; };
    const Cut cut = cut_of(norms_, room);
    int64_t equal = room - cut.above, sent = 0;
    for (int64_t b = 0; b < count && sent < room; ++b) {
      if (norm(b) < cut.magnitude || (norm(b) == cut.magnitude && equal-- <= 0)) continue;
      entries.set_place(sent, static_cast<uint32_t>(b));
      for (int64_t i = 0; i < block_; ++i) {
        const int64_t at = b * block_ + i;
        entries.set_value(sent * block_ + i, at < elems ? values[static_cast<size_t>(at)] : 0);
      }
      ++sent;
    }
  }

  void apply(const std::byte* packet, const WireDraw&, Apply how, std::span<float> dst) override {
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

 private:
  int64_t room_for(int64_t elems) const { return sent_elems(density_, blocks_of(elems, block_)); }

  uint32_t norm_of(std::span<const float> values, int64_t block) const {
    const auto first = static_cast<size_t>(block * block_);
    return norm_magnitude(
        values.subspan(first, std::min(static_cast<size_t>(block_), values.size() - first)));
  }

  const int64_t block_;
  const double density_;
  std::vector<uint32_t> norms_;  // the memory is reused by later calls
};

}  // namespace

std::unique_ptr<Wire> make_blocks(const WireFormat& format) {
  return std::make_unique<BlockWire>(format);
}

}  // namespace onefold::wire
