#include "program/passes.h"

namespace onefold {
namespace {

bool travels_after(const UnitTraits& unit, bool backward, int phase) {
  return !unit.travels.any() || unit.travels.after(backward, phase);
}

// By unit: the place of its last backward; -1: it has none.
std::vector<int> last_backwards(const Program& program) {
  std::vector<int> last(static_cast<size_t>(program.units), -1);
  for (size_t i = 0; i < program.actions.size(); ++i)
    if (program.actions[i].verb == Verb::backward)
      last[static_cast<size_t>(program.actions[i].unit)] = static_cast<int>(i);
  return last;
}

}  // namespace

void split_phases(Program& program, const std::vector<UnitTraits>& units) {
  const std::vector<int> last = last_backwards(program);
  std::vector<Action> actions;
  for (size_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    if (!computes(action)) {
      actions.push_back(action);
      continue;
    }
    const bool backward = action.verb == Verb::backward;
    const UnitTraits& unit = units[static_cast<size_t>(action.unit)];
    // Nothing travels between gradients of weights that come later: they stay one action.
    const bool later = action.part == Part::by_weights;
    if (later) actions.push_back(action);
    const int count = later ? 0 : backward ? unit.phases.backward : unit.phases.forward;
    bool first = true;
    for (int phase = 0; phase < count; ++phase) {
      if (action.part == Part::by_input && unit.phases.by_input_from(phase) != phase) continue;
      Action one = action;
      one.phase = phase;
      if (!first) one.waits.clear();
      first = false;
      actions.push_back(std::move(one));
      if (phase + 1 < count && travels_after(unit, backward, phase))
        actions.push_back({.verb = Verb::exchange,
                           .unit = action.unit,
                           .micro = action.micro,
                           .phase = phase,
                           .of_backward = backward});
    }
    if (unit.travels.gradients && !unit.frozen &&
        last[static_cast<size_t>(action.unit)] == static_cast<int>(i))
      actions.push_back({.verb = Verb::exchange,
                         .unit = action.unit,
                         .micro = action.micro,
                         .of_backward = true,
                         .state = State::gradients});
  }
  program.actions = std::move(actions);
}

}  // namespace onefold
