// The ranks of a pipeline together, in virtual time: what a plan of each of them alone does not
// know, when the others are ready. And drawings of it.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"
#include "io/trace_file.h"
#include "program/timeline.h"

namespace onefold {

// One rank for each place of the pipeline; those beside it along the other axes are like it.
struct PipelinePlan {
  std::vector<Program> programs;
  std::vector<std::vector<UnitTraits>> units;
  std::vector<std::string> unit_names;
  std::vector<int> ranks;  // their numbers
  Pipeline pipeline;       // as the first of them sees it
  int micros = 1;
  Timeline times;

  double idle_share() const { return times.idle_share(programs); }
  // (p - 1) / (v m + p - 1): what it would be if all stages were equal and messages took no time.
  double ideal_idle_share() const;
  std::vector<RankTrace> traces() const;
};

// From dry runs of each, by the rates of the hardware.
PipelinePlan plan_pipeline(const ModelSpec& spec, const EngineOptions& options, int ranks,
                           int64_t comm_scratch_bytes, const Hardware& hardware);

// A row for each rank: F, B and W (gradients of weights that come later) with the number of the
// micro-batch (and ' for each further stage that the rank has), '.' where it computes nothing.
std::string schedule_text(const PipelinePlan& plan);
std::string schedule_svg(const PipelinePlan& plan);

}  // namespace onefold
