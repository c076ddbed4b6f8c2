// What a run will be, known before its first step: its data, model, length and memory, the last
// from a dry run of the same programs.
#pragma once

#include <array>
#include <string>

#include "config/config.h"
#include "run/session.h"

namespace onefold {

struct RunPlan {
  RunData data;
  ModelSpec model;
  EngineOptions options;
  int64_t steps = 0;
  int threads = 0;
  int64_t peak_bytes = 0;
  std::array<int64_t, kKinds> bytes_at_peak{};  // by Kind
};

// Reads the data. Throws UserError if the run would not fit run.memory, with what would.
RunPlan plan_run(const Config& config);

// The plan in five lines, and as JSON with the configuration in force.
std::string plan_text(const Config& config, const RunPlan& plan);
Json plan_json(const Config& config, const RunPlan& plan);

}  // namespace onefold
