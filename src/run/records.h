// What a run writes down as it goes: metrics.jsonl always, TensorBoard events if asked for. Without
// a run folder neither is written; what DeepSpeed's "tensorboard" and "csv_monitor" ask for goes
// into folders of its own. A line that cannot be written ends nothing: it is tried again with the
// next, and the first failure is reported.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "config/config.h"
#include "engine/engine.h"
#include "io/csv_monitor.h"
#include "io/metrics.h"
#include "io/tensorboard.h"
#include "run/progress.h"
#include "run/run_folder.h"

namespace onefold {

class Records {
 public:
  using Warn = std::function<void(const std::string&)>;
  // `step`: those that an earlier run has done; its lines and events up to there stay. Of all ranks
  // one leads, and has the folder if there is one; the others write nothing. `origin`: as
  // BatchLayout has it, where earlier steps had another number of samples.
  Records(const Config& config, const std::optional<RunFolder>& folder, Warn warn, int64_t step = 0,
          bool leads = true, int64_t origin = 0);

  // `seconds` and `times` are those of this step.
  void step(const ProgressState& state, double seconds, const VerbTimes& times);
  void evaluation(int64_t step, double loss);
  // The last try for what could not be written; says what is lost.
  void finish();

 private:
  void attempt(const std::function<void()>& write);
  int64_t samples(int64_t step) const { return origin_ + step * step_samples_; }

  const bool breakdown_;  // wall_clock_breakdown
  Warn warn_;
  bool failing_ = false;
  std::optional<MetricsWriter> lines_;
  const int64_t step_samples_, origin_;     // sequences of a step, and before the first
  std::optional<TensorBoardWriter> board_;  // of run.tensorboard
  std::optional<TensorBoardWriter> monitor_board_;
  std::optional<CsvMonitor> tables_;
};

}  // namespace onefold
