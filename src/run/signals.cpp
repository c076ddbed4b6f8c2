#include "run/signals.h"

#include <atomic>

#include "base/error.h"

namespace onefold {
namespace {

// Handlers write these on whichever thread the system picks, and ranks read them on theirs.
std::atomic<bool> in_use = false, stop_seen = false, stop_asked = false, save_asked = false;
static_assert(std::atomic<bool>::is_always_lock_free);  // what a handler may use

extern "C" void on_stop_signal(int number) {
  stop_seen = true;
  if (!stop_asked.exchange(true)) return;
  std::signal(number, SIG_DFL);
  std::raise(number);
}

extern "C" void on_hang_up(int) { stop_seen = true; }
extern "C" void on_save_signal(int) { save_asked = true; }

bool is_hang_up(int number) { return number == SIGHUP || number == SIGPIPE; }

}  // namespace

StopSignals::StopSignals() {
  require(!in_use.exchange(true), "signals are received twice in one process");
  stop_seen = stop_asked = save_asked = false;
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    struct sigaction action = {};
    action.sa_handler = kSignals[i] == SIGUSR1    ? on_save_signal
                        : is_hang_up(kSignals[i]) ? on_hang_up
                                                  : on_stop_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(kSignals[i], nullptr, &before_[i]);
    if (is_hang_up(kSignals[i]) && before_[i].sa_handler == SIG_IGN) continue;
    sigaction(kSignals[i], &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  in_use = false;
}

bool StopSignals::stop_wanted() const { return stop_seen; }

bool StopSignals::take_save_request() { return save_asked.exchange(false); }

}  // namespace onefold
