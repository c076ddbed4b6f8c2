// The ranks of a pipeline together, in virtual time: what a plan of each of them alone does not
// know, when the others are ready.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "program/timeline.h"

namespace onefold {

// One rank for each place of the pipeline; those beside it along the other axes are like it.
struct PipelinePlan {
  std::vector<Program> programs;
  std::vector<std::vector<UnitTraits>> units;
  std::vector<std::string> unit_names;
  std::vector<int> ranks;                          // their numbers
  std::vector<std::array<int64_t, kTiers>> peaks;  // bytes, by place and Tier
  Pipeline pipeline;                               // as the first of them sees it
  int micros = 1;
  Timeline times;

  double idle_share() const { return times.idle_share(programs); }
  // (p - 1) / (v m + p - 1): what it would be if all stages were equal and messages took no time.
  double ideal_idle_share() const;
  // How long the rank that computes the longest does not.
  double least_idle_seconds() const;
};

// From dry runs of each, by the rates of the hardware.
PipelinePlan plan_pipeline(const ModelSpec& spec, const EngineOptions& options, int ranks,
                           int64_t comm_scratch_bytes, const Hardware& hardware);

}  // namespace onefold
