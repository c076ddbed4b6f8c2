#include "program/passes.h"

namespace onefold {

// Backwards through the program: for each unit and micro-batch, whether an action that comes later
// reads the unit's input, what its forward has saved, and the gradient of its output. A forward
// that writes something anew (when it is computed again) ends the need for what was there before.
void liveness(Program& program) {
  struct Needs {
    bool input = false, saved = false, doutput = false;
    bool later = false;  // it is held since a backward, for its gradients of weights
  };
  const auto units = static_cast<size_t>(program.units),
             micros = static_cast<size_t>(program.micros);
  std::vector<Needs> needs((units + 1) * micros);
  const auto of = [&](int unit, int micro) -> Needs& {
    return needs[static_cast<size_t>(unit) * micros + static_cast<size_t>(micro)];
  };
  for (auto action = program.actions.rbegin(); action != program.actions.rend(); ++action) {
    const bool passes = action->state == State::activations;  // between stages
    if (action->verb == Verb::send && passes)
      (action->of_backward ? of(action->unit, action->micro).doutput
                           : of(action->unit, action->micro).input) = true;
    if (action->verb == Verb::recv && passes)
      (action->of_backward ? of(action->unit, action->micro).doutput
                           : of(action->unit, action->micro).input) = false;
    if (action->verb == Verb::backward && action->part == Part::by_weights) {
      Needs& own = of(action->unit, action->micro);
      own.input = own.saved = own.later = true;
    } else if (action->verb == Verb::backward) {
      action->output = action->unit > 0 && of(action->unit - 1, action->micro).doutput;
      of(action->unit, action->micro) = {true, true, true};
    }
    if (action->verb != Verb::forward) continue;
    Needs &own = of(action->unit, action->micro), &next = of(action->unit + 1, action->micro);
    action->output = next.input && !next.later;
    action->keep_saved = own.saved;
    action->keep_input = own.input;
    if (!next.later) next.input = false;
    own = {true, false, own.doutput};
  }
}

}  // namespace onefold
