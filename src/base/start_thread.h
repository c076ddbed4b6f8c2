// Threads that the system may refuse: at its limit of processes, or without memory for a stack.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"

namespace onefold {

// UserError that says why, if there can be no other thread.
template <typename Work>
std::thread start_thread(Work&& work) {
  try {
    return std::thread(std::forward<Work>(work));
  } catch (const std::system_error& error) {
    user_error(
        "cannot start another thread: {}; raise the limit on processes (ulimit -u) or ask for "
        "fewer threads (run.threads, --threads, --ranks)",
        error.code().message());
  }
}

}  // namespace onefold
