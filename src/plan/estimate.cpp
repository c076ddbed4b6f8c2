#include "plan/estimate.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "engine/lines.h"
#include "engine/programs.h"
#include "engine/stages.h"
#include "plan/pipeline_plan.h"

namespace onefold {
namespace {

int64_t work_of(const PipelinePlan& plan) {
  int64_t work = 0;
  for (const Program& program : plan.programs)
    work += work_of_plan(static_cast<int64_t>(program.actions.size()),
                         static_cast<int64_t>(plan.unit_names.size()), 2);
  return work;
}

Estimate planned_pipeline(const ModelSpec& spec, const EngineOptions& options,
                          const FitContext& context) {
  const PipelinePlan plan =
      plan_pipeline(spec, options, context.ranks, context.comm_scratch_bytes, context.hardware);
  Estimate found{.seconds = plan.times.seconds, .waits = plan.least_idle_seconds()};
  found.work = work_of(plan);
  for (const auto& peaks : plan.peaks) {
    found.device = std::max(found.device, peaks[static_cast<size_t>(Tier::device)]);
    found.host = std::max(found.host, peaks[static_cast<size_t>(Tier::host)]);
    found.disk = std::max(found.disk, peaks[static_cast<size_t>(Tier::disk)]);
  }
  return found;
}

// Of a step of many micro-batches one of few and one of more are planned: each further one adds as
// much.
struct PlannedMicros {
  int few, more;
};

PlannedMicros planned_micros(const EngineOptions& options) {
  const int ranks = options.pipeline.ranks;
  if (options.pipeline.interleave > 1) return {2 * ranks, 3 * ranks};
  if (ranks > 1) return {ranks + 1, ranks + 3};  // the first rank then has all that it may
  return options.order == Order::unit_first ? PlannedMicros{4, 8} : PlannedMicros{2, 3};
}

Estimate extended(const Estimate& few, const Estimate& more, double factor) {
  const auto add = [&](auto few_have, auto more_have) {
    return static_cast<decltype(more_have)>(static_cast<double>(more_have) +
                                            factor * static_cast<double>(more_have - few_have));
  };
  return {
      add(few.device, more.device), more.host,           more.disk, add(few.seconds, more.seconds),
      add(few.waits, more.waits),   few.work + more.work};
}

}  // namespace

int64_t work_of_plan(int64_t actions, int64_t units, int times) {
  constexpr int64_t kOfUnit = 8;  // its traits, slab and memory
  return times * actions + kOfUnit * units;
}

Estimate planned_step(const ModelSpec& spec, const EngineOptions& options,
                      const FitContext& context) {
  if (options.pipeline.ranks > 1) return planned_pipeline(spec, options, context);
  const auto dry =
      Engine::plan(spec, options, context.ranks, context.comm_scratch_bytes, context.hardware);
  const Ledger& ledger = dry->ledger();
  Estimate found{ledger.peak_bytes(), ledger.peak_bytes(Tier::host), ledger.peak_bytes(Tier::disk),
                 dry->device().now(), dry->times().communication};
  const bool host_steps = options.offload.optimizer == Tier::host;
  found.work = work_of_plan(static_cast<int64_t>(dry->program().actions.size()),
                            dry->program().units, host_steps ? 2 : 1);
  if (!host_steps) return found;
  // What the host steps is left to the step after it: that one counts.
  const BatchView batch{.batch = options.micro_batch, .sequence = options.sequence};
  dry->train_step(std::vector(static_cast<size_t>(options.micros), batch), 0);
  found.seconds = dry->device().now() - found.seconds;
  found.waits = dry->times().communication - found.waits;
  return found;
}

Estimate estimated_step(const ModelSpec& spec, const EngineOptions& options,
                        const FitContext& context, int& plans) {
  const PlannedMicros planned = planned_micros(options);
  ++plans;
  if (options.micros <= planned.more) return planned_step(spec, options, context);
  EngineOptions some = options;
  some.micros = planned.few;
  const Estimate few = planned_step(spec, some, context);
  some.micros = planned.more;
  ++plans;
  const double factor =
      static_cast<double>(options.micros - planned.more) / (planned.more - planned.few);
  return extended(few, planned_step(spec, some, context), factor);
}

const LeastSeconds::Micro& LeastSeconds::micro(const EngineOptions& options) {
  const Recompute& again = options.recompute;
  const auto [place, is_new] = micros_.try_emplace(
      fmt::format("{} {} {} {} {} {} {} {} {} {} {}", options.tensor, options.context,
                  int(options.context_method), options.expert, options.sequence_parallel,
                  options.overlap_chunks, options.micro_batch, again.attention, again.mlp,
                  again.joined, again.every));
  Micro& micro = place->second;
  if (!is_new) return micro;
  EngineOptions alone = options;
  alone.memory_limit_bytes = Ledger::kNoLimit;
  alone.zero = {.overlap = false};  // so that no message takes cores meanwhile
  alone.offload = {};
  alone.compression = {};
  alone.pipeline = {};
  alone.micros = 1;
  alone.order = Order::micro_first;
  const int ranks = options.tensor * options.context * options.expert;
  const PipelinePlan plan = plan_pipeline(spec_, alone, ranks, 0, hardware_);
  work_ += work_of(plan);
  // What would travel on a lane may take no time.
  EngineOptions beside = alone;
  beside.zero.overlap = true;
  const std::vector<UnitTraits> units = unit_traits(model_of(spec_, beside), beside, ranks);
  micro.forward.assign(plan.unit_names.size(), 0);
  micro.backward = micro.forward;
  bool turned = false;
  for (size_t i = 0; i < plan.programs[0].actions.size(); ++i) {
    const Action& action = plan.programs[0].actions[i];
    const bool between = action.verb == Verb::exchange && action.state != State::gradients;
    if (!computes(action) && !between) continue;
    turned |= action.verb == Verb::backward;
    const Timeline::Span& span = plan.times.spans[0][i];
    const Travels& travels = units[static_cast<size_t>(action.unit)].travels;
    if (action.lane != Lane::compute ||
        (between && travels.on_lane_after(action.of_backward, action.phase)))
      continue;
    // What is computed again belongs to backward.
    (turned ? micro.backward : micro.forward)[static_cast<size_t>(action.unit)] +=
        span.end - span.begin;
    micro.all += span.end - span.begin;
  }
  return micro;
}

const std::vector<int>& LeastSeconds::stages(const EngineOptions& options) {
  const auto [place, is_new] =
      stages_.try_emplace({options.pipeline.ranks, options.pipeline.interleave});
  if (is_new) place->second = pipeline_of(spec_, options, 0).first;
  return place->second;
}

// A rank of a pipeline takes all its turns after the first forward has come to it, and after its
// last backward those before it still have theirs: with zero bubbles a part of these alone.
double LeastSeconds::of(const EngineOptions& options) {
  const Micro& one = micro(options);
  const int ranks = options.pipeline.ranks;
  if (ranks == 1) return options.micros * one.all;
  const std::vector<int>& first = stages(options);
  const auto sum = [&](const std::vector<double>& of, int stage) {
    const auto at = [&](int unit) { return of.begin() + unit; };
    return std::accumulate(at(first[static_cast<size_t>(stage)]),
                           at(first[static_cast<size_t>(stage) + 1]), 0.0);
  };
  const bool later = options.pipeline.schedule == PipelineSchedule::zero_bubble;
  double least = 0, before = 0;
  for (int place = 0; place < ranks; ++place) {
    double turn = 0;
    for (int stage = place; stage < ranks * options.pipeline.interleave; stage += ranks)
      turn += sum(one.forward, stage) + sum(one.backward, stage);
    least = std::max(least, before + options.micros * turn);
    before += sum(one.forward, place) + (later ? 0 : sum(one.backward, place));
  }
  return least;
}

}  // namespace onefold
