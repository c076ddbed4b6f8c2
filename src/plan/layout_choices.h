// What a search may choose from, where the options of a mesh begin it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "plan/search.h"

namespace onefold {

struct HomePair {
  Tier optimizer, parameters;
};

// How far a tier is, as time goes.
int distance(Tier tier);

// How messages travel: the fastest first, the one that holds least last.
struct Travel {
  bool overlap;
  int64_t prefetch_elems;
};

// What a mesh leaves open: the order of a pipeline's turns, and what ranks of a tensor group hold
// of what passes between units.
struct Passing {
  PipelineSchedule schedule;
  int interleave;
  bool sequence_parallel;

  bool operator==(const Passing&) const = default;
};

// What is too large, at a stage and in an order: so is the same with larger micro-batches.
struct TooLarge {
  size_t mesh;
  Passing passing;
  int policy, stage;
  Order order;
  int64_t micro_batch;
};
bool covered(const std::vector<TooLarge>& known, const TooLarge& one);

// All that a search may choose, of options that are alike in the rest.
std::string layout_key(const EngineOptions& options);

EngineOptions with(EngineOptions options, const HomePair& homes, const Travel& travel);

class LayoutChoices {
 public:
  LayoutChoices(const ModelSpec& spec, const FitContext& context, const Freedom& freedom,
                const TierLimits& limits)
      : spec_(spec), context_(context), freedom_(freedom), limits_(limits) {}

  std::vector<Passing> passings(const EngineOptions& mesh) const;
  // Sizes that divide a rank's sequences: the largest first; of a pipeline, whose ranks wait the
  // less the more there are, the smallest first.
  std::vector<int64_t> micro_batches(const EngineOptions& mesh) const;
  // 0: there is none that can be planned.
  int64_t smallest_micro_batch(const EngineOptions& mesh) const;
  // The least recomputation first.
  std::vector<Recompute> policies(const EngineOptions& mesh) const;
  std::vector<int> stages(const EngineOptions& mesh) const;
  std::vector<Order> orders(const EngineOptions& options) const;  // with stage and micro-batches
  std::vector<HomePair> homes(const EngineOptions& mesh) const;   // the nearest first
  std::vector<Travel> travels(const EngineOptions& options) const;

  // Changes to try of the best ones, one after the other: sums of tensor groups beside computation,
  // larger messages, and less for the host's cores to step.
  std::vector<std::function<void(EngineOptions&)>> refinements(const EngineOptions& options) const;

  // With homes that leave the least on the device.
  EngineOptions far_from_device(EngineOptions options) const;

  // The same policy of so many blocks; of segments there are always all.
  Recompute fewer_blocks(const Recompute& policy, int count) const;
  int blocks() const { return static_cast<int>(spec_.num_layers); }

 private:
  int64_t largest_block_unit(const EngineOptions& options) const;
  std::vector<Tier> tiers(bool free, Tier given) const;

  const ModelSpec& spec_;
  const FitContext& context_;
  const Freedom freedom_;
  const TierLimits limits_;
};

}  // namespace onefold
