// The passes: each technique rewrites the program in one file under passes/.
#pragma once

#include "program/program.h"

namespace onefold {

// Gradients of the first micro-batch overwrite, those of later ones add: no pass over memory to
// zero them.
void accumulate(Program& program);

// Activation checkpointing: blocks keep only their input; their forward runs again just before
// their backward.
void recompute(Program& program);

}  // namespace onefold
