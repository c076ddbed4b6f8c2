// Ctrl-C and SIGTERM ask a run to stop after the step at hand; a second one ends the process at
// once.
#pragma once

namespace onefold {

class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool stop_wanted() const;
};

}  // namespace onefold
