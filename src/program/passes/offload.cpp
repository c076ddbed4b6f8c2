#include <algorithm>

#include "program/passes.h"

namespace onefold {
namespace {

class Offloader {
 public:
  Offloader(Program& program, const std::vector<UnitTraits>& units)
      : units_(units),
        plain_(std::move(program.actions)),
        gradients_(units.size()),
        stepped_(units.size()) {
    for (size_t i = 0; i < plain_.size(); ++i) add(i);
    program.actions = std::move(actions_);
  }

 private:
  // Of a gradient whose home is whole on another tier.
  struct Gradient {
    bool here = false;     // on the device
    bool spilled = false;  // a part of the sum is on its tier
  };

  const UnitTraits& traits(int unit) const { return units_[static_cast<size_t>(unit)]; }
  Gradient& gradient(int unit) { return gradients_[static_cast<size_t>(unit)]; }
  bool travels(int unit) const {
    const Home& home = traits(unit).homes.gradients;
    return home.offloaded() && !home.sharded;
  }
  void push(Verb verb, int unit, State state) {
    actions_.push_back({.verb = verb, .unit = unit, .state = state});
  }
  void fetch_for_step(int unit, State state) {
    actions_.push_back({.verb = Verb::fetch, .unit = unit, .of_step = true, .state = state});
  }
  void put_away(int unit, State state) {
    push(Verb::spill, unit, state);
    push(Verb::release, unit, state);
  }

  void add(size_t i) {
    const Action& action = plain_[i];
    for (const int unit : reads_of(action, units_)) bring_stepped(unit);
    switch (action.verb) {
      case Verb::backward:
        return add_backward(i);
      case Verb::squares:
        return add_squares(i);
      case Verb::release:  // of a whole gradient: after its shard is spilled, which squares() does
        if (action.state == State::gradients && traits(action.unit).homes.gradients.offloaded())
          return;
        break;
      case Verb::gather:
        if (action.state == State::parameters)
          for (const int unit : units_of(action)) bring_stepped(unit);
        actions_.push_back(action);
        if (action.state != State::stepped) return;
        for (const int unit : units_of(action))
          if (traits(unit).spills_after_step()) put_away(unit, State::parameters);
        return;
      case Verb::step:
        return add_step(action);
      default:
        break;
    }
    actions_.push_back(action);
  }

  // What the last step has left with the host, before it is first read.
  void bring_stepped(int unit) {
    if (!traits(unit).fetches_stepped_late() || stepped_[static_cast<size_t>(unit)]) return;
    stepped_[static_cast<size_t>(unit)] = true;
    push(Verb::fetch, unit, State::stepped);
  }

  void add_backward(size_t i) {
    const Action& action = plain_[i];
    for (const int unit : gradients_of(action, units_)) {
      if (!travels(unit)) continue;
      if (gradient(unit).spilled && !gradient(unit).here) push(Verb::fetch, unit, State::gradients);
      gradient(unit).here = true;
    }
    actions_.push_back(action);
    for (const int unit : gradients_of(action, units_)) {
      if (!travels(unit) || stays(unit, i)) continue;
      put_away(unit, State::gradients);
      gradient(unit) = {.here = false, .spilled = true};
    }
  }

  // Whether the gradient is complete after action i, or added to at once.
  bool stays(int unit, size_t i) const {
    for (size_t j = i + 1; j < plain_.size(); ++j) {
      const Action& next = plain_[j];
      const std::vector<int> units = units_of(next);
      const bool concerns = std::find(units.begin(), units.end(), unit) != units.end();
      if (concerns && (next.verb == Verb::reduce || next.verb == Verb::squares)) return true;
      if (!computes(next)) continue;
      const std::vector<int> added = gradients_of(next, units_);
      if (std::find(added.begin(), added.end(), unit) != added.end()) {
        for (size_t k = i + 1; k < j; ++k)
          if (computes(plain_[k])) return false;
        return true;
      }
    }
    return true;
  }

  void add_squares(size_t i) {
    const int unit = plain_[i].unit;
    actions_.push_back(plain_[i]);
    if (!traits(unit).homes.gradients.offloaded()) return;
    put_away(unit, State::gradients);
    gradient(unit) = {};
  }

  void add_step(const Action& action) {
    const int unit = action.unit;
    const UnitTraits& own = traits(unit);
    const bool parameters = own.spills_after_step();
    if (own.host_steps) return add_host_step(action);
    if (own.homes.gradients.offloaded()) fetch_for_step(unit, State::gradients);
    if (own.homes.optimizer.offloaded()) fetch_for_step(unit, State::optimizer);
    if (parameters) fetch_for_step(unit, State::parameters);
    actions_.push_back(action);
    if (own.homes.gradients.offloaded()) push(Verb::release, unit, State::gradients);
    if (own.homes.optimizer.offloaded()) put_away(unit, State::optimizer);
    // What is gathered after the step is spilled after that.
    if (parameters && !own.gathers_after_step()) put_away(unit, State::parameters);
  }

  // What ranks gather after it must be on the device.
  void add_host_step(const Action& action) {
    const UnitTraits& own = traits(action.unit);
    actions_.push_back(action);
    if (own.gathers_after_step())
      fetch_for_step(action.unit, own.fetches_stepped() ? State::stepped : State::parameters);
  }

  const std::vector<UnitTraits>& units_;
  const std::vector<Action> plain_;
  std::vector<Action> actions_;
  std::vector<Gradient> gradients_;
  std::vector<bool> stepped_;  // by unit: what the host has stepped is fetched
};

}  // namespace

void offload(Program& program, const std::vector<UnitTraits>& units) { Offloader(program, units); }

}  // namespace onefold
