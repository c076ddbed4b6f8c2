// The passes: each technique rewrites the program in one file under passes/. They know units by
// number, size and traits alone.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace onefold {

// Marks for each forward what of it is read later: its input, what it saves, its output. What no
// later action reads is not kept. Builders and recompute() apply it; any other pass that adds or
// removes a forward or a backward must do so too.
void liveness(Program& program);

// Gradients of the first micro-batch overwrite, those of later ones add: no pass over memory to
// zero them.
void accumulate(Program& program);

// Activation checkpointing: of each segment only the input of its first unit is kept; the forwards
// of the segment run again just before the backward of its last unit.
void recompute(Program& program, const std::vector<UnitTraits>& units);

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
// reduction's squares and release move behind the next backward, so that it can hide there.
void overlap(Program& program, const std::vector<UnitTraits>& units);

// Hoists gathers above earlier computation, as long as what has been gathered ahead of its use
// stays within `ahead_elems` (kOneUnit: one unit, of whatever size) and everything gathered within
// `max_live_elems`. After overlap().
inline constexpr int64_t kOneUnit = -1;
void prefetch(Program& program, const std::vector<UnitTraits>& units, int64_t ahead_elems,
              int64_t max_live_elems);

// Cuts each forward and backward into its unit's phases, with an exchange between two of them: the
// places where tensor, context and expert parallelism put what travels. On axes of one rank
// exchanges do nothing, and the bits are those of the whole actions. Last of all passes.
void split_phases(Program& program, const std::vector<UnitTraits>& units);

}  // namespace onefold
