#include "run/signals.h"

#include <csignal>

namespace onefold {
namespace {

volatile std::sig_atomic_t signals_seen = 0;

extern "C" void on_stop_signal(int number) {
  if (signals_seen) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
  signals_seen = 1;
}

}  // namespace

StopSignals::StopSignals() {
  signals_seen = 0;
  std::signal(SIGINT, on_stop_signal);
  std::signal(SIGTERM, on_stop_signal);
}

StopSignals::~StopSignals() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool StopSignals::stop_wanted() const { return signals_seen != 0; }

}  // namespace onefold
