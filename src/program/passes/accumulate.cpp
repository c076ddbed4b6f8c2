#include "program/passes.h"

namespace onefold {

void accumulate(Program& program) {
  for (Action& action : program.actions)
    if (action.verb == Verb::backward) action.accumulate = action.micro > 0;
}

}  // namespace onefold
