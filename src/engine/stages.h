// How a pipeline divides the units of a model among its ranks.
#pragma once

#include <string>
#include <vector>

#include "engine/options.h"

namespace onefold {

// What computing each unit costs beside the others, by the rule that stages are made equal by.
std::vector<double> unit_costs(const Model& whole, const EngineOptions& options);

// The first unit of each of so many stages, and the number of units: contiguous, none empty, the
// most costly one as cheap as possible.
std::vector<int> divided(const std::vector<double>& costs, int stages);

// The pipeline of these options as the rank at `place` along its axis sees it.
Pipeline pipeline_of(const ModelSpec& spec, const EngineOptions& options, int place);

// Why a model with these options cannot be divided into options.pipeline.ranks ranks: a sentence
// that ends with all reasons; "" if it can.
std::string obstacle_to_pipeline(const ModelSpec& spec, const EngineOptions& options);

}  // namespace onefold
