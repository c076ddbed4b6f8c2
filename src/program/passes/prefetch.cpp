#include <algorithm>
#include <array>
#include <deque>

#include "program/passes.h"

namespace onefold {
namespace {

class Prefetcher {
 public:
  Prefetcher(Program& program, const std::vector<UnitTraits>& units, int64_t ahead_elems,
             int64_t max_live_elems)
      : units_(units),
        ahead_limit_(ahead_elems),
        live_limit_(max_live_elems),
        releases_(units.size()) {
    std::vector<Action> rest;
    std::vector<std::array<int, kStates>> releases(units.size());
    for (Action& action : program.actions) {
      int& before = releases[static_cast<size_t>(action.unit)][static_cast<size_t>(action.state)];
      before += action.verb == Verb::release;
      if (is_hoisted(action))
        waiting_.push_back({std::move(action), before});
      else
        rest.push_back(std::move(action));
    }
    for (Action& action : rest) add(std::move(action));
    program.actions = std::move(actions_);
  }

 private:
  // An action, and how many releases of the same state come before it.
  struct Waiting {
    Action action;
    int releases;
  };

  int64_t elems(int unit) const { return units_[static_cast<size_t>(unit)].elems; }
  int& releases(int unit, State state) {
    return releases_[static_cast<size_t>(unit)][static_cast<size_t>(state)];
  }
  static bool is_hoisted(const Action& action) {
    if (action.lane == Lane::compute) return false;
    // A fetch that waits does so for a step of the host.
    return (action.verb == Verb::fetch && action.waits.empty()) ||
           (action.verb == Verb::gather && action.state == State::parameters);
  }

  void add(Action action) {
    issue_awaited(action);
    if (computes(action) || action.verb == Verb::step) issue_ahead();
    stepping_ |= action.verb == Verb::clip;
    if (action.verb == Verb::release) {
      if (action.state == State::parameters) live_elems_ -= elems(action.unit);
      ++releases(action.unit, action.state);
    }
    actions_.push_back(std::move(action));
  }

  // What this action waits for can wait no longer; what it waited for is no longer ahead.
  void issue_awaited(const Action& action) {
    for (const int ticket : action.waits) {
      if (is_waiting(ticket))
        while (!waiting_.empty() && waiting_.front().action.ticket <= ticket) issue();
      const auto used = std::find_if(ahead_.begin(), ahead_.end(),
                                     [&](const Action& one) { return one.ticket == ticket; });
      if (used == ahead_.end()) continue;
      ahead_elems_ -= elems(used->unit);
      ahead_.erase(used);
    }
  }

  // Tickets grow along the program.
  bool is_waiting(int ticket) const {
    const auto found =
        std::lower_bound(waiting_.begin(), waiting_.end(), ticket,
                         [](const Waiting& one, int number) { return one.action.ticket < number; });
    return found != waiting_.end() && found->action.ticket == ticket;
  }

  // Steps' states come when activations are gone: they are not hoisted above clip.
  void issue_ahead() {
    while (!waiting_.empty()) {
      const auto& [next, releases_before] = waiting_.front();
      const bool more = is_new(next) && next.state == State::parameters;
      const bool room = ahead_limit_ == kOneUnit
                            ? ahead_.empty() || ahead_.front().unit == next.unit
                            : ahead_elems_ + elems(next.unit) <= ahead_limit_;
      if (!room || releases(next.unit, next.state) < releases_before) return;
      if (more && live_elems_ + elems(next.unit) > live_limit_) return;
      if (next.of_step && !stepping_) return;
      issue();
    }
  }
  // Not the gather of what was fetched.
  bool is_new(const Action& action) const {
    return action.verb == Verb::fetch ||
           !units_[static_cast<size_t>(action.unit)].homes.parameters.offloaded();
  }
  void issue() {
    const Action next = waiting_.front().action;
    waiting_.pop_front();
    issue_awaited(next);
    if (is_new(next) && next.state == State::parameters) live_elems_ += elems(next.unit);
    ahead_elems_ += elems(next.unit);
    ahead_.push_back(next);
    actions_.push_back(next);
  }

  const std::vector<UnitTraits>& units_;
  const int64_t ahead_limit_, live_limit_;
  std::deque<Waiting> waiting_;  // gathers and fetches not yet issued, in order
  std::vector<Action> ahead_;    // issued, and not yet used
  std::vector<Action> actions_;
  std::vector<std::array<int, kStates>> releases_;  // by State, so far
  int64_t ahead_elems_ = 0, live_elems_ = 0;
  bool stepping_ = false;
};

}  // namespace

void prefetch(Program& program, const std::vector<UnitTraits>& units, int64_t ahead_elems,
              int64_t max_live_elems) {
  Prefetcher(program, units, ahead_elems, max_live_elems);
}

}  // namespace onefold
