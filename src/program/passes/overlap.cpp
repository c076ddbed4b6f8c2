#include <array>

#include "program/passes.h"

namespace onefold {
namespace {

class Overlapper {
 public:
  Overlapper(Program& program, const std::vector<UnitTraits>& units, const OverlapOf& of)
      : units_(units), of_(of), tickets_(units.size()) {
    for (Action& action : program.actions) add(std::move(action));
    settle();
    settle_spills();
    program.actions = std::move(actions_);
  }

 private:
  // The last job of each kind; -1: none, or somebody has waited for it.
  struct Tickets {
    int gathered = -1, reduced = -1;
    int stepped = -1;                           // by the host
    std::array<int, kStates> fetched, spilled;  // by State
    Tickets() {
      fetched.fill(-1);
      spilled.fill(-1);
    }
  };
  Tickets& of(int unit) { return tickets_[static_cast<size_t>(unit)]; }
  int& fetched(int unit, State state) { return of(unit).fetched[static_cast<size_t>(state)]; }
  int& spilled(int unit, State state) { return of(unit).spilled[static_cast<size_t>(state)]; }

  void add(Action action) {
    switch (action.verb) {
      case Verb::gather:
        return add_gather(std::move(action));
      case Verb::reduce:
        return add_reduce(std::move(action));
      case Verb::fetch:
        settle_spills(action.unit);
        take(of(action.unit).stepped, action);
        if (of_.copies) fetched(action.unit, action.state) = give(action, Lane::fetch);
        break;
      case Verb::spill:
        return add_spill(std::move(action));
      case Verb::squares:
        take(of(action.unit).reduced, action);
        if (of_.messages) return concluding_.push_back(std::move(action));
        break;
      case Verb::release:
        return add_release(std::move(action));
      case Verb::forward:
      case Verb::backward:
        for (const int unit : reads_of(action, units_)) {
          take(of(unit).gathered, action);
          take(fetched(unit, State::parameters), action);
          take(fetched(unit, State::stepped), action);
        }
        take(fetched(action.unit, State::activations), action);
        for (const int unit : gradients_of(action, units_))
          take(fetched(unit, State::gradients), action);
        break;
      case Verb::step:
        for (const State state : {State::gradients, State::optimizer, State::parameters})
          take(fetched(action.unit, state), action);
        if (of_.copies && units_[static_cast<size_t>(action.unit)].host_steps) {
          settle_spills(action.unit);  // of its gradient
          of(action.unit).stepped = give(action, Lane::host);
        }
        break;
      case Verb::clip:
        settle();
        break;
      case Verb::exchange:
      case Verb::send:
      case Verb::recv:
        break;
    }
    actions_.push_back(std::move(action));
  }

  void add_gather(Action action) {
    for (const int unit : units_of(action))
      for (const State state : {State::parameters, State::stepped})
        take(fetched(unit, state), action);
    if (of_.messages) {
      const int ticket = give(action, Lane::gather);
      for (const int unit : units_of(action)) of(unit).gathered = ticket;
    }
    actions_.push_back(std::move(action));
  }

  void add_reduce(Action action) {
    settle();
    if (of_.messages) {
      const int ticket = give(action, Lane::reduce);
      for (const int unit : units_of(action)) of(unit).reduced = ticket;
    }
    actions_.push_back(std::move(action));
  }

  void add_spill(Action action) {
    if (!concluding_.empty() && concluding_.back().unit == action.unit)
      return concluding_.push_back(std::move(action));  // of what a reduction leaves
    if (action.state == State::activations)
      settle_spills();
    else
      settle_spills(kAllBut, action.unit);
    if (action.state == State::parameters) take(of(action.unit).gathered, action);
    if (of_.copies) spilled(action.unit, action.state) = give(action, Lane::spill);
    actions_.push_back(std::move(action));
  }

  void add_release(Action action) {
    const bool concludes = action.state == State::gradients && !concluding_.empty() &&
                           concluding_.back().unit == action.unit;
    if (concludes) return concluding_.push_back(std::move(action));
    take(spilled(action.unit, action.state), action);
    if (!action.waits.empty()) return spilling_.push_back(std::move(action));
    actions_.push_back(std::move(action));
  }

  int give(Action& action, Lane lane) {
    action.lane = lane;
    return action.ticket = next_ticket_++;
  }
  // The first reader waits; for those after it the job is done.
  static void take(int& ticket, Action& action) {
    if (ticket >= 0) action.waits.push_back(ticket);
    ticket = -1;
  }

  // What concludes the last reduction: it was held back to let the backward after it run first.
  void settle() {
    std::vector<Action> concluding = std::move(concluding_);
    concluding_.clear();
    for (Action& action : concluding) {
      if (action.verb == Verb::squares)
        actions_.push_back(std::move(action));
      else if (action.verb == Verb::spill)
        add_spill(std::move(action));
      else
        add_release(std::move(action));
    }
  }

  static constexpr int kAll = -1, kAllBut = -2;
  // What spills leave was held back too: it is released now, of one unit, or of all but one.
  void settle_spills(int unit = kAll, int except = kAll) {
    std::vector<Action> later;
    for (Action& action : spilling_) {
      const bool now =
          unit == kAll || (unit == kAllBut ? action.unit != except : action.unit == unit);
      (now ? actions_ : later).push_back(std::move(action));
    }
    spilling_ = std::move(later);
  }

  const std::vector<UnitTraits>& units_;
  const OverlapOf of_;
  std::vector<Tickets> tickets_;
  std::vector<Action> actions_, concluding_, spilling_;
  int next_ticket_ = 0;
};

}  // namespace

void overlap(Program& program, const std::vector<UnitTraits>& units, const OverlapOf& of) {
  Overlapper(program, units, of);
}

}  // namespace onefold
