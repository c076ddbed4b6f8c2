// A training step is a program: the list of actions of one rank. A builder writes the plain step;
// each technique is a pass that rewrites the list (passes.h); the executor walks it. Order and
// overlap can be read off the list.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace onefold {

enum class Verb : uint8_t {
  forward,   // unit, micro: compute the unit's output
  backward,  // unit, micro: gradients of its parameters and of its input
  norm,      // unit: the sum of squares of its gradient, for clipping and for finding what is not
             // finite
  step,      // unit: the optimizer updates its parameters
};

// An in-order queue of actions; one thread on the CPU, one stream on a GPU.
enum class Lane : uint8_t { compute };

const char* verb_name(Verb verb);

struct Action {
  Verb verb;
  int unit = 0;
  int micro = 0;
  Lane lane = Lane::compute;
  bool keep = true;         // forward: keep what backward needs (a recompute pass clears it)
  bool again = false;       // forward: for backward alone; the output is known and not wanted
  bool accumulate = false;  // backward: add to the gradients instead of overwriting them
};

struct Program {
  int units = 0;
  int micros = 0;
  std::vector<Action> actions;
};

// "backward block.3, micro 0"
std::string describe(const Action& action, const std::string& unit_name);

// The plain step: forward each unit for each micro-batch, backward each unit in reverse, norms,
// optimizer steps. The head (the last unit) has no forward: its backward does both.
Program build_training_step(int units, int micros);

// Forward of every unit for one micro-batch, keeping nothing.
Program build_evaluation(int units);

}  // namespace onefold
