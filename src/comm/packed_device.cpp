// Packed collectives of memory that the host does not reach: a Packer makes packets and sums them,
// in the order of the channel's lane.
#include <utility>

#include "comm/byte_at.h"
#include "comm/packed.h"

namespace onefold {
namespace {

// Elements [first, first + elems) of what a message has, and where they travel multiplied.
struct Part {
  PackedPart part;
  std::vector<SlabScale> scales;

  Part(const PackedMessage& packed, void* values, int64_t first, int64_t elems) {
    part = {.values = values, .dtype = packed.message.dtype, .elems = elems};
    for (const SlabScale& range : packed.scales) {
      const int64_t begin = std::max<int64_t>(range.begin - packed.first - first, 0),
                    end = std::min(range.end - packed.first - first, elems);
      if (begin < end) scales.push_back({begin, end, range.scale});
    }
    part.scales = scales;
  }
};

}  // namespace

int64_t PackedCalls::packer_bytes(const Wire& wire, std::span<const Message> messages) {
  int64_t elems = 0;
  for (const Message& message : messages) elems = std::max(elems, message.shard_elems);
  return packer_scratch_bytes(wire.format(), elems, static_cast<int64_t>(messages.size()));
}

void PackedCalls::set_scratch(void* memory, int64_t bytes, int64_t packer_bytes) {
  scratch_ = static_cast<std::byte*>(memory);
  scratch_bytes_ = bytes - packer_bytes;
  if (packer_) packer_->set_scratch(scratch_ + scratch_bytes_, packer_bytes);
}

PackWork PackedCalls::work() const {
  PackWork work = work_;
  if (!packer_ || scratch_ == nullptr) return work;
  const WireSquares squares = packer_->squares();
  work.given = squares.given;
  work.lost = squares.lost;
  work.seconds = packer_->seconds();
  return work;
}

void PackedCalls::pack_by_packer(const Wire& wire, std::span<const PackedMessage> messages,
                                 const Rooms& rooms, const MomentumCorrection& correction) {
  for (size_t m = 0; m < messages.size(); ++m) {
    const PackedMessage& packed = messages[m];
    const Message& message = packed.message;
    if (packed.kept == nullptr) continue;
    packer_->look_at(
        static_cast<int>(m),
        {.values = message.whole, .dtype = message.dtype, .elems = message.shard_elems},
        {.count = channel_.ranks(), .stride = stride(message)}, correction.limit);
  }
  for (int destination = 0; destination < channel_.ranks(); ++destination) {
    std::byte* packet = rooms.made + destination * rooms.block_bytes;
    for (size_t m = 0; m < messages.size(); ++m) {
      const PackedMessage& packed = messages[m];
      const Message& message = packed.message;
      const int64_t first = destination * stride(message);
      Part given(packed, byte_at(message.whole, first * dtype_bytes(message.dtype)), first,
                 message.shard_elems);
      if (packed.kept) given.part.kept = packed.kept + first;
      if (packed.velocity) given.part.velocity = packed.velocity + first;
      packer_->pack(wire.format(), given.part,
                    {.slab = static_cast<int>(m),
                     .fold = {correction.share, correction.momentum},
                     .masks = correction.masks},
                    draw_of(packed, channel_.rank(), destination), packet);
      packet += wire.packet_bytes(message.shard_elems);
    }
  }
}

void PackedCalls::pack_own_by_packer(const Wire& wire, std::span<const PackedMessage> messages,
                                     const Rooms& rooms) {
  std::byte* packet = rooms.made;
  for (const PackedMessage& packed : messages) {
    const Message& message = packed.message;
    packer_->pack(wire.format(),
                  {.values = message.shard, .dtype = message.dtype, .elems = message.shard_elems},
                  {}, draw_of(packed, channel_.rank(), 0), packet);
    packet += wire.packet_bytes(message.shard_elems);
  }
}

void PackedCalls::sum_by_packer(const Wire& wire, const PackedMessage& packed, int destination,
                                void* dst, float* wide, const Packer::Packets& packets) {
  const Message& message = packed.message;
  const Part sum(packed, dst, destination * stride(message), message.shard_elems);
  packer_->sum(wire.format(), packets, sum.part, draw_of(packed, 0, destination), wide);
}

}  // namespace onefold
