// Checks a program before anything runs it: every acquire is released once, every read follows its
// write, nothing is held without a later reader, tickets are sound. It knows nothing of how the
// program was made, so that a mistake in a builder or a pass is found here and not in the numbers.
#pragma once

#include <string>
#include <vector>

#include "program/program.h"

namespace onefold {

// What is wrong with the program, a sentence for each place; empty if it is sound. `ranks` > 1:
// gradients must be reduced before they are used.
std::vector<std::string> problems_of(const Program& program, const std::vector<UnitTraits>& units,
                                     int ranks);

// Throws InternalError with the first problems.
void verify(const Program& program, const std::vector<UnitTraits>& units, int ranks);

}  // namespace onefold
