// The programs of a rank: the builder's plain step, and the passes that its options ask for.
#pragma once

#include <vector>

#include "engine/options.h"
#include "engine/slab.h"
#include "program/passes.h"

namespace onefold {

// What a stage says about a unit on so many ranks of the data axis; one that is small enough keeps
// its parameters whole.
Homes homes_of(const EngineOptions& options, int64_t unit_elems, int data_ranks);

// By unit of the share that a rank computes; `ranks` are all, here and below, and ranks at
// different places of a pipeline differ. Throws UserError for a frozen name that no unit has.
std::vector<UnitTraits> unit_traits(const Model& model, const EngineOptions& options, int ranks,
                                    const Pipeline& pipeline = {});

Program training_program(const EngineOptions& options, const std::vector<UnitTraits>& units,
                         int ranks, const Pipeline& pipeline = {});
Program evaluation_program(const EngineOptions& options, const std::vector<UnitTraits>& units,
                           int ranks, const Pipeline& pipeline = {});

// Bytes of parameters, gradients and optimizer state of one rank, from the homes that its slabs are
// made by and the optimizer's states. `on_device`: of what lives there alone.
struct StateBytes {
  int64_t parameters = 0, gradients = 0, optimizer = 0;
  int64_t total() const { return parameters + gradients + optimizer; }
};
StateBytes state_bytes(const std::vector<UnitTraits>& units, const EngineOptions& options,
                       int ranks, bool on_device = false);

}  // namespace onefold
