// The phases of a block's attention: how many there are, which step each one is, and what travels
// behind it. Plain numbers, so that the steps themselves (attention.cpp) know nothing of an order.
#pragma once

#include "model/unit.h"

namespace onefold {

struct AttentionPhases {
  bool ring = false;        // keys and values go around
  bool by_heads = false;    // tokens are exchanged for heads
  bool norm_after = false;  // then backward has a step more, the first
  bool overlapped = false;  // Share::overlapped
  int parts = 1;            // of each sequence

  // Of forward: project in, attend, project out, add the residual. Of backward:
  enum Backward : int {
    kPostWeights,
    kOutWeights,
    kResult,
    kAttend,
    kQueriesAndKeys,
    kQkvWeights,
    kInput,
    kNorm
  };

  // A ring attends in several phases, which are one of the others: a step in each, and in backward,
  // but for the first, another one that joins what it has found.
  struct Place {
    int index, step = 0;
    bool joins = false;
  };

  int steps() const { return ring ? parts : 1; }
  int count(bool backward) const {
    return (backward ? 6 + (norm_after ? 1 : 0) : 3) + attend_phases(backward);
  }

  bool attends(bool backward, const Place& place) const {
    return place.index == attend_index(backward);
  }
  // The first phase that does, and in backward the one before it.
  Place attending(bool backward) const { return {attend_index(backward)}; }
  Place before_attending() const { return {attend_index(true) - 1}; }
  Place place_of(bool backward, int index) const {
    const int first = attend_index(backward);
    if (index < first) return {index};
    const int behind = index - first, phases = attend_phases(backward);
    if (behind >= phases) return {index - phases + 1};
    if (!backward) return {first, behind};
    return {first, (behind + 1) / 2, behind > 0 && behind % 2 == 0};
  }

  // Where the input's gradient travels beside computation, that of qkv's weights comes behind it.
  // Where parts exchange tokens for heads, that of out's weights comes behind attention, and so
  // beside the exchange back.
  Backward step_of(const Place& place) const {
    const int step = place.index + (norm_after ? 0 : 1);
    if (by_heads && step >= kOutWeights && step <= kAttend)
      return static_cast<Backward>(step == kAttend ? kOutWeights : step + 1);
    if (overlapped && (step == kQkvWeights || step == kInput))
      return static_cast<Backward>(kQkvWeights + kInput - step);
    return static_cast<Backward>(step);
  }

  // Of a ring: the number of what is passed on after a phase; -1: nothing is.
  int turn_after(bool backward, const Place& place) const {
    const bool attended = attends(backward, place);
    if (!backward) {  // keys and values, while the step before is computed
      const int turn = attended ? place.step + 1 : 0;
      return place.index <= attend_index(false) && turn + 1 < steps() ? turn : -1;
    }
    if (!attended) return place.index + 1 == attend_index(true) ? 0 : -1;
    return place.step == 0 || place.joins ? place.step + 1 : -1;
  }

  Phase phase(bool backward, int index) const {
    static constexpr Phase kForward[] = {{"qkv", Role::exchange},
                                         {"attend", Role::exchange},
                                         {.name = "out", .role = Role::sum, .by_rows = true},
                                         {"residual"}};
    static constexpr Phase kOfBackward[] = {{"post norm weights", Role::none, true},
                                            {"out weights", Role::none, true},
                                            {"result", Role::exchange},
                                            {"attend", Role::exchange},
                                            {"queries and keys"},
                                            {"qkv weights", Role::none, true},
                                            {.name = "input", .role = Role::sum, .by_rows = true},
                                            {"norm"}};
    const Place place = place_of(backward, index);
    Phase phase = backward ? kOfBackward[step_of(place)] : kForward[place.index];
    if (!ring || phase.role != Role::exchange) return phase;
    if (place.joins) phase.name = "join";
    phase.role = turn_after(backward, place) < 0 ? Role::none : Role::shift;
    phase.beside =
        attends(backward, place) && !place.joins && (backward || place.step + 1 < steps());
    return phase;
  }

 private:
  int attend_phases(bool backward) const { return backward ? 2 * steps() - 1 : steps(); }
  int attend_index(bool backward) const {
    return backward ? (norm_after ? 1 : 0) + (by_heads ? 1 : 2) : 1;
  }
};

}  // namespace onefold
