// Whether a run fits its memory limit, known before it starts, and what would make it fit.
#pragma once

#include "engine/engine.h"

namespace onefold {

// The order of micro-batches that peaks lower, for a step that has several: gradients of all units
// against activations of all micro-batches. Where gradients are whole anyway, micro-batches go
// first.
Order choose_order(const ModelSpec& spec, const EngineOptions& options, int ranks,
                   const Hardware& hardware = {});
// Whether there are two orders to choose from.
bool has_orders(const EngineOptions& options, int ranks);

// What a plan is made for, besides the model.
struct FitContext {
  int ranks = 1;
  int64_t comm_scratch_bytes = 0;  // of a channel
  bool order_is_given = false;     // else it is chosen anew for each change
  Hardware hardware = {};
};

struct Remedy {
  std::string change;  // "zero_optimization.stage 2, run.recompute true"
  int64_t peak_bytes = 0;
};

// Changes that keep the global batch and bring the peak of each rank to `limit_bytes` or less, the
// fastest first (search.h). Empty: not even more ranks help. `stopped`: is told if a search ended
// before it had looked at everything (stopped_text).
std::vector<Remedy> remedies(const ModelSpec& spec, const EngineOptions& options,
                             const FitContext& context, int64_t limit_bytes,
                             std::string* stopped = nullptr);

// Throws UserError when a dry run of these options peaks above options.memory_limit_bytes: it says
// by how much, where the memory goes, and which changes would fit.
void require_fits(const ModelSpec& spec, const EngineOptions& options,
                  const FitContext& context = {});

// Without a limit the limit is the machine: UserError if so many bytes are more than it has left.
// Refusing is better than being ended by the system's out-of-memory killer. `ranks`: those that
// share the machine; `key`: what sets a limit.
void require_available(int64_t peak_bytes, int ranks, const char* key);
// The same of what a card's ranks keep in the host's memory.
void require_host_memory(int64_t bytes);
// The same of the file system of a folder, which may still have to be made.
void require_disk(const std::string& folder, int64_t bytes);

}  // namespace onefold
