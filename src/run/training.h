// A run under way on one rank: the engine, and all that watches it. Every rank walks through the
// same steps, evaluations and saves; the first one prints and writes.
#pragma once

#include <optional>
#include <string>

#include "io/trace_file.h"
#include "optim/schedule.h"
#include "run/plan.h"
#include "run/progress.h"
#include "run/records.h"
#include "run/run_folder.h"

namespace onefold {

struct TrainingOptions {
  bool quiet = false;
  bool trace = false;
};

class Training {
 public:
  // `folder`: where rank 0 writes; the others pass none.
  Training(const Config& config, const RunPlan& plan, std::shared_ptr<Communicator> communicator,
           std::optional<RunFolder> folder, const TrainingOptions& options);

  // To the last step, or to the one during which a signal came.
  void run();

  bool interrupted() const { return interrupted_; }
  Json summary();
  std::string report();
  // Every rank's spans, on rank 0. All ranks call it together.
  std::vector<RankTrace> collect_trace();

 private:
  void step();
  void evaluate();
  void measure_ceiling();
  void show_times();
  void save();
  bool stop_wanted(bool here);

  bool leads() const { return engine_.rank() == 0; }
  bool done() const { return interrupted_ || state_.step == plan_.steps; }
  // Not after an interruption: whoever asked to stop waits for the weights.
  bool evaluation_due() const {
    const bool due = state_.step % std::max<int64_t>(1, config_.run.eval_every) == 0;
    return plan_.data.validation && !interrupted_ && (due || done());
  }
  bool save_due() const {
    const int64_t every = config_.run.save_every;
    return !config_.run.output.empty() && (done() || (every > 0 && state_.step % every == 0));
  }
  int64_t step_tokens() const { return config_.batch.global * config_.data.sequence_length; }
  double seconds_left() const;

  const Config& config_;
  const RunPlan& plan_;
  const std::optional<RunFolder> folder_;
  const Schedule schedule_;
  Engine engine_;
  double gemm_gflops_ = 0;  // of all ranks: the best rate measured so far
  Records records_;
  Progress progress_;
  ProgressState state_;
  double begin_ = 0, seconds_ = 0;
  double step_seconds_ = 0;  // smoothed
  VerbTimes shown_times_;
  int64_t saved_step_ = 0;
  bool interrupted_ = false;
};

}  // namespace onefold
