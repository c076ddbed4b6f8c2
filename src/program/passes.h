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

// ZeRO: before use, parameters are fetched if they live on another tier, and gathered if they are
// sharded; after it they are released. Gradients are summed over ranks as soon as a unit's last
// backward is done, and what steps have changed is gathered where parameters are whole.
void shard(Program& program, const std::vector<UnitTraits>& units, int ranks,
           const ShardLimits& limits);

// Of parameters that the ranks of a node keep once they are gathered: the first gather of a step is
// among all that share them, later ones are inside the node. After shard().
void gather_inside(Program& program, const std::vector<UnitTraits>& units);

// Joins reductions (and the gathers after steps) of successive units until a bucket has so many
// elements: fewer, longer messages for gradients that wait a little longer.
void bucket(Program& program, const std::vector<UnitTraits>& units, int64_t reduce_elems,
            int64_t gather_elems);

// Lets gradients, or parameters that are gathered for use, travel in a wire format: the reductions
// and gathers that do are marked. What a step has changed is gathered as it is. After bucket().
struct CompressOf {
  bool gradients = false, parameters = false;
};
void compress(Program& program, const CompressOf& of);

// Gradients and optimizer state that live on another tier: a gradient is spilled once it is
// complete (and between two backwards that add to it, if others come between), and a step finds
// gradient, states and parameters fetched, and leaves what it has changed spilled. Where the host
// steps, states stay where they are, and parameters that live on the device are fetched before they
// are next read. After bucket().
void offload(Program& program, const std::vector<UnitTraits>& units);

// What a forward keeps for a later action goes to another tier, and comes back before that one, if
// others compute in between.
void offload_activations(Program& program);

// Puts gathers and reductions, and copies between tiers, on lanes of their own. Whoever needs a
// result waits for its ticket; a reduction's squares and release move behind the next backward, so
// that it can hide there, and what a spill leaves is released when the next one has begun.
struct OverlapOf {
  bool messages = true, copies = true;
};
void overlap(Program& program, const std::vector<UnitTraits>& units, const OverlapOf& of = {});

// Hoists gathers and fetches above earlier computation, as long as what has been brought ahead of
// its use stays within `ahead_elems` (kOneUnit: one unit, of whatever size) and whole parameters
// within `max_live_elems`. After overlap(); what has no lane of its own stays where it is.
inline constexpr int64_t kOneUnit = -1;
void prefetch(Program& program, const std::vector<UnitTraits>& units, int64_t ahead_elems,
              int64_t max_live_elems);

// Puts what passes between the stages of a pipeline on lanes of its own: who reads what was
// received waits for it, and what was sent is released before another one is, or at the end of
// backward, so that at most `under_way` messages are. After overlap() and prefetch(), whose tickets
// it goes on from.
void pass_between_stages(Program& program, int under_way);

// Cuts each forward and backward into its unit's phases, with an exchange after those after which
// something travels between shares of the unit (UnitTraits::travels); and one of gradients after
// the unit's last backward, where they are sums over shares. Where the traits name none, there is
// an exchange between any two phases, which does nothing, and the bits are those of the whole
// actions. After all passes above.
void split_phases(Program& program, const std::vector<UnitTraits>& units);

// Puts exchanges between phases on a lane of their own, for whose ticket the phase waits that reads
// what travels: those that have one (Travels::on_lane_after), beside a phase that does not read it
// if one follows (PhaseCounts::beside); and those after phases whose rows travel
// (Travels::by_rows_after), which are cut into so many runs of rows. What a run leaves travels
// while the next is computed, and, in backward, gradients of weights that come behind. After
// split_phases().
void overlap_exchanges(Program& program, const std::vector<UnitTraits>& units, int chunks);

}  // namespace onefold
