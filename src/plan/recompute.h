// Which activations to keep, found by planning.
#pragma once

#include "base/json.h"
#include "plan/fit.h"

namespace onefold {

// Attention or MLP, of all blocks: what gives back more memory for its time.
Recompute selective_recompute(const ModelSpec& spec, const EngineOptions& options,
                              const FitContext& context = {});

// The least recomputation, by time, with which the peak is at most `limit_bytes`: none, the
// attention and the MLP of the first blocks (each its own count), whole blocks, or all units in
// segments. If nothing fits: what peaks lowest.
Recompute least_recompute(const ModelSpec& spec, const EngineOptions& options,
                          const FitContext& context, int64_t limit_bytes);

// As run.recompute has it: true, "mlp", {"blocks": 5}.
Json recompute_value(const Recompute& policy);

// What a plan says of it: "the MLP of 5 of 12 blocks". "" for none.
std::string recompute_text(const Recompute& policy, const ModelSpec& spec);

// What a step with these options holds and how long it takes on the described hardware.
struct Planned {
  int64_t peak_bytes = 0;
  double seconds = 0;
};
Planned planned(const ModelSpec& spec, EngineOptions options, const FitContext& context);

}  // namespace onefold
