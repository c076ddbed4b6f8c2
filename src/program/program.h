// A training step is a program: the list of actions of one rank. A builder writes the plain step;
// each technique is a pass that rewrites the list (passes.h); the executor walks it; verify.h
// checks it. Order and overlap can be read off the list. Units are known by number, size and
// traits (unit_traits.h), never by what they compute.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/pipeline.h"
#include "program/unit_traits.h"

namespace onefold {

enum class Verb : uint8_t {
  gather,    // units: make their parameters whole on this rank (stepped ones: in place)
  release,   // unit: give back what a gather, a fetch or a backward holds on the device beyond what
             // is at home there
  forward,   // unit, micro: compute the unit's output
  backward,  // unit, micro: gradients of its parameters and of its input
  exchange,  // unit, micro, phase: what travels between two phases of a unit (see Unit's phases);
             // of gradients: what shares of a unit sum of theirs
  reduce,    // units: sum their gradients over ranks
  squares,   // unit: the sums of squares of its gradient, for clipping and for finding what is not
             // finite
  clip,      // all ranks: the global norm, the loss, and how much gradients are scaled
  step,      // unit: the optimizer updates its parameters
  fetch,     // unit: bring a state from its tier to the device; of stepped parameters: what the
             // host has stepped, to where they live there
  spill,     // unit: write a state that the device has changed back to its tier
  send,      // unit, micro: what this rank has computed for a unit of another stage: its input, or
             // (of_backward) the gradient of its output. Of gradients: see UnitTraits::copied
  recv       // the same, for a unit of this rank
};
inline constexpr int kVerbs = 13;

// An in-order queue of actions; a thread on the CPU, a stream on a GPU. The program's order is the
// order in which actions are handed out, and memory is taken and given back then: what a rank holds
// never depends on timing.
enum class Lane : uint8_t {
  compute,
  gather,
  reduce,
  exchange,  // between phases of a unit, while it computes what does not read what travels
  fetch,
  spill,
  host,  // computation by the host's cores, in its own memory
  send,  // between the stages of a pipeline
  recv
};
inline constexpr int kLanes = 9;
inline constexpr Lane kAllLanes[] = {Lane::compute,  Lane::gather, Lane::reduce,
                                     Lane::exchange, Lane::fetch,  Lane::spill,
                                     Lane::host,     Lane::send,   Lane::recv};
// Those on which ranks make the same calls.
inline constexpr Lane kMessageLanes[] = {Lane::compute, Lane::gather, Lane::reduce, Lane::exchange};

enum class State : uint8_t {
  parameters,
  gradients,
  stepped,     // parameters that a step has changed
  optimizer,   // all states that the optimizer keeps
  activations  // of one micro-batch: a unit's input and what its forward saved, as far as they are
               // kept
};
inline constexpr int kStates = 5;

const char* verb_name(Verb verb);
const char* lane_name(Lane lane);
const char* state_name(State state);

// One of equal runs of the rows of what a phase computes.
struct Chunk {
  int index = 0, count = 1;
};

// What of a unit's backward an action computes: all; all but gradients of weights that may come
// later; these alone.
enum class Part : uint8_t { all, by_input, by_weights };

struct Action {
  static constexpr int kAllPhases = -1;

  Verb verb;
  int unit = 0;
  int micro = 0;
  Lane lane = Lane::compute;
  // What a later action reads, by the pass `liveness`; the rest is given back at once.
  bool keep_input = false;   // forward: the unit's input
  bool keep_saved = false;   // forward: what its backward needs
  bool output = false;       // forward: the next unit's input; backward: the gradient of its input
  bool accumulate = false;   // backward: add to the gradients instead of overwriting them
  int phase = kAllPhases;    // forward, backward: one phase of the unit; exchange: after which
  Chunk chunk = {};          // of a phase, and of an exchange after it
  Part part = Part::all;     // backward
  bool of_backward = false;  // exchange: between phases of backward; send, recv: of a gradient
  bool of_step = false;      // fetch: for the unit's step
  State state = State::parameters;  // gather, release, exchange, fetch, spill, send, recv: of what
  bool packed = false;              // gather, reduce: what travels does so in a wire format
  bool inside = false;              // gather: from the copy that the ranks of a node keep
  std::vector<int> joined = {};     // gather, reduce: further units in the same collective
  int ticket = -1;                  // on a lane: the number under which others wait for it
  std::vector<int> waits = {};      // tickets that must be done before this begins
};

inline bool computes(const Action& action) {
  return action.verb == Verb::forward || action.verb == Verb::backward;
}
// The action's unit, then those that were joined to it.
std::vector<int> units_of(const Action& action);
// The units to whose gradients a backward adds; none for other verbs.
std::vector<int> gradients_of(const Action& action, const std::vector<UnitTraits>& units);
// The units whose parameters a forward or backward reads; none for other verbs.
const std::vector<int>& reads_of(const Action& action, const std::vector<UnitTraits>& units);

struct Program {
  int units = 0;
  int micros = 0;
  std::vector<Action> actions;
};

// "backward block.3.mlp, micro 0"
std::string describe(const Action& action, const std::string& unit_name);
// What a send or a recv carries, the same on both sides: "input of block.3.mlp, micro 0".
std::string carried(const Action& action, const std::string& unit_name);

// In which order a step goes through its micro-batches. Sums over micro-batches are the same either
// way, to the bit.
enum class Order : uint8_t {
  micro_first,  // each micro-batch through all units: one micro-batch's activations, all gradients
  unit_first    // each unit for all micro-batches: all activations, but gathers and reductions come
                // once a step, and a sharded gradient is whole for one unit at a time
};
const char* order_name(Order order);

struct StepShape {
  std::vector<UnitTraits> units;
  int micros = 1;
  Order order = Order::micro_first;
  Pipeline pipeline = {};  // in its place, where there are several stages
};

// The plain step: forward each unit for each micro-batch, backward each unit in reverse, squares,
// clipping, optimizer steps. A unit that has the loss has no forward: its backward does both.
// Backward ends at the lowest unit that is not frozen. Of a pipeline: the same of this rank's
// units, in the order of its schedule. liveness() has been applied.
Program build_training_step(const StepShape& shape);

// Forward of every unit (of a pipeline: of this rank's) for one micro-batch, keeping nothing.
// liveness() has been applied.
Program build_evaluation(int units, const Pipeline& pipeline = {});

// For builders: the lowest unit that is trained, and whether another unit adds to a unit's
// gradient.
int lowest_trained(const std::vector<UnitTraits>& units);
bool is_added_to(const std::vector<UnitTraits>& units, int unit);

}  // namespace onefold
