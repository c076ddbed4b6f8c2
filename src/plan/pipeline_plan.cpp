#include "plan/pipeline_plan.h"

#include <algorithm>
#include <array>

#include "engine/lines.h"
#include "engine/stages.h"

namespace onefold {
namespace {

// How long each action of a rank's program takes on its lane, or in the place of computation: its
// spans in the trace of a dry step.
std::vector<double> action_seconds(Engine& dry, const Program& program, double begin) {
  std::vector<double> seconds(program.actions.size(), 0);
  for (const Lane lane : kAllLanes)
    for (const TraceSpan& span : dry.trace().spans(lane)) {
      if (span.begin < begin || span.action < 0) continue;
      const auto number = static_cast<size_t>(span.action);
      if (lane == program.actions[number].lane || lane == Lane::compute)
        seconds[number] += span.end - span.begin;
    }
  return seconds;
}

// What a rank does by itself.
bool is_work(const Action& action) {
  return computes(action) || action.verb == Verb::squares || action.verb == Verb::clip ||
         action.verb == Verb::step;
}

}  // namespace

double PipelinePlan::ideal_idle_share() const {
  const double others = pipeline.ranks - 1;
  return others / (static_cast<double>(pipeline.interleave) * micros + others);
}

double PipelinePlan::least_idle_seconds() const {
  double most = 0;
  for (size_t place = 0; place < programs.size(); ++place) {
    double busy = 0;
    for (size_t i = 0; i < programs[place].actions.size(); ++i)
      if (programs[place].actions[i].lane == Lane::compute && is_work(programs[place].actions[i]))
        busy += times.spans[place][i].end - times.spans[place][i].begin;
    most = std::max(most, busy);
  }
  return times.seconds - most;
}

PipelinePlan plan_pipeline(const ModelSpec& spec, const EngineOptions& options, int ranks,
                           int64_t comm_scratch_bytes, const Hardware& hardware) {
  PipelinePlan plan{.pipeline = pipeline_of(spec, options, 0), .micros = options.micros};
  const Model model = model_of(spec, options);
  for (const auto& unit : model.units) plan.unit_names.push_back(unit->name());
  std::vector<std::vector<double>> seconds;
  const Mesh mesh = mesh_of(options, ranks);
  for (int place = 0; place < mesh.size(Axis::pipeline); ++place) {
    const int rank = place * mesh.stage_ranks();
    const auto dry = Engine::plan(spec, options, ranks, comm_scratch_bytes, hardware, rank);
    const Ledger& ledger = dry->ledger();
    plan.peaks.push_back(
        {ledger.peak_bytes(), ledger.peak_bytes(Tier::host), ledger.peak_bytes(Tier::disk)});
    const double begin = dry->device().now();
    dry->trace().switch_on();
    dry->train_step(std::vector<BatchView>(
                        static_cast<size_t>(options.micros),
                        BatchView{.batch = options.micro_batch, .sequence = options.sequence}),
                    0);
    plan.ranks.push_back(rank);
    plan.programs.push_back(dry->program());
    plan.units.push_back(unit_traits(model, options, ranks, dry->pipeline()));
    seconds.push_back(action_seconds(*dry, dry->program(), begin));
  }
  plan.times = timeline(plan.programs, plan.units, [&](int place, size_t action) {
    return seconds[static_cast<size_t>(place)][action];
  });
  return plan;
}

}  // namespace onefold
