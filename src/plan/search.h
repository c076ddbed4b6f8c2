// The layout of a step that is fastest within memory, found by planning: mesh, stage, homes,
// recomputation, micro-batches, and what travels ahead. None of these changes what is learned, and
// all but the mesh and the micro-batch keep every bit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "plan/fit.h"
#include "plan/meshes.h"

namespace onefold {

struct KnownSteps;  // plan/estimate.h

// What each rank may use of each tier; 0: nothing of it.
struct TierLimits {
  int64_t device = Ledger::kNoLimit;
  int64_t host = 0;
  int64_t disk = 0;
};

// What the search may choose. The rest stays as the options have it.
struct Freedom {
  bool stage = false;
  bool optimizer_home = false, parameter_home = false, ratio = false;
  bool recompute = false;
  bool batch = false;  // micro-batches and their number; their product stays
  bool overlap = false, prefetch = false, reduce_bucket = false;
  bool order = false;  // of micro-batches
  bool host_step = false;
  FreeAxes mesh;
  bool schedule = false, interleave = false;  // of a pipeline
  bool sequence_parallel = false, overlap_chunks = false;

  static constexpr Freedom all() {
    return {true, true, true, true, true, true, true, true, true, true, true, FreeAxes::all(),
            true, true, true, true};
  }
  bool operator==(const Freedom&) const = default;
};

struct Layout {
  EngineOptions options;
  int64_t device_bytes = 0, host_bytes = 0, disk_bytes = 0;  // of each rank, at their peaks
  // Of a step, by the hardware's rates; and of that, in which computation waits.
  double seconds = 0, waits = 0;

  double tokens_per_second(int ranks) const;
};

struct SearchResult {
  // Those that fit, the fastest first; each planned as it would run. Where meshes are searched, the
  // fastest of each mesh, of those that bounds have not ruled out.
  std::vector<Layout> best;
  std::optional<Layout> refused;  // the fastest of those that do not fit, if it is faster
  Layout least;                   // of all, what takes the least of the device's memory
  int plans = 0;                  // that were made
  bool of_meshes = false;         // whether there were several
  // Meshes there were, and those of which no layout is left that bounds do not rule out: all of
  // them, unless the search has done its work and stopped.
  size_t meshes = 0, looked_at = 0;
  bool stopped = false;
};

// Work of a search (estimate.h), which then stops with the best it has found: about a minute of a
// core.
constexpr int64_t kSearchWork = 80'000'000;

// `wanted`: so many of the best. The same arguments give the same layouts. Of a free mesh, the
// options are those of one that there may be. `known` is for searches that differ in freedom and
// limits alone, none of which is free in the order of micro-batches.
SearchResult search_layouts(const ModelSpec& spec, const EngineOptions& options,
                            const FitContext& context, const Freedom& freedom,
                            const TierLimits& limits, size_t wanted = 6,
                            KnownSteps* known = nullptr, int64_t work = kSearchWork);
// The same from these options, each of another mesh.
SearchResult search_meshes(const ModelSpec& spec, const std::vector<EngineOptions>& meshes,
                           const FitContext& context, const Freedom& freedom,
                           const TierLimits& limits, size_t wanted = 6, KnownSteps* known = nullptr,
                           int64_t work = kSearchWork);

// Whether both divide ranks alike.
bool same_mesh(const EngineOptions& a, const EngineOptions& b);

// What differs from `from`, as keys of a configuration and their values: "zero_optimization.stage
// 2". Empty: nothing does.
std::vector<std::string> layout_changes(const EngineOptions& from, const EngineOptions& to);

// Of a step: "18.4ms", "1.25s", "2m05s".
std::string step_time_text(double seconds);

// Says of a search that has stopped how far it came; "" of others.
std::string stopped_text(const SearchResult& found);

// A sentence on why the first is faster than the others.
std::string why_first(const SearchResult& found);

// What was found, and how far the search came: for --json.
Json search_json(const SearchResult& found, int ranks);

}  // namespace onefold
