#include "plan/least_bytes.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "engine/lines.h"
#include "engine/programs.h"
#include "engine/stages.h"

namespace onefold {
namespace {

// Where there is no pipeline: forwards go all the way, of one micro-batch or of all.
std::pair<int, int> most_under_way(const EngineOptions& options) {
  if (options.order == Order::unit_first) return {options.micros, 0};
  return {1, options.micros > 1 ? 1 : 0};
}

// Further micro-batches find as many under way as these.
int micros_walked(const PipelineOptions& pipeline, int micros) {
  return std::min(micros, 3 * pipeline.ranks);
}

}  // namespace

const std::vector<LeastBytes::State>& LeastBytes::states(const EngineOptions& given) {
  const OffloadOptions& offload = given.offload;
  const auto [place, is_new] = states_.try_emplace(
      fmt::format("{} {} {} {} {} {} {} {}", given.tensor, given.context, given.expert,
                  given.pipeline.ranks, given.pipeline.interleave, given.zero.stage,
                  int(offload.optimizer), int(offload.parameters)));
  std::vector<State>& found = place->second;
  if (!is_new) return found;
  EngineOptions options = given;
  options.offload.optimizer_ratio = 1;  // which units stay behind is known by rank alone
  const std::vector<UnitTraits> units = unit_traits(model_of(spec_, options), options, ranks_);
  const std::vector<int>& first = stages(options);
  found.resize(static_cast<size_t>(options.pipeline.ranks));
  size_t stage = 0;
  for (size_t u = 0; u < units.size(); ++u) {
    while (static_cast<int>(u) >= first[stage + 1]) ++stage;
    State& one = found[stage % found.size()];
    const StateBytes bytes = state_bytes({units[u]}, options, ranks_, true);
    one.whole += bytes.total();
    one.gradients += bytes.gradients;
    // The rank that computes what another one has a copy of makes its gradient last of all.
    const int unit = static_cast<int>(u);
    if (options.pipeline.ranks > 1 &&
        std::any_of(units.begin(), units.end(), [&](const UnitTraits& other) {
          return std::find(other.adds_to.begin(), other.adds_to.end(), unit) != other.adds_to.end();
        }))
      one.late += bytes.gradients;
    else if (!units[u].frozen)
      one.growing += units[u].trained_elems() * dtype_bytes(units[u].homes.gradients.dtype);
  }
  return found;
}

const std::vector<LeastBytes::Unit>& LeastBytes::units(const EngineOptions& options) {
  const auto [place, is_new] = units_.try_emplace(
      fmt::format("{} {} {} {} {} {}", options.tensor, options.context, int(options.context_method),
                  options.expert, scatters(options), options.micro_batch));
  std::vector<Unit>& found = place->second;
  if (!is_new) return found;
  const Model model = model_of(spec_, options);
  const DType type = options.precision.compute;
  const int64_t residual = options.tokens() / (model.share.scattered ? model.share.count : 1) *
                           spec_.hidden_size * dtype_bytes(type);
  const std::vector<UnitTraits> traits = unit_traits(model, options, ranks_);
  bool trained = false;
  for (size_t u = 0; u < model.units.size(); ++u) {
    const onefold::Unit& unit = *model.units[u];
    trained |= !traits[u].frozen;
    const bool keeps = trained && !unit.has_loss();
    found.push_back({unit.saved_bytes(options.micro_batch, options.part_length(), type),
                     unit.is_first() ? 0 : residual, unit.block(), unit.part(), keeps});
  }
  return found;
}

const std::vector<int>& LeastBytes::stages(const EngineOptions& options) {
  const auto [place, is_new] =
      stages_.try_emplace({options.pipeline.ranks, options.pipeline.interleave});
  if (is_new) {
    if (options.pipeline.ranks > 1)
      place->second = pipeline_of(spec_, options, 0).first;
    else
      place->second = {0, static_cast<int>(model_of(spec_, options).units.size())};
  }
  return place->second;
}

const std::vector<LeastBytes::UnderWay>& LeastBytes::under_way(const EngineOptions& options) {
  const PipelineOptions& given = options.pipeline;
  const int micros = micros_walked(given, options.micros);
  const auto [place, is_new] =
      under_way_.try_emplace({given.ranks, given.interleave, int(given.schedule), micros});
  std::vector<UnderWay>& found = place->second;
  if (!is_new) return found;
  Pipeline pipeline{.ranks = given.ranks, .interleave = given.interleave};
  pipeline.schedule = given.schedule;
  pipeline.first = stages(options);
  const auto stages_here = static_cast<size_t>(given.interleave);
  for (pipeline.place = 0; pipeline.place < pipeline.ranks; ++pipeline.place) {
    UnderWay& most = found.emplace_back(
        UnderWay{std::vector<int>(stages_here, 0), std::vector<int>(stages_here, 0)});
    std::vector<int> held(stages_here, 0);
    std::vector<bool> made(stages_here, false);  // gradients
    const bool weights_later = given.schedule == PipelineSchedule::zero_bubble;
    const auto sum = [](const std::vector<int>& of) {
      return std::accumulate(of.begin(), of.end(), 0);
    };
    for (const Turn& turn : turns_of(pipeline, micros)) {
      const auto number = static_cast<size_t>(turn.number);
      if (turn.backward) {
        if (!turn.weights) --held[number];
        if (turn.weights == weights_later) made[number] = true;
        continue;
      }
      ++held[number];
      const bool all_made = std::find(made.begin(), made.end(), false) == made.end();
      std::vector<int>& so_far = all_made ? most.later : most.first;
      if (sum(held) > sum(so_far)) so_far = held;
    }
  }
  return found;
}

std::vector<int64_t> LeastBytes::kept(const EngineOptions& options) {
  const std::vector<int>& first = stages(options);
  std::vector<int64_t> bytes(first.size() - 1, 0);
  if (options.offload.activations != Tier::device) return bytes;
  const std::vector<Unit>& all = units(options);
  size_t stage = 0;
  int number = 0, segment_before = -1;
  for (size_t u = 0; u < all.size(); ++u) {
    while (static_cast<int>(u) >= first[stage + 1]) ++stage;
    const Unit& unit = all[u];
    const int segment = segment_of(options.recompute, unit.part, unit.block, number);
    number += unit.part != BlockPart::none;
    // Of a segment the first unit of a rank keeps its input.
    const bool begins =
        segment < 0 || segment != segment_before || static_cast<int>(u) == first[stage];
    segment_before = segment;
    if (!unit.keeps) continue;
    bytes[stage] += (begins ? unit.input : 0) + (segment < 0 ? unit.saved : 0);
  }
  return bytes;
}

int64_t LeastBytes::of_state(const EngineOptions& options) {
  int64_t most = 0;
  for (const State& state : states(options)) most = std::max(most, state.whole);
  return most;
}

int64_t LeastBytes::of(const EngineOptions& options) {
  const std::vector<State>& state = states(options);
  const std::vector<int64_t> activations = kept(options);
  // Of several stages the gradients of one may be complete before those of another begin.
  const bool grow =
      options.micros > 1 && options.order == Order::micro_first && options.pipeline.interleave == 1;
  const auto with_gradients = [&](const State& own) {
    const int64_t made = own.whole - own.late;
    return grow ? std::max(made, own.whole - own.gradients + own.growing) : made;
  };
  if (options.pipeline.ranks == 1) {
    const auto [first, later] = most_under_way(options);
    return std::max({state[0].whole, state[0].whole - state[0].gradients + first * activations[0],
                     with_gradients(state[0]) + later * activations[0]});
  }
  const bool all_at_once = options.pipeline.schedule == PipelineSchedule::gpipe;
  const std::vector<int> all(static_cast<size_t>(options.pipeline.interleave), options.micros);
  int64_t most = 0;
  for (size_t place = 0; place < state.size(); ++place) {
    const auto held = [&](const std::vector<int>& of) {
      int64_t bytes = 0;
      for (size_t number = 0; number < of.size(); ++number)
        bytes += of[number] * activations[number * state.size() + place];
      return bytes;
    };
    const State& own = state[place];
    const int64_t before = own.whole - own.gradients;
    most = std::max(most, own.whole);
    if (all_at_once) {
      most = std::max(most, before + held(all));
    } else {
      const UnderWay& one = under_way(options)[place];
      most = std::max({most, before + held(one.first), with_gradients(own) + held(one.later)});
    }
    if (grow) most = std::max(most, with_gradients(own));
  }
  return most;
}

}  // namespace onefold
