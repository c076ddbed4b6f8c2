// Apart from communicators, because configurations are read where there are no ranks.
#include "engine/stages.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/text.h"

namespace onefold {
namespace {

double elems_of(const ParamSpec& param) { return static_cast<double>(param.elems()); }

// Of experts a token visits a few: with `visited` these alone count.
double parameters_of_unit(const Model& model, const Unit& unit, bool visited = false) {
  const ExpertSpec& experts = model.spec.experts;
  double elems = 0;
  for (const ParamSpec& param : unit.params()) {
    const bool of_experts = unit.experts() > 0 && param.name.find(".experts.") != std::string::npos;
    elems += elems_of(param) * (visited && of_experts ? static_cast<double>(experts.per_token) /
                                                            static_cast<double>(experts.count)
                                                      : 1);
  }
  for (const Unit::Shared shared : unit.shared())
    elems += elems_of(
        model.units[static_cast<size_t>(shared.unit)]->params()[static_cast<size_t>(shared.param)]);
  return elems;
}

// Two for each element of a matrix and token, in forward; a table is looked up. Attention adds the
// scores and what is weighted by them, over half of the positions.
double flops_of_unit(const Model& model, const Unit& unit, int64_t sequence) {
  if (unit.is_first()) return 0;
  double flops = 2 * parameters_of_unit(model, unit, true);
  if (unit.part() == BlockPart::attention || unit.part() == BlockPart::both)
    flops += 2 * static_cast<double>(sequence) *
             static_cast<double>(model.spec.num_heads * model.spec.head_dim);
  return flops;
}

}  // namespace

std::vector<double> unit_costs(const Model& whole, const EngineOptions& options) {
  std::vector<double> costs;
  for (const auto& unit : whole.units)
    costs.push_back(options.pipeline.by == PipelineOptions::By::parameters
                        ? parameters_of_unit(whole, *unit)
                        : flops_of_unit(whole, *unit, options.sequence));
  return costs;
}

// By the number of stages, for every number of units: the least that the most costly stage costs,
// and of ways that are equal in that, the one whose squares add up to the least.
std::vector<int> divided(const std::vector<double>& costs, int stages) {
  struct Way {
    double most = std::numeric_limits<double>::infinity(), squares = 0;
    int last = 0;  // the first unit of its last stage
    bool better_than(const Way& other) const {
      return most != other.most ? most < other.most : squares < other.squares;
    }
  };
  const auto units = static_cast<int>(costs.size());
  std::vector<double> before(costs.size() + 1, 0);
  std::partial_sum(costs.begin(), costs.end(), before.begin() + 1);
  const auto of = [&](int from, int to) {
    return before[static_cast<size_t>(to)] - before[static_cast<size_t>(from)];
  };
  std::vector<std::vector<Way>> ways(static_cast<size_t>(stages) + 1,
                                     std::vector<Way>(costs.size() + 1));
  ways[0][0].most = 0;
  for (int stage = 1; stage <= stages; ++stage)
    for (int end = stage; end <= units - (stages - stage); ++end)
      for (int from = stage - 1; from < end; ++from) {
        const Way& rest = ways[static_cast<size_t>(stage) - 1][static_cast<size_t>(from)];
        const double cost = of(from, end);
        const Way way{std::max(rest.most, cost), rest.squares + cost * cost, from};
        Way& best = ways[static_cast<size_t>(stage)][static_cast<size_t>(end)];
        if (way.better_than(best)) best = way;
      }
  std::vector<int> first(static_cast<size_t>(stages) + 1, units);
  for (int stage = stages; stage > 0; --stage)
    first[static_cast<size_t>(stage) - 1] =
        ways[static_cast<size_t>(stage)][static_cast<size_t>(first[static_cast<size_t>(stage)])]
            .last;
  return first;
}

Pipeline pipeline_of(const ModelSpec& spec, const EngineOptions& options, int place) {
  const PipelineOptions& given = options.pipeline;
  Pipeline pipeline{.ranks = given.ranks,
                    .place = place,
                    .interleave = given.interleave,
                    .schedule = given.schedule,
                    .first = {}};
  if (given.ranks == 1) return pipeline;
  if (given.units.empty()) {
    pipeline.first = divided(unit_costs(Model(spec), options), pipeline.stages());
  } else {
    pipeline.first.push_back(0);
    for (const int units : given.units) pipeline.first.push_back(pipeline.first.back() + units);
  }
  return pipeline;
}

std::string obstacle_to_pipeline(const ModelSpec& spec, const EngineOptions& options) {
  const PipelineOptions& given = options.pipeline;
  if (given.ranks == 1) return "";
  std::vector<std::string> reasons;
  const int64_t units = (spec.parallel == Parallel::no ? 2 : 1) * spec.num_layers + 2;
  const int64_t stages = int64_t{given.ranks} * given.interleave;
  if (stages > units)
    reasons.push_back(fmt::format(
        "the model has {} units (embedding, those of each layer, head), fewer than the "
        "{} stages{}",
        units, stages,
        given.interleave > 1 ? fmt::format(" (pipeline.interleave {})", given.interleave) : ""));
  if (given.interleave > 1 && given.schedule != PipelineSchedule::one_f_one_b)
    reasons.push_back(
        fmt::format("pipeline.interleave is {}, and the schedule that interleaves is "
                    "1f1b (pipeline.schedule)",
                    given.interleave));
  if (given.schedule == PipelineSchedule::zero_bubble && options.offload.any())
    reasons.emplace_back(
        "pipeline.schedule zb-h1 keeps everything on the device yet: leave out offloading "
        "(zero_optimization, activation_checkpointing), or take 1f1b");
  if (given.interleave > 1 && options.micros % given.ranks != 0)
    reasons.push_back(fmt::format(
        "interleaved stages take micro-batches in groups of {} (pipeline.interleave {}), "
        "and gradient_accumulation_steps is {}",
        given.ranks, given.interleave, options.micros));
  if (!given.units.empty()) {
    const int64_t sum = std::accumulate(given.units.begin(), given.units.end(), int64_t{0});
    if (static_cast<int64_t>(given.units.size()) != stages || sum != units)
      reasons.push_back(fmt::format(
          "pipeline.partition has {} numbers that add up to {}, and there are {} stages "
          "of {} units in all",
          given.units.size(), sum, stages, units));
  }
  if (options.order == Order::unit_first)
    reasons.emplace_back(
        "run.accumulate is unit_first, and a pipeline takes micro-batches in the order of "
        "pipeline.schedule; gpipe is the nearest to it");
  if (spec.tie_embeddings && options.training && options.offload.optimizer != Tier::device)
    reasons.emplace_back(
        "gradients of tied embeddings, which the first and the last stage sum, cannot live on "
        "another tier yet (zero_optimization.offload_optimizer); untie them "
        "(model.tie_embeddings false) or leave the optimizer on the device");
  if (options.local.on()) reasons.emplace_back("delay.local_steps does not go with a pipeline yet");
  if (reasons.empty()) return "";
  return fmt::format("mesh.pipeline is {}, and the run cannot be divided so: {}", given.ranks,
                     join(reasons, "; "));
}

}  // namespace onefold
