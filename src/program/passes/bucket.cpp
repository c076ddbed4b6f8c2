#include "program/passes.h"

namespace onefold {
namespace {

// Collectives of one verb that wait to be joined, with what follows them.
class Pending {
 public:
  Pending(Verb verb, int64_t most_elems, const std::vector<UnitTraits>& units,
          std::vector<Action>& actions)
      : verb_(verb), most_elems_(most_elems), traits_(units), actions_(actions) {}

  bool has(int unit) const {
    for (const int waiting : units_)
      if (waiting == unit) return true;
    return false;
  }

  // A full bucket goes at once: nothing more can join it, and its gradients are whole until then.
  // What travels among other ranks joins another.
  void add(int unit, int64_t elems) {
    if (elems_ + elems > most_elems_ || (!units_.empty() && ranks_of(unit) != ranks_of(units_[0])))
      flush();
    units_.push_back(unit);
    elems_ += elems;
    if (elems_ >= most_elems_) flush();
  }

  void follow_with(const Action& action) { followers_.push_back(action); }

  void flush() {
    if (units_.empty()) return;
    Action joint{.verb = verb_, .unit = units_.front()};
    if (verb_ == Verb::gather) joint.state = State::stepped;
    joint.joined.assign(units_.begin() + 1, units_.end());
    actions_.push_back(std::move(joint));
    actions_.insert(actions_.end(), followers_.begin(), followers_.end());
    units_.clear();
    followers_.clear();
    elems_ = 0;
  }

 private:
  int ranks_of(int unit) const { return traits_[static_cast<size_t>(unit)].ranks; }

  const Verb verb_;
  const int64_t most_elems_;
  const std::vector<UnitTraits>& traits_;
  std::vector<Action>& actions_;
  std::vector<int> units_;
  std::vector<Action> followers_;
  int64_t elems_ = 0;
};

}  // namespace

void bucket(Program& program, const std::vector<UnitTraits>& units, int64_t reduce_elems,
            int64_t gather_elems) {
  std::vector<Action> actions;
  Pending reduces(Verb::reduce, reduce_elems, units, actions),
      gathers(Verb::gather, gather_elems, units, actions);
  bool stepping = false;
  for (const Action& action : program.actions) {
    const int64_t elems = units[static_cast<size_t>(action.unit)].trained_elems();
    if (action.verb == Verb::clip) {
      reduces.flush();
      stepping = true;
    }
    const bool concludes_reduce =
        action.verb == Verb::squares ||
        (action.verb == Verb::release && action.state == State::gradients);
    if (action.verb == Verb::reduce)
      reduces.add(action.unit, elems);
    else if (action.verb == Verb::gather && stepping)
      gathers.add(action.unit, elems);
    else if (concludes_reduce && reduces.has(action.unit))
      reduces.follow_with(action);
    else
      actions.push_back(action);
  }
  gathers.flush();
  program.actions = std::move(actions);
}

}  // namespace onefold
