// A training step is a program: the list of actions of one rank. A builder writes the plain step;
// each technique is a pass that rewrites the list (passes.h); the executor walks it. Order and
// overlap can be read off the list.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace onefold {

enum class Verb : uint8_t {
  gather,    // units: make their parameters whole on this rank
  release,   // unit: give back what a gather (or a backward, see State) holds beyond the shard
  forward,   // unit, micro: compute the unit's output
  backward,  // unit, micro: gradients of its parameters and of its input
  reduce,    // units: sum their gradients over ranks
  norm,      // unit: the sum of squares of its gradient, for clipping and for finding what is not
             // finite
  clip,      // all ranks: the global norm, the loss, and how much gradients are scaled
  step,      // unit: the optimizer updates its parameters
};
inline constexpr int kVerbs = 8;

// An in-order queue of actions; one thread on the CPU, one stream on a GPU. The program's order is
// the order in which actions are handed out, and memory is taken and given back then: what a rank
// holds never depends on timing.
enum class Lane : uint8_t { compute, gather, reduce };
inline constexpr int kLanes = 3;

enum class State : uint8_t { parameters, gradients };

const char* verb_name(Verb verb);
const char* lane_name(Lane lane);

struct Action {
  Verb verb;
  int unit = 0;
  int micro = 0;
  Lane lane = Lane::compute;
  bool keep = true;         // forward: keep what backward needs (a recompute pass clears it)
  bool again = false;       // forward: for backward alone; the output is known and not wanted
  bool accumulate = false;  // backward: add to the gradients instead of overwriting them
  State state = State::parameters;  // release: of what
  std::vector<int> joined = {};     // gather, reduce: further units in the same collective
  int ticket = -1;                  // on a lane: the number under which others wait for it
  std::vector<int> waits = {};      // tickets that must be done before this begins
};

struct Program {
  int units = 0;
  int micros = 0;
  std::vector<Action> actions;
};

// "backward block.3, micro 0"
std::string describe(const Action& action, const std::string& unit_name);

// In which order a step goes through its micro-batches. Sums over micro-batches are the same either
// way, to the bit.
enum class Order : uint8_t {
  micro_first,  // each micro-batch through all units: one micro-batch's activations, all gradients
  unit_first    // each unit for all micro-batches: all activations, but gathers and reductions come
                // once a step, and a sharded gradient is whole for one unit at a time
};
const char* order_name(Order order);

struct StepShape {
  int units = 0;
  int micros = 1;
  Order order = Order::micro_first;
  bool tied = false;              // the head adds to the gradient of the first unit
  std::vector<bool> frozen = {};  // by unit; empty: none

  bool is_frozen(int unit) const { return !frozen.empty() && frozen[static_cast<size_t>(unit)]; }
};

// The plain step: forward each unit for each micro-batch, backward each unit in reverse, norms,
// clipping, optimizer steps. The head (the last unit) has no forward: its backward does both.
// Backward ends at the lowest unit that is not frozen.
Program build_training_step(const StepShape& shape);

// Forward of every unit for one micro-batch, keeping nothing.
Program build_evaluation(int units);

}  // namespace onefold
