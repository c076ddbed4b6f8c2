#include "program/program.h"

#include <fmt/format.h>

#include <array>

#include "base/error.h"
#include "program/passes.h"

namespace onefold {

int lowest_trained(const std::vector<UnitTraits>& units) {
  int lowest = 0;
  while (lowest < static_cast<int>(units.size()) && units[static_cast<size_t>(lowest)].frozen)
    ++lowest;
  return lowest;
}

// Whether another unit's backward adds to this unit's gradient. With several micro-batches such a
// gradient collects all of the other's contributions before the first of its own, so that the sum
// is the same in both orders.
bool is_added_to(const std::vector<UnitTraits>& units, int unit) {
  for (const UnitTraits& other : units)
    for (const int receiver : other.adds_to)
      if (receiver == unit) return true;
  return false;
}

namespace {

void add_forward(const StepShape& shape, int unit, int micro, std::vector<Action>& actions) {
  if (!shape.units[static_cast<size_t>(unit)].has_loss)
    actions.push_back({.verb = Verb::forward, .unit = unit, .micro = micro});
}

void add_backward(int unit, int micro, std::vector<Action>& actions) {
  actions.push_back({.verb = Verb::backward, .unit = unit, .micro = micro});
}

void add_micro_first(const StepShape& shape, int lowest, std::vector<Action>& actions) {
  const int units = static_cast<int>(shape.units.size());
  // Nothing below the lowest unit waits for its backward: it may come after all micro-batches.
  const bool later = shape.micros > 1 && is_added_to(shape.units, lowest);
  for (int micro = 0; micro < shape.micros; ++micro) {
    for (int unit = 0; unit < units; ++unit) add_forward(shape, unit, micro, actions);
    for (int unit = units - 1; unit >= (later ? lowest + 1 : lowest); --unit)
      add_backward(unit, micro, actions);
  }
  for (int micro = 0; later && micro < shape.micros; ++micro) add_backward(lowest, micro, actions);
}

void add_unit_first(const StepShape& shape, int lowest, std::vector<Action>& actions) {
  const int units = static_cast<int>(shape.units.size());
  for (int unit = 0; unit < units; ++unit)
    for (int micro = 0; micro < shape.micros; ++micro) add_forward(shape, unit, micro, actions);
  for (int unit = units - 1; unit >= lowest; --unit)
    for (int micro = 0; micro < shape.micros; ++micro) add_backward(unit, micro, actions);
}

// The last micro-batch leaves a unit's gradient complete and its end still in cache: its squares
// are summed there. A tied table belongs to the embedding, whose backward comes last.
void add_squares(const StepShape& shape, std::vector<Action>& actions) {
  std::vector<Action> with_squares;
  with_squares.reserve(actions.size() + 2 * shape.units.size() + 1);
  for (Action& action : actions) {
    const bool complete = action.verb == Verb::backward && action.micro == shape.micros - 1 &&
                          !shape.units[static_cast<size_t>(action.unit)].frozen;
    const int unit = action.unit;
    with_squares.push_back(std::move(action));
    if (complete) with_squares.push_back({.verb = Verb::squares, .unit = unit});
  }
  actions = std::move(with_squares);
}

}  // namespace

const char* verb_name(Verb verb) {
  static constexpr std::array<const char*, kVerbs> kNames = {
      "gather", "release", "forward", "backward", "exchange", "reduce", "squares",
      "clip",   "step",    "fetch",   "spill",    "send",     "recv"};
  return kNames[static_cast<size_t>(verb)];
}

const char* lane_name(Lane lane) {
  static constexpr std::array<const char*, kLanes> kNames = {
      "compute", "gather", "reduce", "exchange", "fetch", "spill", "host", "send", "recv"};
  return kNames[static_cast<size_t>(lane)];
}

const char* order_name(Order order) {
  return order == Order::micro_first ? "micro_first" : "unit_first";
}

std::vector<int> units_of(const Action& action) {
  std::vector<int> units{action.unit};
  units.insert(units.end(), action.joined.begin(), action.joined.end());
  return units;
}

const std::vector<int>& reads_of(const Action& action, const std::vector<UnitTraits>& units) {
  static const std::vector<int> kNone;
  const UnitTraits& unit = units[static_cast<size_t>(action.unit)];
  if (action.verb == Verb::forward) return unit.forward_reads;
  if (action.verb == Verb::backward) return unit.backward_reads;
  return kNone;
}

std::vector<int> gradients_of(const Action& action, const std::vector<UnitTraits>& units) {
  if (action.verb != Verb::backward) return {};
  std::vector<int> trained;
  const UnitTraits& own = units[static_cast<size_t>(action.unit)];
  if (!own.frozen) trained.push_back(action.unit);
  for (const int other : own.adds_to)
    if (!units[static_cast<size_t>(other)].frozen) trained.push_back(other);
  return trained;
}

const char* state_name(State state) {
  switch (state) {
    case State::parameters:
    case State::stepped:
      return "parameters";
    case State::gradients:
      return "gradients";
    case State::optimizer:
      return "optimizer";
    case State::activations:
      return "activations";
  }
  return "";
}

std::string carried(const Action& action, const std::string& unit_name) {
  if (action.state == State::gradients) return fmt::format("gradients of {}", unit_name);
  return fmt::format("{} of {}, micro {}", action.of_backward ? "output gradient" : "input",
                     unit_name, action.micro);
}

namespace {

std::string rows_text(const Chunk& chunk) {
  return chunk.count == 1 ? "" : fmt::format(", rows {}/{}", chunk.index + 1, chunk.count);
}

}  // namespace

std::string describe(const Action& action, const std::string& unit_name) {
  const char* verb = verb_name(action.verb);
  switch (action.verb) {
    case Verb::forward:
    case Verb::backward:
      if (action.phase == Action::kAllPhases)
        return fmt::format("{} {}, micro {}{}", verb, unit_name, action.micro,
                           action.part == Part::all        ? ""
                           : action.part == Part::by_input ? ", by input"
                                                           : ", by weights");
      return fmt::format("{} {}, micro {}, phase {}{}", verb, unit_name, action.micro, action.phase,
                         rows_text(action.chunk));
    case Verb::exchange:
      if (action.state == State::gradients)
        return fmt::format("{} gradients of {}", verb, unit_name);
      if (action.state == State::activations)
        return fmt::format("{} residual of {}, micro {}, {}", verb, unit_name, action.micro,
                           action.of_backward ? "backward" : "forward");
      return fmt::format("{} {}, micro {}, after phase {} of {}{}", verb, unit_name, action.micro,
                         action.phase, action.of_backward ? "backward" : "forward",
                         rows_text(action.chunk));
    case Verb::clip:
      return verb;
    case Verb::send:
    case Verb::recv:
      return fmt::format("{} {}", verb, carried(action, unit_name));
    case Verb::fetch:
    case Verb::spill:
      return fmt::format("{} {} of {}", verb, state_name(action.state), unit_name);
    case Verb::gather:
    case Verb::reduce:
      return fmt::format(
          "{} {}{}{}", verb, unit_name,
          action.joined.empty() ? "" : fmt::format(" and {} more", action.joined.size()),
          action.packed   ? ", packed"
          : action.inside ? ", inside the node"
                          : "");
    default:
      return fmt::format("{} {}", verb, unit_name);
  }
}

Program build_training_step(const StepShape& shape) {
  Program program{static_cast<int>(shape.units.size()), shape.micros, {}};
  const int lowest = lowest_trained(shape.units);
  require(lowest < program.units, "a training step without a unit to train");
  if (shape.pipeline.ranks > 1)
    add_pipeline_step(shape, lowest, program.actions);
  else if (shape.order == Order::micro_first)
    add_micro_first(shape, lowest, program.actions);
  else
    add_unit_first(shape, lowest, program.actions);
  if (shape.pipeline.ranks == 1) add_squares(shape, program.actions);
  program.actions.push_back({.verb = Verb::clip});
  for (int unit = 0; unit < program.units; ++unit)
    if (const UnitTraits& own = shape.units[static_cast<size_t>(unit)]; !own.frozen && own.held())
      program.actions.push_back({.verb = Verb::step, .unit = unit});
  liveness(program);
  return program;
}

Program build_evaluation(int units, const Pipeline& pipeline) {
  Program program{units, 1, {}};
  if (pipeline.ranks > 1)
    add_pipeline_evaluation(pipeline, program.actions);
  else
    for (int unit = 0; unit < units; ++unit)
      program.actions.push_back({.verb = Verb::forward, .unit = unit});
  liveness(program);
  return program;
}

}  // namespace onefold
