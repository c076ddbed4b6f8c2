// Ctrl-C and SIGTERM ask a run to stop after the step at hand; a second one ends the process at
// once. SIGUSR1 asks for a checkpoint.
#pragma once

namespace onefold {

class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool stop_wanted() const;
  bool take_save_request();  // whether one came since the last call
};

}  // namespace onefold
