#include "comm/packed.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/half.h"
#include "kernels/host_memory.h"
#include "tensor/convert.h"

namespace onefold {
namespace {

constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::span<float> floats(float* data, int64_t elems) { return {data, static_cast<size_t>(elems)}; }

std::byte* bytes_at(void* data, int64_t offset) { return static_cast<std::byte*>(data) + offset; }

// One packet of each message.
int64_t packets_bytes(const Wire& wire, std::span<const Message> messages) {
  int64_t bytes = 0;
  for (const Message& message : messages) bytes += wire.packet_bytes(message.shard_elems);
  return bytes;
}

int64_t shards_bytes(std::span<const Message> messages) {
  int64_t bytes = 0;
  for (const Message& message : messages) bytes += message.shard_bytes();
  return bytes;
}

// Numbers of another type are widened a shard at a time.
int64_t wide_bytes(std::span<const Message> messages) {
  int64_t elems = 0;
  for (const Message& message : messages) elems = std::max(elems, message.shard_elems);
  return aligned(elems * int64_t{sizeof(float)});
}

std::vector<Message> plain(std::span<const PackedMessage> messages) {
  std::vector<Message> all;
  for (const PackedMessage& packed : messages) all.push_back(packed.message);
  return all;
}

// Part of a slab as fp32: where it lies, or widened.
std::span<float> as_floats(const Message& message, void* data, int64_t first, int64_t elems,
                           float* wide) {
  std::byte* const from = bytes_at(data, first * dtype_bytes(message.dtype));
  if (message.dtype == DType::f32) return floats(reinterpret_cast<float*>(from), elems);
  widen(message.dtype, {from, static_cast<size_t>(elems * dtype_bytes(message.dtype))},
        floats(wide, elems));
  return floats(wide, elems);
}

// Calls visit(first, part) for elements [first, first + elems) of a slab, as fp32, some at a time.
template <class Visit>
void for_each_chunk(const Message& message, int64_t first, int64_t elems, const Visit& visit) {
  constexpr int64_t kChunk = 4096;
  std::array<float, kChunk> wide;
  for (int64_t at = first; at < first + elems; at += kChunk)
    visit(at,
          as_floats(message, message.whole, at, std::min(kChunk, first + elems - at), wide.data()));
}

// Calls visit(first, elems, scale) for the parts of elements [first, first + elems) of what a
// message has that travel multiplied, counted from the beginning of its `whole`.
template <class Visit>
void for_each_scale(const PackedMessage& packed, int64_t first, int64_t elems, const Visit& visit) {
  for (const SlabScale& range : packed.scales) {
    const int64_t begin = std::max(range.begin - packed.first, first),
                  end = std::min(range.end - packed.first, first + elems);
    if (begin < end) visit(begin, end - begin, range.scale);
  }
}

}  // namespace

double PackWork::ratio() const {
  return whole_bytes > 0 ? static_cast<double>(packed_bytes) / static_cast<double>(whole_bytes) : 1;
}

double PackWork::error() const { return given > 0 ? std::sqrt(lost / given) : 0; }

PackWork PackWork::operator+(const PackWork& other) const {
  return {calls + other.calls,
          whole_bytes + other.whole_bytes,
          packed_bytes + other.packed_bytes,
          seconds + other.seconds,
          given + other.given,
          lost + other.lost};
}

// Scratch: the packets that this rank makes, one block for each destination; those that it
// receives, one for each source; a shard in fp32.
struct PackedCalls::Rooms {
  std::byte* made;
  std::byte* received;
  float* wide;
  int64_t block_bytes;  // one packet of each message
};

PackedCalls::Rooms PackedCalls::rooms(const Wire& wire, std::span<const PackedMessage> messages,
                                      int blocks_made, int blocks_received) {
  const std::vector<Message> all = plain(messages);
  Rooms rooms{.made = scratch_, .received = nullptr, .wide = nullptr, .block_bytes = 0};
  rooms.block_bytes = packets_bytes(wire, all);
  const int64_t made = aligned(rooms.block_bytes * blocks_made);
  const int64_t received = aligned(rooms.block_bytes * blocks_received);
  require(made + received + wide_bytes(all) <= scratch_bytes_,
          "packets of {} bytes in scratch of {}", made + received, scratch_bytes_);
  if (scratch_ == nullptr) return rooms;
  rooms.received = scratch_ + made;
  rooms.wide = reinterpret_cast<float*>(scratch_ + made + received);
  return rooms;
}

int64_t PackedCalls::scratch_bytes(Collective collective, const Wire& wire,
                                   std::span<const Message> messages, PackedRanks ranks,
                                   bool shorter) {
  const int64_t block = packets_bytes(wire, messages);
  const int64_t made = collective == Collective::all_gather ? 1 : ranks.between;
  const auto bytes_of = [&](int64_t length, bool packets) {
    return aligned(length * made) +
           aligned(length * ranks.between * (packets ? ranks.between : 1)) + wide_bytes(messages);
  };
  const bool packets =
      collective == Collective::all_reduce && gathers_packets(wire, messages, ranks);
  const int64_t bytes = bytes_of(block, packets);
  if (!shorter || collective != Collective::all_reduce || packets) return bytes;
  // The longest that all ranks gather from all.
  const int64_t most = (shards_bytes(messages) - 1) / std::max(1, ranks.between - 1);
  return std::max(bytes, bytes_of(std::min(block, most), true));
}

bool PackedCalls::gathers_packets(const Wire& wire, std::span<const Message> messages,
                                  PackedRanks ranks) {
  const int64_t block = packets_bytes(wire, messages);
  return ranks.inside > 1 || block * ranks.between < block + shards_bytes(messages);
}

int64_t PackedCalls::reduce_scatter_bytes(const Wire& wire, std::span<const Message> messages,
                                          PackedRanks ranks) {
  return packets_bytes(wire, messages) * (ranks.between - 1);
}

int64_t PackedCalls::all_reduce_bytes(const Wire& wire, std::span<const Message> messages,
                                      PackedRanks ranks) {
  const int64_t block = packets_bytes(wire, messages);
  return (gathers_packets(wire, messages, ranks) ? block * ranks.between
                                                 : block + shards_bytes(messages)) *
         (ranks.between - 1);
}

int64_t PackedCalls::inside_bytes(Collective collective, std::span<const Message> messages,
                                  PackedRanks ranks) {
  return shards_bytes(messages) * ranks.between * (ranks.inside - 1) *
         (collective == Collective::all_reduce ? 2 : 1);
}

int64_t PackedCalls::all_gather_bytes(const Wire& wire, std::span<const Message> messages,
                                      int ranks) {
  return packets_bytes(wire, messages) * (ranks - 1);
}

// Draws differ by slab and step (the key), and by source and destination; those that ranks have in
// common by destination alone; and both by a rank's place in its host.
WireDraw PackedCalls::draw_of(const PackedMessage& packed, int source, int destination) const {
  const auto to = static_cast<uint32_t>(destination), from = static_cast<uint32_t>(source);
  const auto place = static_cast<uint32_t>(inside_ ? inside_->rank() : 0);
  const PhiloxWords own = philox(packed.key, {1, to, from, place});
  const PhiloxWords common = philox(packed.key, {2, to, 0, place});
  WireDraw draw{.own = {own[0], own[1]}, .common = {common[0], common[1]}};
  if (!packed.rows.empty())
    draw.rows = packed.rows[static_cast<size_t>(destination * ranks().inside) + place];
  return draw;
}

// Calls visit(part) for all that this rank packs of a slab: a shard for each destination.
template <class Visit>
void PackedCalls::for_each_given(const PackedMessage& packed, const Visit& visit) const {
  const Message& message = packed.message;
  for (int destination = 0; destination < channel_.ranks(); ++destination)
    for_each_chunk(message, destination * stride(message), message.shard_elems,
                   [&](int64_t, std::span<const float> part) { visit(part); });
}

// The factor of this rank's own gradient, whose norm is limited.
float PackedCalls::own_scale(const PackedMessage& packed, float limit) const {
  if (limit <= 0) return 1;
  double squares = 0;
  for_each_given(packed, [&](std::span<const float> part) { squares += measure(part).squares; });
  const double norm = std::sqrt(squares);
  return norm > limit ? static_cast<float>(limit / norm) : 1.0f;
}

// Whether all that this rank has of a slab is finite.
bool PackedCalls::finite(const PackedMessage& packed) const {
  bool all = true;
  for_each_given(packed, [&](std::span<const float> part) {
    all = all && largest_magnitude(part) < half::kInfinity;
  });
  return all;
}

// What lies between parameters is nothing. A packet may hold something for it, and what it lacks
// then is kept: it is not carried on.
void PackedCalls::clear_gaps(const PackedMessage& packed) const {
  const auto clear = [&](void* data, int64_t begin, int64_t end, int64_t size) {
    std::byte* const from = bytes_at(data, begin * size);
    if (packer_)
      packer_->clear(from, (end - begin) * size);
    else
      std::fill_n(from, (end - begin) * size, std::byte{0});
  };
  for (const SlabGap& gap : packed.gaps) {
    clear(packed.message.whole, gap.begin, gap.end, dtype_bytes(packed.message.dtype));
    if (packed.kept) clear(packed.kept, gap.begin, gap.end, int64_t{sizeof(float)});
  }
}

// What this rank gives to one destination: into what it has kept, or a copy.
std::span<float> PackedCalls::given(const PackedMessage& packed, int destination, const Fold& fold,
                                    float* wide) const {
  const Message& message = packed.message;
  const int64_t elems = message.shard_elems, first = destination * stride(message);
  if (packed.kept == nullptr) {
    const std::span<float> values = as_floats(message, message.whole, first, elems, wide);
    if (values.data() != wide) copy_bytes(values.data(), wide, message.shard_bytes());
    return floats(wide, elems);
  }
  for_each_chunk(message, first, elems, [&](int64_t at, std::span<const float> part) {
    if (packed.scales.empty())
      return fold_gradient(part, fold, packed.velocity ? packed.velocity + at : nullptr,
                           packed.kept + at);
    for_each_scale(packed, at, static_cast<int64_t>(part.size()),
                   [&](int64_t begin, int64_t count, float scale) {
                     fold_gradient(
                         part.subspan(static_cast<size_t>(begin - at), static_cast<size_t>(count)),
                         {fold.scale * scale, fold.momentum}, packed.velocity + begin,
                         packed.kept + begin);
                   });
  });
  return floats(packed.kept + first, elems);
}

// The packet of one destination; what it lacks is kept, or only counted.
void PackedCalls::pack(Wire& wire, const PackedMessage& packed, int destination, std::byte* packet,
                       std::span<float> values, bool masks) {
  const WireDraw draw = draw_of(packed, channel_.rank(), destination);
  const Wire::Squares squares = wire.pack(values, draw, packet);
  if (std::isfinite(squares.given) && std::isfinite(squares.lost)) {
    work_.given += squares.given;
    work_.lost += squares.lost;
  }
  if (packed.velocity == nullptr) return;
  const std::span<float> velocity =
      floats(packed.velocity + destination * stride(packed.message), packed.message.shard_elems);
  if (masks) wire.apply(packet, draw, Apply::clear, velocity);
  if (largest_magnitude(velocity) < half::kInfinity) return;
  for (float& value : velocity)
    if (!std::isfinite(value)) value = 0;
}

void PackedCalls::pack_all(Wire& wire, std::span<const PackedMessage> messages, const Rooms& rooms,
                           const MomentumCorrection& correction) {
  for (const PackedMessage& packed : messages) clear_gaps(packed);
  if (packer_) return pack_by_packer(wire, messages, rooms, correction);
  std::vector<Fold> folds;
  std::vector<bool> sound;
  for (const PackedMessage& packed : messages) {
    sound.push_back(packed.kept == nullptr || finite(packed));
    folds.push_back({correction.share * own_scale(packed, packed.kept ? correction.limit : 0),
                     correction.momentum});
  }
  for (int destination = 0; destination < channel_.ranks(); ++destination) {
    std::byte* packet = rooms.made + destination * rooms.block_bytes;
    for (size_t m = 0; m < messages.size(); ++m) {
      const PackedMessage& packed = messages[m];
      const Message& message = packed.message;
      if (sound[m])
        pack(wire, packed, destination, packet, given(packed, destination, folds[m], rooms.wide),
             correction.masks);
      else  // the step will be skipped: what is kept takes nothing of it in, and sends nothing
        wire.encode(as_floats(message, message.whole, destination * stride(message),
                              message.shard_elems, rooms.wide),
                    draw_of(packed, channel_.rank(), destination), packet);
      packet += wire.packet_bytes(packed.message.shard_elems);
    }
  }
}

// dst = the packets of one destination from all ranks, in their order.
void PackedCalls::sum(Wire& wire, const PackedMessage& packed, int destination, void* dst,
                      float* wide, const Packer::Packets& packets) {
  if (packer_) return sum_by_packer(wire, packed, destination, dst, wide, packets);
  const Message& message = packed.message;
  const std::span<float> to =
      floats(message.dtype == DType::f32 ? static_cast<float*>(dst) : wide, message.shard_elems);
  for (int source = 0; source < packets.count; ++source)
    wire.apply(packets.first + source * packets.stride, draw_of(packed, source, destination),
               source == 0 ? Apply::set : Apply::add, to);
  const int64_t first = destination * stride(message);
  for_each_scale(packed, first, message.shard_elems,
                 [&](int64_t begin, int64_t count, float scale) {
                   for (float& value :
                        to.subspan(static_cast<size_t>(begin - first), static_cast<size_t>(count)))
                     value /= scale;
                 });
  if (message.dtype != DType::f32)
    narrow(message.dtype, to,
           {static_cast<std::byte*>(dst), static_cast<size_t>(message.shard_bytes())});
}

void PackedCalls::count(const Wire& wire, std::span<const PackedMessage> messages, int shards) {
  ++work_.calls;
  const std::vector<Message> all = plain(messages);
  work_.whole_bytes += shards_bytes(all) * shards;
  work_.packed_bytes += packets_bytes(wire, all) * shards;
}

// One for each host and slab: its ranks' shards lie together.
std::vector<Message> PackedCalls::inside_messages(std::span<const PackedMessage> messages) const {
  std::vector<Message> all;
  for (const PackedMessage& packed : messages)
    for (int host = 0; host < channel_.ranks(); ++host) {
      Message part = packed.message;
      part.shard = nullptr;
      if (!dry_) {
        const int64_t size = dtype_bytes(part.dtype);
        part.whole = bytes_at(part.whole, host * stride(part) * size);
        part.shard = bytes_at(part.whole, inside_->rank() * part.shard_bytes());
      }
      all.push_back(part);
    }
  return all;
}

// The sums of this host, of this rank's share: as messages between hosts, from its first shard on.
std::vector<PackedMessage> PackedCalls::sum_inside(std::string_view what,
                                                   std::span<const PackedMessage> messages) {
  std::vector<PackedMessage> all(messages.begin(), messages.end());
  if (inside_ == nullptr) return all;
  if (!dry_)
    for (const PackedMessage& packed : messages) clear_gaps(packed);
  inside_->reduce_scatter(what, inside_messages(messages));
  for (PackedMessage& packed : all) {
    const int64_t first = inside_->rank() * packed.message.shard_elems;
    packed.gaps = {};
    packed.first = first;
    if (dry_) continue;
    packed.message.whole =
        bytes_at(packed.message.whole, first * dtype_bytes(packed.message.dtype));
    if (packed.kept) packed.kept += first;
    if (packed.velocity) packed.velocity += first;
  }
  return all;
}

void PackedCalls::reduce_scatter(std::string_view what, Wire& wire,
                                 std::span<const PackedMessage> messages,
                                 const MomentumCorrection& correction) {
  reduce_packets(what, wire, sum_inside(what, messages), correction);
}

void PackedCalls::reduce_packets(std::string_view what, Wire& wire,
                                 std::span<const PackedMessage> messages,
                                 const MomentumCorrection& correction) {
  const Rooms at = rooms(wire, messages, channel_.ranks(), channel_.ranks());
  count(wire, messages, channel_.ranks());
  timed([&] { pack_all(wire, messages, at, correction); });
  channel_.all_to_all(what, at.made, at.received, at.block_bytes);
  timed([&] {
    const std::byte* packet = at.received;
    for (const PackedMessage& packed : messages) {
      sum(wire, packed, channel_.rank(), packed.message.shard, at.wide,
          {packet, at.block_bytes, channel_.ranks()});
      packet += wire.packet_bytes(packed.message.shard_elems);
    }
  });
}

// Packets of all destinations from all ranks, where they are less; else sums of packets.
void PackedCalls::all_reduce(std::string_view what, Wire& wire,
                             std::span<const PackedMessage> messages,
                             const MomentumCorrection& correction) {
  std::vector<Message> all = plain(messages);
  if (gathers_packets(wire, all, ranks())) {
    gather_packets(what, wire, sum_inside(what, messages), correction);
    if (inside_) inside_->all_gather(what, inside_messages(messages));
    return;
  }
  std::vector<PackedMessage> own(messages.begin(), messages.end());
  for (size_t m = 0; m < own.size(); ++m) {
    all[m].shard = dry_ ? nullptr : bytes_at(all[m].whole, channel_.rank() * all[m].shard_bytes());
    own[m].message = all[m];
  }
  reduce_packets(what, wire, own, correction);
  channel_.all_gather(what, all);
}

void PackedCalls::gather_packets(std::string_view what, Wire& wire,
                                 std::span<const PackedMessage> messages,
                                 const MomentumCorrection& correction) {
  const int ranks = channel_.ranks();
  const Rooms at = rooms(wire, messages, ranks, ranks * ranks);
  count(wire, messages, ranks);
  timed([&] { pack_all(wire, messages, at, correction); });
  const int64_t made = at.block_bytes * ranks;
  const Message packets{at.received, at.made, made, DType::u8};
  channel_.all_gather(what, {&packets, 1});
  timed([&] {
    for (int destination = 0; destination < ranks; ++destination) {
      const std::byte* packet = at.received + destination * at.block_bytes;
      for (const PackedMessage& packed : messages) {
        const Message& message = packed.message;
        sum(wire, packed, destination,
            bytes_at(message.whole, destination * stride(message) * dtype_bytes(message.dtype)),
            at.wide, {packet, made, ranks});
        packet += wire.packet_bytes(message.shard_elems);
      }
    }
  });
}

void PackedCalls::all_gather(std::string_view what, Wire& wire,
                             std::span<const PackedMessage> messages) {
  const Rooms at = rooms(wire, messages, 1, channel_.ranks());
  count(wire, messages, 1);
  timed([&] { pack_own(wire, messages, at); });
  const Message packets{at.received, at.made, at.block_bytes, DType::u8};
  channel_.all_gather(what, {&packets, 1});
  timed([&] { unpack_all(wire, messages, at); });
}

void PackedCalls::pack_own(Wire& wire, std::span<const PackedMessage> messages,
                           const Rooms& rooms) {
  if (packer_) return pack_own_by_packer(wire, messages, rooms);
  std::byte* packet = rooms.made;
  for (const PackedMessage& packed : messages) {
    const Message& message = packed.message;
    const std::span<float> values =
        as_floats(message, message.shard, 0, message.shard_elems, rooms.wide);
    if (values.data() != rooms.wide) copy_bytes(values.data(), rooms.wide, message.shard_bytes());
    pack(wire, packed, 0, packet, floats(rooms.wide, message.shard_elems), false);
    packet += wire.packet_bytes(message.shard_elems);
  }
}

void PackedCalls::unpack_all(Wire& wire, std::span<const PackedMessage> messages,
                             const Rooms& rooms) {
  for (int source = 0; source < channel_.ranks(); ++source) {
    const std::byte* packet = rooms.received + source * rooms.block_bytes;
    for (const PackedMessage& packed : messages) {
      const Message& message = packed.message;
      std::byte* const dst = bytes_at(message.whole, source * message.shard_bytes());
      if (packer_) {
        sum_by_packer(wire, packed, 0, dst, rooms.wide, {packet, 0, 1});
      } else {
        const std::span<float> to =
            floats(message.dtype == DType::f32 ? reinterpret_cast<float*>(dst) : rooms.wide,
                   message.shard_elems);
        wire.apply(packet, draw_of(packed, source, 0), Apply::set, to);
        if (message.dtype != DType::f32)
          narrow(message.dtype, to, {dst, static_cast<size_t>(message.shard_bytes())});
      }
      packet += wire.packet_bytes(message.shard_elems);
    }
  }
}

// What packs or unpacks; a dry call moves nothing.
template <class Work>
void PackedCalls::timed(const Work& work) {
  if (dry_) return;
  if (packer_) packer_->begin();
  const double begin = now_seconds();
  work();
  if (packer_)
    packer_->end();
  else
    work_.seconds += now_seconds() - begin;
}

}  // namespace onefold
