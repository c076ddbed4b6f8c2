#include "run/signals.h"

#include <csignal>

namespace onefold {
namespace {

volatile std::sig_atomic_t signals_seen = 0, save_asked = 0;

extern "C" void on_stop_signal(int number) {
  if (signals_seen) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
  signals_seen = 1;
}

extern "C" void on_save_signal(int) { save_asked = 1; }

}  // namespace

StopSignals::StopSignals() {
  signals_seen = 0;
  save_asked = 0;
  std::signal(SIGUSR1, on_save_signal);
  std::signal(SIGINT, on_stop_signal);
  std::signal(SIGTERM, on_stop_signal);
}

StopSignals::~StopSignals() {
  std::signal(SIGUSR1, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool StopSignals::stop_wanted() const { return signals_seen != 0; }

bool StopSignals::take_save_request() {
  const bool asked = save_asked != 0;
  save_asked = 0;
  return asked;
}

}  // namespace onefold
