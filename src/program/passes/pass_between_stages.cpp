#include <algorithm>
#include <deque>
#include <map>

#include "program/passes.h"

namespace onefold {
namespace {

class Passer {
 public:
  Passer(Program& program, int under_way) : under_way_(static_cast<size_t>(under_way)) {
    for (const Action& action : program.actions)
      next_ticket_ = std::max(next_ticket_, action.ticket + 1);
    for (Action& action : program.actions) add(std::move(action));
    release_sent(0);
    program.actions = std::move(actions_);
  }

 private:
  struct Place {
    int unit, micro;
    bool of_backward;
    auto operator<=>(const Place&) const = default;
  };

  void add(Action action) {
    const bool passes = action.state == State::activations;
    if (action.verb == Verb::clip) release_sent(0);
    if (action.verb == Verb::recv && passes) {
      action.lane = Lane::recv;
      action.ticket = next_ticket_++;
      received_[{action.unit, action.micro, action.of_backward}] = action.ticket;
    }
    if (computes(action)) wait_for_received(action);
    if (action.verb != Verb::send || !passes) return actions_.push_back(std::move(action));
    release_sent(under_way_ - 1);
    action.lane = Lane::send;
    action.ticket = next_ticket_++;
    sent_.push_back(action);
    actions_.push_back(std::move(action));
  }

  // Whoever comes first: a unit with the loss has its input read by its backward.
  void wait_for_received(Action& action) {
    for (const bool of_backward : {false, true}) {
      if (of_backward && action.verb == Verb::forward) continue;
      const auto found = received_.find({action.unit, action.micro, of_backward});
      if (found == received_.end()) continue;
      action.waits.push_back(found->second);
      received_.erase(found);
    }
  }

  // All but so many.
  void release_sent(size_t but) {
    for (; sent_.size() > but; sent_.pop_front())
      actions_.push_back({.verb = Verb::release,
                          .unit = sent_.front().unit,
                          .micro = sent_.front().micro,
                          .of_backward = sent_.front().of_backward,
                          .state = State::activations,
                          .waits = {sent_.front().ticket}});
  }

  const size_t under_way_;
  std::vector<Action> actions_;
  std::map<Place, int> received_;  // tickets that no action has waited for yet
  std::deque<Action> sent_;        // and not released
  int next_ticket_ = 0;
};

}  // namespace

void pass_between_stages(Program& program, int under_way) { Passer(program, under_way); }

}  // namespace onefold
