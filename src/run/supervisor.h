// A process that watches another one work, and starts it again when it fails.
#pragma once

#include <functional>

namespace onefold {

// Calls work(n) in a child process and returns the exit code that it ends with (128 + the signal if
// one ended it). While `again` says so of that code, and at most `restarts` times, the work is
// started anew with the next n. Signals that stop a run or ask it for a checkpoint are passed on;
// the work ends with its watcher. Must be called before the process has started threads.
int supervise(int restarts, const std::function<int(int start)>& work,
              const std::function<bool(int code)>& again);

}  // namespace onefold
