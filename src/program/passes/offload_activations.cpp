#include "program/passes.h"

namespace onefold {
namespace {

// Whether to send something away while at most this many others compute: it would be on its way.
constexpr int kNear = 1;

// For each action, the next one that computes the same unit and micro-batch (-1: none) and how many
// others compute until then.
struct NextUse {
  int action = -1;
  int others = 0;
};

std::vector<NextUse> next_uses(const Program& program) {
  std::vector<NextUse> next(program.actions.size());
  std::vector<NextUse> seen(static_cast<size_t>(program.units * program.micros));
  int later = 0;  // actions that compute, from here to the end
  for (size_t i = program.actions.size(); i-- > 0;) {
    const Action& action = program.actions[i];
    if (!computes(action)) continue;
    NextUse& own = seen[static_cast<size_t>(action.unit * program.micros + action.micro)];
    if (own.action >= 0) next[i] = {own.action, later - own.others - 1};
    own = {static_cast<int>(i), later};
    ++later;
  }
  return next;
}

}  // namespace

void offload_activations(Program& program) {
  const std::vector<NextUse> next = next_uses(program);
  std::vector<bool> away(program.actions.size());  // its unit's activations come back before it
  std::vector<Action> actions;
  for (size_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    const auto move = [&](Verb verb) {
      actions.push_back(
          {.verb = verb, .unit = action.unit, .micro = action.micro, .state = State::activations});
    };
    if (away[i]) move(Verb::fetch);
    actions.push_back(action);
    const bool keeps = action.verb == Verb::forward && (action.keep_input || action.keep_saved);
    if (!keeps || next[i].action < 0 || next[i].others <= kNear) continue;
    move(Verb::spill);
    move(Verb::release);
    away[static_cast<size_t>(next[i].action)] = true;
  }
  program.actions = std::move(actions);
}

}  // namespace onefold
