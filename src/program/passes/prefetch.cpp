#include <algorithm>
#include <deque>

#include "program/passes.h"

namespace onefold {
namespace {

class Prefetcher {
 public:
  Prefetcher(Program& program, const std::vector<UnitTraits>& units, int64_t ahead_elems,
             int64_t max_live_elems)
      : units_(units), ahead_limit_(ahead_elems), live_limit_(max_live_elems), live_(units.size()) {
    std::vector<Action> rest;
    bool stepping = false;
    for (Action& action : program.actions) {
      stepping |= action.verb == Verb::clip;
      if (action.verb == Verb::gather && !stepping)
        waiting_.push_back(std::move(action));
      else
        rest.push_back(std::move(action));
    }
    for (Action& action : rest) add(std::move(action));
    program.actions = std::move(actions_);
  }

 private:
  int64_t elems(int unit) const { return units_[static_cast<size_t>(unit)].elems; }
  auto live(int unit) { return live_[static_cast<size_t>(unit)]; }

  void add(Action action) {
    if (action.verb == Verb::forward || action.verb == Verb::backward) {
      issue_awaited(action);
      issue_ahead();
    }
    if (action.verb == Verb::release && action.state == State::parameters) {
      live(action.unit) = false;
      live_elems_ -= elems(action.unit);
    }
    actions_.push_back(std::move(action));
  }

  // What this action waits for can wait no longer; what it waited for is no longer ahead.
  void issue_awaited(const Action& action) {
    for (const int ticket : action.waits) {
      while (!waiting_.empty() && waiting_.front().ticket <= ticket) issue();
      const auto used = std::find_if(ahead_.begin(), ahead_.end(),
                                     [&](const Action& gather) { return gather.ticket == ticket; });
      if (used == ahead_.end()) continue;
      ahead_elems_ -= elems(used->unit);
      ahead_.erase(used);
    }
  }

  void issue_ahead() {
    while (!waiting_.empty()) {
      const int unit = waiting_.front().unit;
      const bool room =
          ahead_limit_ == kOneUnit ? ahead_.empty() : ahead_elems_ + elems(unit) <= ahead_limit_;
      if (live(unit) || !room || live_elems_ + elems(unit) > live_limit_) return;
      issue();
    }
  }

  void issue() {
    const Action gather = waiting_.front();
    waiting_.pop_front();
    live(gather.unit) = true;
    live_elems_ += elems(gather.unit);
    ahead_elems_ += elems(gather.unit);
    ahead_.push_back(gather);
    actions_.push_back(gather);
  }

  const std::vector<UnitTraits>& units_;
  const int64_t ahead_limit_, live_limit_;
  std::deque<Action> waiting_;  // gathers not yet issued, in order
  std::vector<Action> ahead_;   // issued, and not yet used
  std::vector<Action> actions_;
  std::vector<bool> live_;
  int64_t ahead_elems_ = 0, live_elems_ = 0;
};

}  // namespace

void prefetch(Program& program, const std::vector<UnitTraits>& units, int64_t ahead_elems,
              int64_t max_live_elems) {
  Prefetcher(program, units, ahead_elems, max_live_elems);
}

}  // namespace onefold
