#include "plan/layout_choices.h"

#include <algorithm>
#include <cmath>

#include "engine/lines.h"
#include "model/spec_limits.h"

namespace onefold {
namespace {

// Of a step that is planned: a plan for it takes a few hundredths of a second, and dozens are made.
constexpr int64_t kMostUnits = int64_t{1} << 15;
constexpr size_t kMostBatches = 8;  // sizes of a micro-batch that are tried
constexpr int kMostInterleave = 8;

}  // namespace

int distance(Tier tier) { return tier == Tier::disk ? 10 : tier == Tier::host ? 1 : 0; }

std::vector<Passing> LayoutChoices::passings(const EngineOptions& mesh) const {
  const PipelineOptions& given = mesh.pipeline;
  std::vector<PipelineSchedule> schedules = {given.schedule};
  if (freedom_.schedule && given.ranks > 1)
    schedules = {PipelineSchedule::one_f_one_b, PipelineSchedule::zero_bubble,
                 PipelineSchedule::gpipe};
  std::vector<bool> scattered = {mesh.sequence_parallel};
  if (freedom_.sequence_parallel && mesh.tensor > 1) scattered = {false, true};
  std::vector<Passing> list;
  for (const bool scatters : scattered)
    for (const PipelineSchedule schedule : schedules) {
      list.push_back({schedule, freedom_.interleave ? 1 : given.interleave, scatters});
      // With a layer for each stage at least.
      if (freedom_.interleave && given.ranks > 1 && schedule == PipelineSchedule::one_f_one_b)
        for (int stages = 2; stages <= kMostInterleave && stages * given.ranks <= blocks();
             stages *= 2)
          list.push_back({schedule, stages, scatters});
    }
  return list;
}

std::vector<int64_t> LayoutChoices::micro_batches(const EngineOptions& mesh) const {
  const int64_t sequences = mesh.micro_batch * mesh.micros;
  if (!freedom_.batch) return {mesh.micro_batch};
  const int ranks = mesh.pipeline.ranks;
  const auto plannable = [&](int64_t micros) {
    return units_computed(spec_, micros) / ranks <= kMostUnits;
  };
  std::vector<int64_t> sizes;
  const auto add = [&](int64_t size) {
    if (sizes.size() < kMostBatches && sequences % size == 0 && plannable(sequences / size))
      sizes.push_back(size);
  };
  if (ranks > 1) {
    for (int64_t size = 1; size <= sequences && sizes.size() < kMostBatches; ++size) add(size);
    return sizes;
  }
  for (int64_t micros = 1; micros <= sequences && sizes.size() < kMostBatches; ++micros)
    if (sequences % micros == 0) add(sequences / micros);
  if (std::find(sizes.begin(), sizes.end(), int64_t{1}) == sizes.end() && plannable(sequences))
    sizes.push_back(1);
  return sizes;
}

int64_t LayoutChoices::smallest_micro_batch(const EngineOptions& mesh) const {
  const std::vector<int64_t> sizes = micro_batches(mesh);
  return sizes.empty() ? 0 : *std::min_element(sizes.begin(), sizes.end());
}

std::vector<Recompute> LayoutChoices::policies(const EngineOptions& mesh) const {
  if (!freedom_.recompute) return {mesh.recompute};
  const int root = std::max(2, static_cast<int>(std::ceil(std::sqrt(2.0 * blocks()))));
  return {{},   {Recompute::kAll, 0},        {0, Recompute::kAll}, Recompute::in_segments(1),
          true, Recompute::in_segments(root)};
}

std::vector<int> LayoutChoices::stages(const EngineOptions& mesh) const {
  if (!freedom_.stage || summing_ranks(mesh, context_.ranks) == 1) return {mesh.zero.stage};
  return {0, 1, 2, 3};
}

std::vector<Order> LayoutChoices::orders(const EngineOptions& options) const {
  if (!freedom_.order) return {options.order};
  const bool gathers_once = (context_.ranks > 1 && options.zero.stage >= 2) ||
                            homes(options).size() > 1 || options.offload.any();
  if (options.micros == 1 || options.pipeline.ranks > 1 || !gathers_once)
    return {Order::micro_first};
  return {Order::micro_first, Order::unit_first};
}

std::vector<HomePair> LayoutChoices::homes(const EngineOptions& mesh) const {
  std::vector<HomePair> pairs;
  for (const Tier optimizer : tiers(freedom_.optimizer_home, mesh.offload.optimizer))
    for (const Tier parameters : tiers(freedom_.parameter_home, mesh.offload.parameters))
      pairs.push_back({optimizer, parameters});
  std::stable_sort(pairs.begin(), pairs.end(), [](const HomePair& a, const HomePair& b) {
    return distance(a.optimizer) + distance(a.parameters) <
           distance(b.optimizer) + distance(b.parameters);
  });
  return pairs;
}

std::vector<Tier> LayoutChoices::tiers(bool free, Tier given) const {
  if (!free) return {given};
  std::vector<Tier> list = {Tier::device};
  if (limits_.host > 0) list.push_back(Tier::host);
  if (limits_.disk > 0) list.push_back(Tier::disk);
  return list;
}

std::vector<Travel> LayoutChoices::travels(const EngineOptions& options) const {
  const int64_t ahead = options.zero.prefetch_elems;
  std::vector<bool> overlaps = {options.zero.overlap};
  if (freedom_.overlap && summing_ranks(options, context_.ranks) > 1) overlaps = {true, false};
  std::vector<Travel> list;
  for (const bool overlap : overlaps) {
    list.push_back({overlap, ahead});
    if (freedom_.prefetch && options.zero.stage == 3 && overlap && ahead != 0)
      list.push_back({overlap, 0});
  }
  return list;
}

EngineOptions LayoutChoices::far_from_device(EngineOptions options) const {
  const HomePair far = homes(options).back();
  options.offload.optimizer = far.optimizer;
  options.offload.parameters = far.parameters;
  if (freedom_.ratio) options.offload.optimizer_ratio = 1;
  return options;
}

Recompute LayoutChoices::fewer_blocks(const Recompute& policy, int count) const {
  if (!policy.any() || policy.every > 0) return policy;
  if (count >= blocks()) count = Recompute::kAll;
  if (policy.joined) return Recompute::blocks(count);
  return {policy.attention > 0 ? count : 0, policy.mlp > 0 ? count : 0};
}

}  // namespace onefold
