#include "program/passes.h"

namespace onefold {

void compress(Program& program, const CompressOf& of) {
  for (Action& action : program.actions)
    action.packed =
        (action.verb == Verb::reduce && of.gradients) ||
        (action.verb == Verb::gather && action.state == State::parameters && of.parameters);
}

}  // namespace onefold
