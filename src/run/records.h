// What a run writes down as it goes: metrics.jsonl always, TensorBoard events if asked for. Without
// a run folder nothing is written.
#pragma once

#include <optional>

#include "config/config.h"
#include "engine/engine.h"
#include "io/metrics.h"
#include "io/tensorboard.h"
#include "run/progress.h"
#include "run/run_folder.h"

namespace onefold {

class Records {
 public:
  // `step`: those that an earlier run has done; its lines and events up to there stay.
  Records(const Config& config, const std::optional<RunFolder>& folder, int64_t step = 0);

  // `seconds` and `times` are those of this step.
  void step(const ProgressState& state, double seconds, const VerbTimes& times);
  void evaluation(int64_t step, double loss);

 private:
  const bool breakdown_;  // wall_clock_breakdown
  std::optional<MetricsWriter> lines_;
  std::optional<TensorBoardWriter> board_;
};

}  // namespace onefold
