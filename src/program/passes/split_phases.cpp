#include "program/passes.h"

namespace onefold {

void split_phases(Program& program, const std::vector<UnitTraits>& units) {
  std::vector<Action> actions;
  for (const Action& action : program.actions) {
    if (!computes(action)) {
      actions.push_back(action);
      continue;
    }
    const bool backward = action.verb == Verb::backward;
    const PhaseCounts& counts = units[static_cast<size_t>(action.unit)].phases;
    const int count = backward ? counts.backward : counts.forward;
    for (int phase = 0; phase < count; ++phase) {
      Action one = action;
      one.phase = phase;
      if (phase > 0) one.waits.clear();
      actions.push_back(std::move(one));
      if (phase + 1 < count)
        actions.push_back({.verb = Verb::exchange,
                           .unit = action.unit,
                           .micro = action.micro,
                           .phase = phase,
                           .of_backward = backward});
    }
  }
  program.actions = std::move(actions);
}

}  // namespace onefold
