// What programs and passes know of a unit: its size, where its state lives, what it reads. Units
// are numbers here; what they compute is the model's affair.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tensor/ledger.h"

namespace onefold {

// Where one kind of a unit's state lives, and as what.
struct Home {
  bool sharded = false;  // over the ranks of the data axis; else whole on each rank
  Tier tier = Tier::device;
  DType dtype = DType::f32;

  bool offloaded() const { return tier != Tier::device; }
};

// ZeRO's stages, offloading, mixed precision and lean states are tables of these. A state of the
// optimizer has a type of its own (OptimizerState), so only the first two fields count there.
struct Homes {
  Home parameters, gradients, optimizer;

  bool any_offloaded() const {
    return parameters.offloaded() || gradients.offloaded() || optimizer.offloaded();
  }
};

// Into how many phases a unit's computation can be cut.
struct PhaseCounts {
  int forward = 1, backward = 1;
  // Which of backward's make gradients of weights alone, and may come later; empty: not known here.
  std::vector<bool> by_weights = {};
  // Which read nothing of what travels after the phase before them, and are computed meanwhile if
  // it has a lane; empty: none.
  std::vector<bool> forward_beside = {}, backward_beside = {};

  // Whether a backward can be cut into gradients by input and, later, those of weights.
  bool cut_in_two() const {
    return by_weights.empty() ||
           std::find(by_weights.begin(), by_weights.end(), true) != by_weights.end();
  }
  bool makes_weights(int phase) const {
    return phase >= 0 && static_cast<size_t>(phase) < by_weights.size() &&
           by_weights[static_cast<size_t>(phase)];
  }
  bool beside(bool of_backward, int phase) const {
    const std::vector<bool>& phases = of_backward ? backward_beside : forward_beside;
    return phase >= 0 && static_cast<size_t>(phase) < phases.size() &&
           phases[static_cast<size_t>(phase)];
  }
  // The first phase from `phase` on that is not one of these.
  int by_input_from(int phase) const {
    while (makes_weights(phase)) ++phase;
    return phase;
  }
};

// Where a unit is a share of one: after which phases of forward and of backward something travels
// between shares, and whether its gradients are in part sums over them, once they are complete.
struct Travels {
  std::vector<bool> forward, backward;
  bool gradients = false;
  // Of these, those of which runs of rows may travel while further ones are computed.
  std::vector<bool> forward_rows = {}, backward_rows = {};
  // Of these, those that travel on a lane of their own, while phases beside them are computed
  // (PhaseCounts::beside).
  std::vector<bool> forward_lane = {}, backward_lane = {};

  bool any() const { return !forward.empty() || !backward.empty(); }
  bool after(bool of_backward, int phase) const {
    const std::vector<bool>& phases = of_backward ? backward : forward;
    return static_cast<size_t>(phase) < phases.size() && phases[static_cast<size_t>(phase)];
  }
  bool on_lane_after(bool of_backward, int phase) const {
    const std::vector<bool>& phases = of_backward ? backward_lane : forward_lane;
    return static_cast<size_t>(phase) < phases.size() && phases[static_cast<size_t>(phase)];
  }
  bool by_rows_after(bool of_backward, int phase) const {
    const std::vector<bool>& phases = of_backward ? backward_rows : forward_rows;
    return static_cast<size_t>(phase) < phases.size() && phases[static_cast<size_t>(phase)];
  }
};

// What a rank of a pipeline has of a unit: all of it, and computes it; a copy of its parameters,
// which one of its own units shares (a tied head: the embedding's); nothing.
enum class Presence : uint8_t { here, copy, elsewhere };

struct UnitTraits {
  int64_t elems = 0;  // of its slab (without adapters)
  // Ranks that sum its gradient and share its state, where they are fewer than those of others:
  // those that have the same of divided experts. 0: as many as for other units.
  int ranks = 0;
  Homes homes;
  // Where parameters are sharded: so many ranks of a node keep what was last gathered, a part of it
  // each, until the next step. 0: nobody does.
  int node_ranks = 0;
  bool frozen = false;
  // Of adapters, which have a slab of their own that is whole on each rank, and are trained in the
  // place of the rest: gradients and optimizer state are theirs. 0: there are none.
  int64_t adapter_elems = 0;
  // Of states of the optimizer that are whole on each rank: of one that is kept of vectors alone,
  // of one that is kept of matrices' rows and columns, and of one of a few numbers of each
  // parameter. And whether there are matrices of a block.
  int64_t vector_elems = 0, factor_elems = 0, ratio_elems = 0;
  bool has_hidden = false;
  // The units whose parameters its forward and its backward read: itself, and the owner of what it
  // shares (a tied head: the embedding). An embedding's backward reads none.
  std::vector<int> forward_reads, backward_reads;
  // Further units to whose gradients its backward adds (a tied head: the embedding).
  std::vector<int> adds_to;
  bool has_loss = false;  // the last unit: forward, loss and backward are one
  bool is_first = false;  // reads tokens, and passes no gradient on
  // Units of one segment are recomputed together from the input of the first; -1: keeps nothing
  // that could be recomputed.
  int segment = -1;
  PhaseCounts phases;
  Travels travels;

  // Of a pipeline: the rank along its axis that computes the unit, and what this rank has of it.
  // A unit that is `copied` has its gradient summed over two ranks: the one with the copy sends
  // what its own units have added, the one that computes the unit adds to that, and sends the whole
  // back.
  int place = 0;
  Presence presence = Presence::here;
  bool copied = false;

  int ranks_of(int of_others) const { return ranks > 0 ? ranks : of_others; }
  bool here() const { return presence == Presence::here; }
  bool held() const { return presence != Presence::elsewhere; }
  bool adapted() const { return adapter_elems > 0; }
  // Of gradients and of each state of the optimizer.
  int64_t trained_elems() const { return adapted() ? adapter_elems : elems; }
  // Its states, and its gradient, live in the host's memory, and the host's cores step it there.
  bool host_steps = false;
  // What the host has stepped lives on the device: it is brought there before it is next read,
  // which is in the next step, so that the host steps later units meanwhile.
  bool fetches_stepped() const { return host_steps && !homes.parameters.offloaded(); }
  bool fetches_stepped_late() const { return fetches_stepped() && !gathers_after_step(); }
  // Whether a step changes parameters whose home is on another tier; adapters live on the device.
  bool spills_after_step() const { return homes.parameters.offloaded() && !adapted(); }
  // Whether a step changes a shard of what is whole on each rank.
  bool gathers_after_step() const {
    return homes.optimizer.sharded && (adapted() || !homes.parameters.sharded);
  }
};

}  // namespace onefold
