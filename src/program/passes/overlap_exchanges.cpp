#include <algorithm>

#include "program/passes.h"

namespace onefold {
namespace {

class ExchangeOverlapper {
 public:
  ExchangeOverlapper(Program& program, const std::vector<UnitTraits>& units, int chunks)
      : units_(units), chunks_(chunks) {
    for (const Action& action : program.actions)
      next_ticket_ = std::max(next_ticket_, action.ticket + 1);
    const std::vector<Action>& all = program.actions;
    for (size_t i = 0; i < all.size(); ++i) {
      const Action* const next = i + 1 < all.size() ? &all[i + 1] : nullptr;
      if (next && is_cut(all[i]) && next->verb == Verb::exchange) {
        add_cut(all[i], *next);
        ++i;
      } else if (has_lane(all[i])) {
        add_to_lane(all[i]);
      } else {
        add(all[i]);
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

  bool has_lane(const Action& action) const {
    return action.verb == Verb::exchange && action.state != State::gradients &&
           traits(action).travels.on_lane_after(action.of_backward, action.phase);
  }
  bool is_beside(const Action& action) const {
    return computes(action) &&
           traits(action).phases.beside(action.verb == Verb::backward, action.phase);
  }

  void add_to_lane(Action exchange) {
    exchange.lane = Lane::exchange;
    exchange.ticket = next_ticket_++;
    travelling_.push_back(exchange.ticket);
    actions_.push_back(std::move(exchange));
  }

  void add_cut(const Action& compute, const Action& exchange) {
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      Action one = compute;
      one.chunk = {chunk, chunks_};
      if (chunk > 0) one.waits.clear();
      add(std::move(one));
      Action message = exchange;
      message.chunk = {chunk, chunks_};
      add_to_lane(std::move(message));
    }
  }

  // Gradients of weights read nothing that travels, nor do the further rows of a phase; a phase
  // beside an exchange reads what has travelled before that.
  void add(Action action) {
    const bool by_weights = action.verb == Verb::backward && action.part != Part::by_weights &&
                            traits(action).phases.makes_weights(action.phase);
    if (computes(action) && !by_weights && action.chunk.index == 0) {
      const bool beside =
          !travelling_.empty() && is_beside(action) && actions_.back().ticket == travelling_.back();
      const auto done = travelling_.end() - (beside ? 1 : 0);
      action.waits.insert(action.waits.end(), travelling_.begin(), done);
      travelling_.erase(travelling_.begin(), done);
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
  ExchangeOverlapper(program, units, chunks);
}

}  // namespace onefold
