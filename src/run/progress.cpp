#include "run/progress.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/clock.h"
#include "base/say.h"
#include "base/text.h"

namespace onefold {
namespace {

constexpr double kRedrawSeconds = 0.1;

std::string line_of(const ProgressState& s, double seconds_left) {
  std::string line = fmt::format("step {:>{}}/{}  loss {:.4f}", s.step,
                                 std::to_string(s.total_steps).size(), s.total_steps, s.loss);
  if (s.validation_loss >= 0) line += fmt::format("  val {:.4f}", s.validation_loss);
  line += fmt::format(
      "  norm {:.2f}  lr {:.2e}  {} tok/s  {:.0f}% of GEMM  {}  ETA {}", s.gradient_norm,
      s.learning_rate, format_count(static_cast<int64_t>(s.tokens_per_second)),
      100 * s.gemm_fraction, format_bytes(s.memory_bytes), format_duration(seconds_left));
  return line;
}

}  // namespace

Progress::Progress(int64_t steps_per_print, bool quiet)
    : steps_per_print_(steps_per_print), quiet_(quiet), terminal_(redraws(Stream::err)) {}

void Progress::clear_live_line() {
  if (live_) say("\r\x1b[K");
  live_ = false;
}

void Progress::show(const ProgressState& state, double seconds_left) {
  if (quiet_) return;
  const bool lasting = state.step % steps_per_print_ == 0 || state.step == state.total_steps;
  if (lasting) {
    clear_live_line();
    say("{}\n", line_of(state, seconds_left));
  } else if (terminal_ && now_seconds() - last_drawn_ > kRedrawSeconds) {
    say("\r\x1b[K{}", line_of(state, seconds_left));
    live_ = true;
    last_drawn_ = now_seconds();
  }
}

void Progress::note(const std::string& text) {
  if (quiet_) return;
  clear_live_line();
  say("{}\n", text);
}

void Progress::warn(const std::string& text) {
  clear_live_line();
  say("onefold: warning: {}\n", text);
}

}  // namespace onefold
