#include <algorithm>
#include <set>

#include "program/passes.h"

namespace onefold {
namespace {

class Sharder {
 public:
  Sharder(Program& program, const std::vector<UnitTraits>& units, int ranks,
          const ShardLimits& limits)
      : units_(units), ranks_(ranks), limits_(limits), plain_(std::move(program.actions)) {
    for (size_t i = 0; i < plain_.size(); ++i) add(i);
    program.actions = std::move(actions_);
  }

 private:
  const UnitTraits& traits(int unit) const { return units_[static_cast<size_t>(unit)]; }

  void add(size_t i) {
    const Action& action = plain_[i];
    for (const int unit : reads_of(action, units_)) acquire(unit);
    if (action.verb == Verb::squares && traits(action.unit).ranks_of(ranks_) > 1)
      actions_.push_back({.verb = Verb::reduce, .unit = action.unit});
    actions_.push_back(action);
    if (computes(action)) release_after(i);
    const Homes& homes = traits(action.unit).homes;
    if (action.verb == Verb::squares && homes.gradients.sharded)
      actions_.push_back({.verb = Verb::release, .unit = action.unit, .state = State::gradients});
    if (action.verb == Verb::step && traits(action.unit).gathers_after_step())
      actions_.push_back({.verb = Verb::gather, .unit = action.unit, .state = State::stepped});
  }

  // What is on another tier comes to the device, and what is sharded is made whole there.
  void acquire(int unit) {
    const Home& home = traits(unit).homes.parameters;
    if ((!home.sharded && !home.offloaded()) || live_.contains(unit)) return;
    if (home.offloaded()) actions_.push_back({.verb = Verb::fetch, .unit = unit});
    if (home.sharded) actions_.push_back({.verb = Verb::gather, .unit = unit});
    live_.insert(unit);
    live_elems_ += traits(unit).elems;
  }

  void release_after(size_t i) {
    for (auto unit = live_.begin(); unit != live_.end();) {
      if (keeps(*unit, i)) {
        ++unit;
        continue;
      }
      actions_.push_back({.verb = Verb::release, .unit = *unit});
      live_elems_ -= traits(*unit).elems;
      unit = live_.erase(unit);
    }
  }

  // Whether the unit stays whole after action i: it is used at once, or soon and there is room.
  bool keeps(int unit, size_t i) const {
    int64_t distance = 0;
    int previous = plain_[i].unit;
    bool next = true;
    for (size_t j = i + 1; j < plain_.size(); ++j) {
      if (!computes(plain_[j])) continue;
      const std::vector<int>& used = reads_of(plain_[j], units_);
      if (std::find(used.begin(), used.end(), unit) != used.end())
        return next ||
               (distance <= limits_.max_reuse_distance && live_elems_ <= limits_.max_live_elems);
      next = false;
      if (plain_[j].unit != previous)
        for (const int other : used) distance += traits(other).elems;
      previous = plain_[j].unit;
      if (distance > limits_.max_reuse_distance) return false;
    }
    return false;
  }

  const std::vector<UnitTraits>& units_;
  const int ranks_;
  const ShardLimits limits_;
  const std::vector<Action> plain_;
  std::vector<Action> actions_;
  std::set<int> live_;
  int64_t live_elems_ = 0;
};

}  // namespace

void shard(Program& program, const std::vector<UnitTraits>& units, int ranks,
           const ShardLimits& limits) {
  Sharder(program, units, ranks, limits);
}

}  // namespace onefold
