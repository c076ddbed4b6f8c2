// Collectives whose numbers travel in a wire format: the same results as a Channel's, of what the
// packets hold. Each rank makes one packet of each destination's shard of each slab, whatever slabs
// a call joins, and sums decoded packets in rank order in fp32: so bits do not depend on buckets,
// on the transport, or on whether the sum is wanted whole or in shards.
//
// Where ranks share hosts, those of a host first sum their numbers as they are, each a share of the
// shards: rank j of a host those of every host's rank j. Packets of these sums travel between the
// ranks j of all hosts, and what is kept back is of these sums.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/wire.h"
#include "kernels/packer.h"

namespace onefold {

// Elements [begin, end) of a slab that belong to no parameter.
struct SlabGap {
  int64_t begin = 0, end = 0;
};

// Momentum before the sum, of what was not sent too: Deep Gradient Compression's (Lin et al. 2018),
// and the one that 1-bit Adam sends (Tang et al. 2021).
struct MomentumCorrection {
  float momentum = 0;
  float share = 1;    // of a gradient in it: Adam's is a running mean
  bool masks = true;  // the momentum of what was sent ends there
  float limit = 0;    // of the norm of a slab's own gradient, before all else; 0: none
};

// One slab of a packed call.
struct PackedMessage {
  Message message;  // f32, bf16 or f16
  // Error feedback: what this rank has not sent yet, of each element of the whole slab, f32. The
  // numbers of `whole` are added to it, and what is sent is taken from it. Null: there is none.
  float* kept = nullptr;
  float* velocity = nullptr;           // of MomentumCorrection, likewise; needs `kept`
  std::span<const SlabGap> gaps = {};  // count as 0
  // In order; with a velocity, which is multiplied as what is kept is. The rest travels as it is.
  std::span<const SlabScale> scales = {};
  int64_t first = 0;  // the slab's element that `whole` begins with
  // Where rows begin, of each rank's shard (WireDraw::rows); empty: nobody asks.
  std::span<const std::vector<int64_t>> rows = {};
  PhiloxKey key;  // of this slab and step
};

// Who exchanges packets: the ranks of a channel, one on each host, and how many ranks a host has.
struct PackedRanks {
  PackedRanks(int between, int inside = 1)  // NOLINT: mostly each rank is by itself
      : between(between), inside(inside) {}
  int between, inside;
};

// What has been packed, since the beginning.
struct PackWork {
  int64_t calls = 0;
  int64_t whole_bytes = 0, packed_bytes = 0;  // of what was packed by this rank
  double seconds = 0;                         // for packing and unpacking
  double given = 0, lost = 0;                 // sums of squares: of numbers, of what packets lack

  double ratio() const;  // of bytes
  double error() const;  // relative norm
  PackWork operator+(const PackWork& other) const;
};

class PackedCalls {
 public:
  // Without memory (dry), calls are only counted. `inside`: a channel of the ranks of this host,
  // where `channel` is of one rank on each. `packer`: of memory that the host does not reach.
  PackedCalls(Channel& channel, bool dry, Channel* inside = nullptr,
              std::unique_ptr<Packer> packer = nullptr)
      : channel_(channel), inside_(inside), dry_(dry), packer_(std::move(packer)) {}

  // Scratch of one of the three calls, aligned to 64; `shorter`: of packets that are at most as
  // long as the wire's too. And of a packer beside it.
  static int64_t scratch_bytes(Collective collective, const Wire& wire,
                               std::span<const Message> messages, PackedRanks ranks,
                               bool shorter = false);
  static int64_t packer_bytes(const Wire& wire, std::span<const Message> messages);
  void set_scratch(void* memory, int64_t bytes, int64_t packer_bytes = 0);

  // As Channel's. `whole` is written where there is no feedback: its gaps become 0.
  void reduce_scatter(std::string_view what, Wire& wire, std::span<const PackedMessage> messages,
                      const MomentumCorrection& correction = {});
  void all_reduce(std::string_view what, Wire& wire, std::span<const PackedMessage> messages,
                  const MomentumCorrection& correction = {});
  // All of `whole` is what packets hold, this rank's own shard too; `shard` stays as it is where
  // it does not lie there. Without feedback.
  void all_gather(std::string_view what, Wire& wire, std::span<const PackedMessage> messages);

  // What a rank sends by these calls to other hosts, and before and after that inside its own.
  static int64_t reduce_scatter_bytes(const Wire& wire, std::span<const Message> messages,
                                      PackedRanks ranks);
  static int64_t all_reduce_bytes(const Wire& wire, std::span<const Message> messages,
                                  PackedRanks ranks);
  static int64_t inside_bytes(Collective collective, std::span<const Message> messages,
                              PackedRanks ranks);
  static int64_t all_gather_bytes(const Wire& wire, std::span<const Message> messages, int ranks);

  // Of a device it waits for its lane.
  PackWork work() const;

 private:
  struct Rooms;
  // Whether an all-reduce gathers everyone's packets, and not sums of them: what sends less;
  // between hosts always, whose sums do not lie together.
  static bool gathers_packets(const Wire& wire, std::span<const Message> messages,
                              PackedRanks ranks);
  void reduce_packets(std::string_view what, Wire& wire, std::span<const PackedMessage> messages,
                      const MomentumCorrection& correction);
  void gather_packets(std::string_view what, Wire& wire, std::span<const PackedMessage> messages,
                      const MomentumCorrection& correction);
  PackedRanks ranks() const { return {channel_.ranks(), inside_ ? inside_->ranks() : 1}; }
  // Elements from one destination's shard of a slab to the next one's.
  int64_t stride(const Message& message) const { return message.shard_elems * ranks().inside; }
  std::vector<Message> inside_messages(std::span<const PackedMessage> messages) const;
  std::vector<PackedMessage> sum_inside(std::string_view what,
                                        std::span<const PackedMessage> messages);
  Rooms rooms(const Wire& wire, std::span<const PackedMessage> messages, int blocks_made,
              int blocks_received);
  template <class Visit>
  void for_each_given(const PackedMessage& packed, const Visit& visit) const;
  bool finite(const PackedMessage& packed) const;
  float own_scale(const PackedMessage& packed, float limit) const;
  void clear_gaps(const PackedMessage& packed) const;
  std::span<float> given(const PackedMessage& packed, int destination, const Fold& fold,
                         float* wide) const;
  void pack(Wire& wire, const PackedMessage& packed, int destination, std::byte* packet,
            std::span<float> values, bool masks);
  void sum(Wire& wire, const PackedMessage& packed, int destination, void* dst, float* wide,
           const Packer::Packets& packets);
  void pack_all(Wire& wire, std::span<const PackedMessage> messages, const Rooms& rooms,
                const MomentumCorrection& correction);
  void pack_own(Wire& wire, std::span<const PackedMessage> messages, const Rooms& rooms);
  void unpack_all(Wire& wire, std::span<const PackedMessage> messages, const Rooms& rooms);
  // The same by the packer (packed_device.cpp).
  void pack_by_packer(const Wire& wire, std::span<const PackedMessage> messages, const Rooms& rooms,
                      const MomentumCorrection& correction);
  void pack_own_by_packer(const Wire& wire, std::span<const PackedMessage> messages,
                          const Rooms& rooms);
  void sum_by_packer(const Wire& wire, const PackedMessage& packed, int destination, void* dst,
                     float* wide, const Packer::Packets& packets);
  template <class Work>
  void timed(const Work& work);
  void count(const Wire& wire, std::span<const PackedMessage> messages, int shards);
  WireDraw draw_of(const PackedMessage& packed, int source, int destination) const;

  Channel& channel_;
  Channel* const inside_;
  const bool dry_;
  const std::unique_ptr<Packer> packer_;
  std::byte* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;
  PackWork work_;
};

}  // namespace onefold
