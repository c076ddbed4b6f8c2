#include "program/passes.h"

namespace onefold {
namespace {

class Overlapper {
 public:
  Overlapper(Program& program, const std::vector<UnitTraits>& units)
      : units_(units), gathered_(units.size(), -1), reduced_(units.size(), -1) {
    for (Action& action : program.actions) add(std::move(action));
    settle();
    program.actions = std::move(actions_);
  }

 private:
  void add(Action action) {
    switch (action.verb) {
      case Verb::gather:
        return issue(std::move(action), Lane::gather, gathered_);
      case Verb::reduce:
        settle();
        return issue(std::move(action), Lane::reduce, reduced_);
      case Verb::squares:
        action.waits.push_back(reduced_[static_cast<size_t>(action.unit)]);
        return concluding_.push_back(std::move(action));
      case Verb::release:
        if (action.state == State::gradients) return concluding_.push_back(std::move(action));
        break;
      case Verb::forward:
        wait_for(units_[static_cast<size_t>(action.unit)].forward_reads, action);
        break;
      case Verb::backward:
        wait_for(units_[static_cast<size_t>(action.unit)].backward_reads, action);
        break;
      case Verb::clip:
        settle();
        break;
      case Verb::exchange:
      case Verb::step:
        break;
    }
    actions_.push_back(std::move(action));
  }

  void issue(Action action, Lane lane, std::vector<int>& tickets) {
    action.lane = lane;
    action.ticket = next_ticket_++;
    tickets[static_cast<size_t>(action.unit)] = action.ticket;
    for (const int unit : action.joined) tickets[static_cast<size_t>(unit)] = action.ticket;
    actions_.push_back(std::move(action));
  }

  // The first reader waits; for those after it the gather is done.
  void wait_for(const std::vector<int>& read, Action& action) {
    for (const int unit : read) {
      int& ticket = gathered_[static_cast<size_t>(unit)];
      if (ticket >= 0) action.waits.push_back(ticket);
      ticket = -1;
    }
  }

  // What concludes the last reduction: it was held back to let the backward after it run first.
  void settle() {
    for (Action& action : concluding_) actions_.push_back(std::move(action));
    concluding_.clear();
  }

  const std::vector<UnitTraits>& units_;
  std::vector<int> gathered_, reduced_;  // tickets
  std::vector<Action> actions_, concluding_;
  int next_ticket_ = 0;
};

}  // namespace

void overlap(Program& program, const std::vector<UnitTraits>& units) { Overlapper(program, units); }

}  // namespace onefold
