// The largest sizes that Onefold takes from outside. They are far beyond what is trained, and make
// sure that every sum and product of sizes stays inside int64, and that planning a step ends.
#pragma once

#include <cstdint>

#include "model/spec.h"

namespace onefold {

inline constexpr int64_t kMostTokenIds = INT32_MAX;  // tokens are int32
inline constexpr int64_t kMostPositions = INT32_MAX;
inline constexpr int64_t kMostHidden = int64_t{1} << 20;
inline constexpr int64_t kMostLayers = int64_t{1} << 16;
inline constexpr int64_t kMostHeads = int64_t{1} << 16;
inline constexpr int64_t kMostHeadDim = int64_t{1} << 16;
inline constexpr int64_t kMostWidth = int64_t{1} << 24;  // of all heads, and of the MLP
inline constexpr int64_t kMostExperts = 4096;
inline constexpr int64_t kMostParameters = 1'000'000'000'000'000;

// Of one rank's step: its tokens, which the head takes in chunks of 64 or more; the units that it
// computes, which is how long its program is; and the elements that it keeps for backward, of all
// micro-batches, as they may be held at once.
inline constexpr int64_t kMostTokens = int64_t{1} << 30;
inline constexpr int64_t kMostUnitsComputed = int64_t{1} << 20;
inline constexpr int64_t kMostSavedElems = int64_t{1} << 58;
inline constexpr int64_t kMostThreads = 4096;

// What a rank computes in a step; and what these sizes are called where they come from.
struct StepSizes {
  int64_t micro_batch = 1, micros = 1, sequence = 1;
};
struct StepSizeNames {
  const char *micro_batch, *micros, *sequence;
};
// Throws UserError, naming the size and its largest value, unless the step is within the limits.
// The model is complete, and the sizes are at least 1.
void check_step_sizes(const ModelSpec& model, const StepSizes& sizes, const StepSizeNames& names);

// At least what a token leaves in one block from forward to backward, in elements.
int64_t saved_elems_per_token(const ModelSpec& model);

// Units that so many micro-batches compute, forward; INT64_MAX if int64 does not hold it.
int64_t units_computed(const ModelSpec& model, int64_t micros);

}  // namespace onefold
