// What a step takes, in memory and time, as the search for layouts asks it: from plans, of few
// micro-batches where there are many; and what no plan of a kind takes less than.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "plan/fit.h"
#include "plan/least_bytes.h"

namespace onefold {

struct Estimate {
  int64_t device = 0, host = 0, disk = 0;  // peaks, of the rank that holds the most of each
  double seconds = 0;
  double waits = 0;  // of that; in a pipeline, of the rank that computes the longest
  int64_t work = 0;  // of planning it
};

// What planning programs of so many actions takes, of a model of so many units: in actions that are
// run dry once. The same everywhere, unlike seconds.
int64_t work_of_plan(int64_t actions, int64_t units, int times);

// The step as it would run.
Estimate planned_step(const ModelSpec& spec, const EngineOptions& options,
                      const FitContext& context);

// The same, of many micro-batches from two steps of fewer. Adds to `plans` how many were made.
Estimate estimated_step(const ModelSpec& spec, const EngineOptions& options,
                        const FitContext& context, int& plans);

// How long the forwards and backwards of a step take at least: on ranks that hold everything, with
// what travels between their phases and nothing can be computed beside, and nothing else.
class LeastSeconds {
 public:
  LeastSeconds(const ModelSpec& spec, const Hardware& hardware)
      : spec_(spec), hardware_(hardware) {}

  // No step with these options, whatever their stage, homes and messages, is faster. (Other runs of
  // rows whose sums travel beside computation are other options: EngineOptions::overlap_chunks.)
  double of(const EngineOptions& options);
  int plans() const { return static_cast<int>(micros_.size()); }
  int64_t work() const { return work_; }

 private:
  // Of one micro-batch, by unit.
  struct Micro {
    std::vector<double> forward, backward;
    double all = 0;
  };

  const Micro& micro(const EngineOptions& options);
  const std::vector<int>& stages(const EngineOptions& options);

  const ModelSpec& spec_;
  const Hardware hardware_;
  std::map<std::string, Micro> micros_;
  int64_t work_ = 0;
  std::map<std::pair<int, int>, std::vector<int>> stages_;  // by ranks and stages of each
};

// What searches have planned of a model on the same ranks, so that each plan is made once.
struct KnownSteps {
  KnownSteps(const ModelSpec& spec, const Hardware& hardware, int ranks)
      : least_seconds(spec, hardware), least_bytes(spec, ranks) {}

  std::map<std::string, Estimate> estimates;  // by all that a search may choose
  LeastSeconds least_seconds;
  LeastBytes least_bytes;
  int64_t work = 0;  // of the plans that were made, but for those of least_seconds
  int64_t all_work() const { return work + least_seconds.work(); }
};

}  // namespace onefold
