#include "program/passes.h"

namespace onefold {

void recompute(Program& program) {
  const int embedding = 0,
            head = program.units - 1;  // neither keeps anything: there is nothing to save on them
  const auto is_block = [&](const Action& action) {
    return action.unit != embedding && action.unit != head;
  };
  std::vector<Action> rewritten;
  for (Action action : program.actions) {
    if (action.verb == Verb::forward && is_block(action)) action.keep = false;
    if (action.verb == Verb::backward && is_block(action))
      rewritten.push_back(
          {.verb = Verb::forward, .unit = action.unit, .micro = action.micro, .again = true});
    rewritten.push_back(action);
  }
  program.actions = std::move(rewritten);
}

}  // namespace onefold
