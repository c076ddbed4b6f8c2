#include <algorithm>

#include "program/passes.h"

namespace onefold {
namespace {

class RowOverlapper {
 public:
  RowOverlapper(Program& program, const std::vector<UnitTraits>& units, int chunks)
      : units_(units), chunks_(chunks) {
    for (const Action& action : program.actions)
      next_ticket_ = std::max(next_ticket_, action.ticket + 1);
    for (size_t i = 0; i < program.actions.size(); ++i) {
      const bool cut = i + 1 < program.actions.size() && is_cut(program.actions[i]) &&
                       program.actions[i + 1].verb == Verb::exchange;
      if (cut) {
        add_cut(program.actions[i], program.actions[i + 1]);
        ++i;
      } else {
        add(std::move(program.actions[i]));
      }
    }
    program.actions = std::move(actions_);
  }

 private:
  const UnitTraits& traits(const Action& action) const {
    return units_[static_cast<size_t>(action.unit)];
  }
  bool is_cut(const Action& action) const {
    return computes(action) && action.phase != Action::kAllPhases &&
           traits(action).travels.by_rows_after(action.verb == Verb::backward, action.phase);
  }

  void add_cut(const Action& compute, const Action& exchange) {
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      Action one = compute;
      one.chunk = {chunk, chunks_};
      if (chunk > 0) one.waits.clear();
      add(std::move(one));
      Action message = exchange;
      message.chunk = {chunk, chunks_};
      message.lane = Lane::exchange;
      message.ticket = next_ticket_++;
      travelling_.push_back(message.ticket);
      actions_.push_back(std::move(message));
    }
  }

  // Gradients of weights read nothing that travels; nor do the further rows of the phase.
  void add(Action action) {
    const bool by_weights = action.verb == Verb::backward && action.part != Part::by_weights &&
                            traits(action).phases.makes_weights(action.phase);
    if (computes(action) && !by_weights && action.chunk.index == 0) {
      action.waits.insert(action.waits.end(), travelling_.begin(), travelling_.end());
      travelling_.clear();
    }
    actions_.push_back(std::move(action));
  }

  const std::vector<UnitTraits>& units_;
  const int chunks_;
  std::vector<Action> actions_;
  std::vector<int> travelling_;  // tickets that nobody has waited for
  int next_ticket_ = 0;
};

}  // namespace

void overlap_exchanges(Program& program, const std::vector<UnitTraits>& units, int chunks) {
  RowOverlapper(program, units, chunks);
}

}  // namespace onefold
