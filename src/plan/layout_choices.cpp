#include "plan/layout_choices.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "engine/lines.h"
#include "engine/programs.h"
#include "model/spec_limits.h"

namespace onefold {
namespace {

// Of a step that is planned: a plan for it takes a few hundredths of a second, and dozens are made.
constexpr int64_t kMostUnits = int64_t{1} << 15;
constexpr size_t kMostBatches = 8;  // sizes of a micro-batch that are tried
constexpr int kMostInterleave = 8;

}  // namespace

std::string layout_key(const EngineOptions& o) {
  const PipelineOptions& p = o.pipeline;
  return fmt::format("{} {} {} {} {} {} {} {} {}|", o.tensor, o.context, int(o.context_method),
                     o.expert, p.ranks, p.interleave, int(p.schedule), o.sequence_parallel,
                     o.overlap_chunks) +
         fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {}", o.zero.stage, int(o.order),
                     o.micro_batch, o.micros, o.recompute.attention, o.recompute.mlp,
                     o.recompute.joined, o.recompute.every,
                     10 * int(o.offload.optimizer) + int(o.offload.parameters),
                     o.offload.optimizer_ratio, o.zero.overlap, o.zero.prefetch_elems,
                     o.zero.reduce_bucket_elems, o.offload.host_step_ratio);
}

EngineOptions with(EngineOptions options, const HomePair& homes, const Travel& travel) {
  options.offload.optimizer = homes.optimizer;
  options.offload.parameters = homes.parameters;
  options.zero.overlap = travel.overlap;
  options.zero.prefetch_elems = travel.prefetch_elems;
  return options;
}

bool covered(const std::vector<TooLarge>& known, const TooLarge& one) {
  return std::any_of(known.begin(), known.end(), [&](const TooLarge& other) {
    return other.mesh == one.mesh && other.passing == one.passing && other.policy == one.policy &&
           other.stage == one.stage && other.order == one.order &&
           other.micro_batch <= one.micro_batch;
  });
}

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

std::vector<std::function<void(EngineOptions&)>> LayoutChoices::refinements(
    const EngineOptions& options) const {
  std::vector<std::function<void(EngineOptions&)>> list;
  if (options.tensor > 1 && !options.sequence_parallel && freedom_.overlap_chunks)
    for (const int chunks : {2, 4, 8})
      list.push_back([=](EngineOptions& o) { o.overlap_chunks = chunks; });
  const ZeroOptions& zero = options.zero;
  if (summing_ranks(options, context_.ranks) > 1 && freedom_.reduce_bucket)
    for (const int64_t factor : {8, 64})
      list.push_back([elems = factor * zero.reduce_bucket_elems](EngineOptions& o) {
        o.zero.reduce_bucket_elems = elems;
      });
  if (freedom_.prefetch && zero.stage == 3 && zero.overlap && zero.prefetch_elems != 0)
    for (const int64_t units : {2, 4})
      list.push_back([elems = units * largest_block_unit(options)](EngineOptions& o) {
        o.zero.prefetch_elems = elems;
      });
  if (freedom_.host_step && options.offload.optimizer == Tier::host)
    for (const double share : {0.9, 0.8, 0.7, 0.6, 0.4, 0.0})
      list.push_back([=](EngineOptions& o) { o.offload.host_step_ratio = share; });
  return list;
}

int64_t LayoutChoices::largest_block_unit(const EngineOptions& options) const {
  int64_t most = 0;
  for (const UnitTraits& unit : unit_traits(model_of(spec_, options), options, context_.ranks))
    if (!unit.is_first && !unit.has_loss) most = std::max(most, unit.elems);
  return most;
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
