// The passes: each technique rewrites the program in one file under passes/. They know units by
// number and size alone.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace onefold {

// Where a unit's state lives across the ranks of the data axis.
struct Residence {
  bool shard_parameters = false;
  bool shard_gradients = false;
  bool shard_optimizer = false;
};

// What the passes of ZeRO need to know of a unit.
struct UnitTraits {
  int64_t elems = 0;  // of its slab
  Residence residence;
  bool frozen = false;
  // The units whose parameters its forward and its backward read: itself, and the owner of what it
  // shares (a tied head: the embedding). An embedding's backward reads none.
  std::vector<int> forward_reads, backward_reads;
};

// Gradients of the first micro-batch overwrite, those of later ones add: no pass over memory to
// zero them.
void accumulate(Program& program);

// Activation checkpointing: blocks keep only their input; their forward runs again just before
// their backward.
void recompute(Program& program);

struct ShardLimits {
  int64_t max_live_elems = INT64_MAX;  // whole parameters held at once, besides those in use
  int64_t max_reuse_distance = 0;      // keep what is used again within so many elements
};

// ZeRO: gathers a sharded unit before use and releases it after; sums gradients over ranks as soon
// as a unit's last backward is done; gathers what steps have changed where parameters are whole.
void shard(Program& program, const std::vector<UnitTraits>& units, const ShardLimits& limits);

// Joins reductions (and the gathers after steps) of successive units until a bucket has so many
// elements: fewer, longer messages for gradients that wait a little longer.
void bucket(Program& program, const std::vector<UnitTraits>& units, int64_t reduce_elems,
            int64_t gather_elems);

// Puts gathers and reductions on lanes of their own. Whoever needs a result waits for its ticket; a
// reduction's norm and release move behind the next backward, so that it can hide there.
void overlap(Program& program, const std::vector<UnitTraits>& units);

// Hoists gathers above earlier computation, as long as what has been gathered ahead of its use
// stays within `ahead_elems` (kOneUnit: one unit, of whatever size) and everything gathered within
// `max_live_elems`. After overlap().
inline constexpr int64_t kOneUnit = -1;
void prefetch(Program& program, const std::vector<UnitTraits>& units, int64_t ahead_elems,
              int64_t max_live_elems);

}  // namespace onefold
