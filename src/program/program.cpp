#include "program/program.h"

#include <fmt/format.h>

#include <array>

namespace onefold {
namespace {

// A tied table collects all of the head's gradients before the first of the embedding's, so that
// its sum is the same in both orders: the embedding's backward then waits for the last micro-batch.
bool embedding_comes_last(const StepShape& shape) { return shape.tied && shape.micros > 1; }

void add_micro_first(const StepShape& shape, int lowest, std::vector<Action>& actions) {
  const int head = shape.units - 1;
  const bool later = lowest == 0 && embedding_comes_last(shape);
  for (int micro = 0; micro < shape.micros; ++micro) {
    for (int unit = 0; unit < head; ++unit)
      actions.push_back({.verb = Verb::forward, .unit = unit, .micro = micro});
    for (int unit = head; unit >= (later ? 1 : lowest); --unit)
      actions.push_back({.verb = Verb::backward, .unit = unit, .micro = micro});
  }
  for (int micro = 0; later && micro < shape.micros; ++micro)
    actions.push_back({.verb = Verb::backward, .unit = 0, .micro = micro});
}

void add_unit_first(const StepShape& shape, int lowest, std::vector<Action>& actions) {
  const int head = shape.units - 1;
  for (int unit = 0; unit < head; ++unit)
    for (int micro = 0; micro < shape.micros; ++micro)
      actions.push_back({.verb = Verb::forward, .unit = unit, .micro = micro});
  for (int unit = head; unit >= lowest; --unit)
    for (int micro = 0; micro < shape.micros; ++micro)
      actions.push_back({.verb = Verb::backward, .unit = unit, .micro = micro});
}

// The last micro-batch leaves a unit's gradient complete and its end still in cache: its squares
// are summed there. A tied table belongs to the embedding, whose backward comes last.
void add_norms(const StepShape& shape, std::vector<Action>& actions) {
  std::vector<Action> with_norms;
  for (const Action& action : actions) {
    with_norms.push_back(action);
    if (action.verb == Verb::backward && action.micro == shape.micros - 1 &&
        !shape.is_frozen(action.unit))
      with_norms.push_back({.verb = Verb::norm, .unit = action.unit});
  }
  actions = std::move(with_norms);
}

}  // namespace

const char* verb_name(Verb verb) {
  static constexpr std::array<const char*, kVerbs> kNames = {
      "gather", "release", "forward", "backward", "reduce", "norm", "clip", "step"};
  return kNames[static_cast<size_t>(verb)];
}

const char* lane_name(Lane lane) {
  static constexpr std::array<const char*, kLanes> kNames = {"compute", "gather", "reduce"};
  return kNames[static_cast<size_t>(lane)];
}

const char* order_name(Order order) {
  return order == Order::micro_first ? "micro_first" : "unit_first";
}

std::string describe(const Action& action, const std::string& unit_name) {
  const char* verb = verb_name(action.verb);
  switch (action.verb) {
    case Verb::forward:
    case Verb::backward:
      return fmt::format("{} {}, micro {}", verb, unit_name, action.micro);
    case Verb::clip:
      return verb;
    case Verb::gather:
    case Verb::reduce:
      if (!action.joined.empty())
        return fmt::format("{} {} and {} more", verb, unit_name, action.joined.size());
      [[fallthrough]];
    default:
      return fmt::format("{} {}", verb, unit_name);
  }
}

Program build_training_step(const StepShape& shape) {
  Program program{shape.units, shape.micros, {}};
  int lowest = 0;
  while (lowest < shape.units && shape.is_frozen(lowest)) ++lowest;
  if (shape.order == Order::micro_first)
    add_micro_first(shape, lowest, program.actions);
  else
    add_unit_first(shape, lowest, program.actions);
  add_norms(shape, program.actions);
  program.actions.push_back({.verb = Verb::clip});
  for (int unit = 0; unit < shape.units; ++unit)
    if (!shape.is_frozen(unit)) program.actions.push_back({.verb = Verb::step, .unit = unit});
  return program;
}

Program build_evaluation(int units) {
  Program program{units, 1, {}};
  for (int unit = 0; unit < units; ++unit)
    program.actions.push_back({.verb = Verb::forward, .unit = unit, .keep = false});
  return program;
}

}  // namespace onefold
