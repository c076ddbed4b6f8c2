// A run under way on one rank: the engine, and all that watches it. Every rank walks through the
// same steps, evaluations and saves; the first one prints and writes.
#pragma once

#include <optional>
#include <string>

#include "io/trace_file.h"
#include "optim/schedule.h"
#include "run/checkpoint_writer.h"
#include "run/plan.h"
#include "run/progress.h"
#include "run/records.h"
#include "run/resume.h"
#include "run/run_folder.h"
#include "run/signals.h"

namespace onefold {

struct TrainingOptions {
  bool quiet = false;
  bool trace = false;
  std::vector<CheckpointFolder::Entry> resume_from;  // in order of preference; empty: a new run
  StopSignals* signals = nullptr;  // all ranks' of this process; null: none are received
};

class Training {
 public:
  // Loads what it goes on from, and writes nothing.
  Training(const Config& config, const RunPlan& plan, std::shared_ptr<Communicator> communicator,
           const TrainingOptions& options);

  // Where rank 0 writes from now on: a folder that is made, or emptied for this run, only once what
  // the run needs has been loaded. The others have none.
  void write_to(RunFolder folder);

  // To the last step, or to the one before whose end a signal came.
  void run();

  bool interrupted() const { return interrupted_; }
  Json summary();
  int64_t planned_peak() const;  // of this rank, in bytes
  std::string report();
  // Every rank's spans, on rank 0. All ranks call it together.
  std::vector<RankTrace> collect_trace();

 private:
  void step();
  void evaluate();
  void measure_ceiling();
  void show_times();
  void open_records(bool writes);
  void resume_from(const std::vector<CheckpointFolder::Entry>& candidates);
  void begin_checkpoint();
  void settle_checkpoint(bool wait);
  void save_last();
  void drop_replaced();
  Json run_record() const;
  // Agreed between ranks after each step.
  void agree();

  bool leads() const { return engine_.rank() == 0; }
  bool done() const { return interrupted_ || state_.step == plan_.steps; }
  // Not after an interruption: whoever asked to stop waits for the weights.
  bool evaluation_due() const {
    const bool due = state_.step % std::max<int64_t>(1, config_.run.eval_every) == 0;
    return plan_.data.validation && !interrupted_ && (due || done());
  }
  bool saves() const { return !config_.run.output.empty(); }
  bool checkpoint_due() const {
    const int64_t every = config_.run.save_every;
    return saves() && !done() &&
           (save_wanted_ || (every > 0 && state_.step % every == 0) || state_.step == retry_step_);
  }
  int64_t step_tokens() const { return config_.batch.global * config_.data.sequence_length; }
  double seconds_left() const;
  // Of a step, but for the first, which warms up; 0 where there was no other.
  double mean_step_seconds() const;

  const Config& config_;
  const RunPlan& plan_;
  std::optional<RunFolder> folder_;
  StopSignals* const signals_;
  const Schedule schedule_;
  BatchLoader batches_;
  Engine engine_;
  std::optional<CheckpointWriter> checkpoints_;  // after the engine, whose state it writes
  double gemm_gflops_ = 0;                       // of all ranks: the best rate measured so far
  std::optional<Records> records_;
  Progress progress_;
  ProgressState state_;
  double begin_ = 0, seconds_ = 0;
  double step_seconds_ = 0;   // smoothed
  double later_seconds_ = 0;  // of all steps but the first, which warms up
  VerbTimes shown_times_;
  int64_t first_step_ = 0;  // steps that an earlier run has done
  Resumed resumed_;
  bool replaced_dropped_ = false;
  int64_t saved_step_ = 0;
  int64_t retry_step_ = -1, failures_ = 0;  // of checkpoints
  double saved_at_ = 0, stalled_before_ = 0;
  bool save_wanted_ = false, interrupted_ = false;
};

}  // namespace onefold
