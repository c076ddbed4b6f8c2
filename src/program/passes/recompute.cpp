#include "program/passes.h"

namespace onefold {
namespace {

class Recomputer {
 public:
  Recomputer(Program& program, const std::vector<UnitTraits>& units)
      : units_(units), plain_(std::move(program.actions)) {
    for (size_t i = 0; i < plain_.size(); ++i) {
      if (begins_backward(plain_[i]) && is_last_of_segment(plain_[i].unit)) add_forwards(i);
      actions_.push_back(plain_[i]);
    }
    program.actions = std::move(actions_);
  }

 private:
  static bool begins_backward(const Action& action) {
    return action.verb == Verb::backward && action.part != Part::by_weights;
  }
  int segment(int unit) const {
    if (unit < 0 || unit >= static_cast<int>(units_.size())) return -1;
    return units_[static_cast<size_t>(unit)].segment;
  }
  bool is_last_of_segment(int unit) const {
    return segment(unit) >= 0 && segment(unit + 1) != segment(unit);
  }

  // A run of backwards of one unit (its micro-batches, where units go first) has the forwards of
  // the units below it computed in a run too, so that their parameters are gathered once. The
  // segment's last unit is computed just before each backward.
  void add_forwards(size_t i) {
    const int last = plain_[i].unit;
    int first = last;
    while (segment(first - 1) == segment(last)) --first;
    const bool begins_run =
        i == 0 || plain_[i - 1].verb != Verb::backward || plain_[i - 1].unit != last;
    for (int unit = first; begins_run && unit < last; ++unit)
      for (size_t j = i; j < plain_.size() && begins_backward(plain_[j]) && plain_[j].unit == last;
           ++j)
        add_forward(unit, plain_[j].micro);
    add_forward(last, plain_[i].micro);
  }

  void add_forward(int unit, int micro) {
    actions_.push_back({.verb = Verb::forward, .unit = unit, .micro = micro});
  }

  const std::vector<UnitTraits>& units_;
  const std::vector<Action> plain_;
  std::vector<Action> actions_;
};

}  // namespace

void recompute(Program& program, const std::vector<UnitTraits>& units) {
  Recomputer(program, units);
  liveness(program);
}

}  // namespace onefold
