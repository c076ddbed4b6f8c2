// When the ranks of a pipeline do what, in virtual time: their programs are walked together, each
// as its lanes would walk it, and a message ends when both sides have been ready for it. The plan's
// clock and the drawings of schedules come from it.
#pragma once

#include <functional>
#include <vector>

#include "program/program.h"

namespace onefold {

struct Timeline {
  struct Span {
    double begin = 0, end = 0;
  };
  std::vector<std::vector<Span>> spans;  // by rank: of each action of its program, on its lane
  double seconds = 0;                    // of the step

  // Of all ranks' time, the share in which they compute nothing.
  double idle_share(const std::vector<Program>& programs) const;
};

// How long an action takes on its lane, waits aside; of a message, at the sender.
using ActionSeconds = std::function<double(int rank, size_t action)>;

// One program for each stage. Throws InternalError if they would wait for each other for ever.
Timeline timeline(const std::vector<Program>& programs,
                  const std::vector<std::vector<UnitTraits>>& units, const ActionSeconds& seconds);

}  // namespace onefold
