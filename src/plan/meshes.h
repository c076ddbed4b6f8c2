// The meshes that so many ranks may be divided into.
#pragma once

#include <limits>
#include <vector>

#include "comm/mesh.h"
#include "plan/fit.h"

namespace onefold {

// Axes whose sizes are to be found. Data is what the others leave.
struct FreeAxes {
  bool tensor = false, pipeline = false, context = false, expert = false;

  static constexpr FreeAxes all() { return {true, true, true, true}; }
  bool any() const { return tensor || pipeline || context || expert; }
  bool operator==(const FreeAxes&) const = default;
};

inline constexpr MeshAxes kAnySize{.tensor = std::numeric_limits<int>::max(),
                                   .context = std::numeric_limits<int>::max(),
                                   .expert = std::numeric_limits<int>::max(),
                                   .pipeline = std::numeric_limits<int>::max()};

// Those with the sizes of `given` where an axis is not free; the tensor axis stays within hosts of
// `host_ranks` ranks (0: there are none). `data`: the size of that axis; 0: any. `most`: how large
// free axes may be.
std::vector<MeshAxes> possible_meshes(int ranks, const MeshAxes& given, const FreeAxes& free,
                                      int host_ranks, int64_t data = 0,
                                      const MeshAxes& most = kAnySize);

// What free axes need not be larger than (is_worth_a_plan).
MeshAxes largest_worth_a_plan(const ModelSpec& spec, int64_t sequence);

// Whether a search looks at a mesh: the model has units for its stages, and experts for the ranks
// that would divide them; and where the context axis is free, a rank has 256 tokens of a sequence
// at least, for with fewer it exchanges more than it computes.
bool is_worth_a_plan(const ModelSpec& spec, int64_t sequence, const FreeAxes& free,
                     const MeshAxes& mesh);

// Of these the ones that the model and the options go with, as options of a rank. The global batch
// stays, and so do micro-batches where they divide what is a rank's; else they have a sequence
// each.
std::vector<EngineOptions> options_of_meshes(const ModelSpec& spec, const EngineOptions& options,
                                             const FitContext& context, const FreeAxes& free);

}  // namespace onefold
