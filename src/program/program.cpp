#include "program/program.h"

#include <fmt/format.h>

namespace onefold {

const char* verb_name(Verb verb) {
  switch (verb) {
    case Verb::forward:
      return "forward";
    case Verb::backward:
      return "backward";
    case Verb::norm:
      return "norm";
    case Verb::step:
      return "step";
  }
  return "?";
}

std::string describe(const Action& action, const std::string& unit_name) {
  if (action.verb == Verb::norm || action.verb == Verb::step)
    return fmt::format("{} {}", verb_name(action.verb), unit_name);
  return fmt::format("{} {}, micro {}", verb_name(action.verb), unit_name, action.micro);
}

Program build_training_step(int units, int micros) {
  Program program{units, micros, {}};
  const int head = units - 1;
  for (int micro = 0; micro < micros; ++micro) {
    for (int unit = 0; unit < head; ++unit) program.actions.push_back({Verb::forward, unit, micro});
    for (int unit = head; unit >= 0; --unit) {
      program.actions.push_back({Verb::backward, unit, micro});
      // The last micro-batch leaves the unit's gradient complete and its end still in cache: sum
      // its squares now. The head's norm never covers a tied table: that belongs to the embedding,
      // whose backward comes last.
      if (micro == micros - 1) program.actions.push_back({Verb::norm, unit});
    }
  }
  for (int unit = 0; unit < units; ++unit) program.actions.push_back({Verb::step, unit});
  return program;
}

Program build_evaluation(int units) {
  Program program{units, 1, {}};
  for (int unit = 0; unit < units; ++unit)
    program.actions.push_back({.verb = Verb::forward, .unit = unit, .keep = false});
  return program;
}

}  // namespace onefold
