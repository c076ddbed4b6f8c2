#include "program/passes.h"

namespace onefold {

void gather_inside(Program& program, const std::vector<UnitTraits>& units) {
  std::vector<bool> kept(units.size());
  for (Action& action : program.actions) {
    if (action.verb != Verb::gather || action.state != State::parameters) continue;
    const auto unit = static_cast<size_t>(action.unit);
    if (units[unit].node_ranks == 0) continue;
    action.inside = kept[unit];
    kept[unit] = true;
  }
}

}  // namespace onefold
