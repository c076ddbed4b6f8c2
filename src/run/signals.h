// Ctrl-C and SIGTERM ask a run to stop after the step at hand; a second one ends the process at
// once. So do SIGHUP and SIGPIPE, a terminal or a reader of the output that is gone, but any number
// of them only once: they come in numbers. SIGUSR1 asks for a checkpoint.
#pragma once

#include <csignal>

namespace onefold {

// What signals a process has received. They are the process's, not a thread's: make one before the
// ranks start, let all of them ask it, and keep it until the last has ended. A second one at the
// same time is an InternalError. SIGHUP and SIGPIPE that are ignored (nohup) stay so. The
// destructor restores the handlers that were there before.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // From any thread.
  bool stop_wanted() const;
  // Whether a request came that no call has returned yet.
  bool take_save_request();

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGUSR1};

  struct sigaction before_[5];
};

}  // namespace onefold
