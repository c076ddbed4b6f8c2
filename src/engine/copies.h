// What several ranks hold alike beside those that its gradients are summed with: of shares of a
// model, and of those that divide experts, whatever is not divided (norms, biases behind a sum,
// learned positions, heads that several have, routers). A packet of a slab is of all that a rank
// has of it, so what it lacks of a norm would be another number on every share, and their weights
// would no longer be the same. Such elements travel as they are, beside the packets: in fp32,
// summed in rank order, which is the same everywhere however slabs are cut.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "comm/packed.h"
#include "engine/slab.h"

namespace onefold {

// Elements [begin, end) of a slab.
struct SlabRun {
  int64_t begin = 0, end = 0;
};

// Those that others hold too; `divided`: the unit is a share of one.
std::vector<SlabRun> copies_of(const SlabLayout& layout, bool divided);

// The copies of the slabs of one packed call. They are taken out before it, summed, and put where
// the call's result is. By the lane's thread, in the host's memory; without memory (dry) the sum is
// only counted.
class CopiesCall {
 public:
  struct Slab {
    PackedMessage packed;  // as the packed call has it
    std::span<const SlabRun> runs;
  };

  // Of slabs with so many states of the rank's own.
  CopiesCall(std::vector<Slab> slabs, Channel& channel, int own_states, void* scratch)
      : slabs_(std::move(slabs)),
        channel_(&channel),
        own_states_(own_states),
        scratch_(static_cast<float*>(scratch)) {}

  int64_t scratch_bytes() const {
    return shard_elems() * channel_->ranks() * (1 + own_states_) * int64_t{sizeof(float)};
  }
  int64_t sent_bytes() const;

  // Of gradients: nothing of them is left where packets are made of, and what was kept back of them
  // travels. A momentum that travels is taken first, and is not masked.
  void take_gradients(const MomentumCorrection& correction) const;
  // Of parameters: from the ranks' shards.
  void take_parameters() const;
  // The sum; and back into all of a slab, or this rank's shard of it.
  void sum(std::string_view what) const;
  void put(bool whole) const;

 private:
  int64_t elems() const;
  int64_t shard_elems() const { return (elems() + channel_->ranks() - 1) / channel_->ranks(); }
  // Copies in scratch: what travels; behind it, what is kept, and momentum.
  float* area(int number) const { return scratch_ + number * shard_elems() * channel_->ranks(); }
  void swap_own(bool out) const;

  std::vector<Slab> slabs_;
  Channel* channel_;
  int own_states_;
  float* scratch_;
};

}  // namespace onefold
