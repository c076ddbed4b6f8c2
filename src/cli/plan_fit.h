// onefold plan --fit: the layouts of a step that are fastest within memory.
#pragma once

#include <string>

#include "run/search.h"

namespace onefold::cli {

struct FitQuestion {
  Json root;  // the configuration's document
  OpenConfig open;
  Freedom freedom;
  FitContext context;
  TierLimits limits;
  std::string output;  // where the best one is written; "": nowhere
  bool json = false;
};

// Prints the best ones. Returns the exit code.
int run_fit(const FitQuestion& question);

}  // namespace onefold::cli
