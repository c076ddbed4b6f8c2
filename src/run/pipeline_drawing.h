// Drawings of a pipeline's step, as it is planned: text, SVG, and a trace.
#pragma once

#include <string>
#include <vector>

#include "io/trace_file.h"
#include "plan/pipeline_plan.h"

namespace onefold {

std::vector<RankTrace> traces_of(const PipelinePlan& plan);

// A row for each rank: F, B and W (gradients of weights that come later) with the number of the
// micro-batch (and ' for each further stage that the rank has), '.' where it computes nothing.
std::string schedule_text(const PipelinePlan& plan);
std::string schedule_svg(const PipelinePlan& plan);

}  // namespace onefold
