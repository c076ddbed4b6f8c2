// Ring attention: parts of a sequence keep their queries, and pass their keys and values around. In
// each step a part attends to those of one other part, and joins what it finds with what it has.
//
// A part has two runs of tokens, the n-th from the beginning and the n-th from the end (runs_of).
// So its own keys are those of a sequence of its own, of a part before it all queries see the first
// run's keys and none those of the second, and of a part behind it the second run's queries see all
// keys and the first's none: half of all pairs in every step, and no mask.
//
// Keys and values of a step are passed on before it is computed, and so may travel meanwhile. Their
// gradients are passed on in the next turn: those that come from the part before, with what this
// one's step has found added when they have come.
#pragma once

#include "model/share.h"

namespace onefold {

// Of the rows that a part has of a sequence, those whose queries see the keys of these rows of the
// part that a step is about. The first step is about its own.
struct RingStep {
  Span queries, keys;
};

inline RingStep ring_step(const Share& share, int step, int64_t length) {
  const int from = (share.part - step + share.parts) % share.parts;
  const int64_t half = length / 2;
  if (from < share.part) return {{0, length}, {0, half}};
  return {{half, length - half}, {0, length}};
}

}  // namespace onefold
