#include "engine/programs.h"

#include <algorithm>

#include "base/text.h"
#include "engine/lines.h"
#include "engine/unit_state.h"

namespace onefold {
namespace {

// A unit by its name, a block by its number ("block.3"), or all whose names begin alike
// ("block.*").
bool frozen_by(const std::string& unit, const std::string& pattern) {
  if (pattern.ends_with('*')) return unit.starts_with(pattern.substr(0, pattern.size() - 1));
  return unit == pattern || unit.starts_with(pattern + ".");
}

// Of one block for all.
std::vector<std::string> names_to_show(const std::vector<std::string>& names) {
  std::vector<std::string> shown;
  for (const std::string& name : names)
    if (!name.starts_with("block."))
      shown.push_back(name);
    else if (name.starts_with("block.0."))
      shown.push_back("block.*." + name.substr(std::string_view("block.0.").size()));
  return shown;
}

// Every group has parameters. Units all of whose parameters are in frozen ones are frozen.
void apply_groups(const Model& model, const OptimizerSpec& optimizer, std::vector<bool>& frozen) {
  std::vector<std::string> names;
  for (const auto& unit : model.units)
    for (const ParamSpec& param : unit->params()) names.push_back(param.name);
  for (size_t g = 0; g < optimizer.groups.size(); ++g)
    for (const std::string& pattern : optimizer.groups[g].match)
      if (std::none_of(names.begin(), names.end(), [&](const std::string& name) {
            return ParamGroup{.match = {pattern}}.has(name);
          }))
        user_error(
            "optimizer.groups[{}].match: the model has no parameter \"{}\"{}; * stands for any "
            "part "
            "of a name, and there are {}",
            g, pattern, did_you_mean(pattern, names), join(names_to_show(names), ", "));
  for (size_t u = 0; u < model.units.size() && !optimizer.groups.empty(); ++u) {
    const std::vector<ParamSpec>& params = model.units[u]->params();
    if (std::all_of(params.begin(), params.end(), [&](const ParamSpec& param) {
          const ParamGroup* group = optimizer.group_of(param.name);
          return group && group->frozen;
        }))
      frozen[u] = true;
  }
}

std::vector<bool> frozen_units(const Model& model, const EngineOptions& options) {
  std::vector<bool> frozen(model.units.size());
  apply_groups(model, options.optimizer, frozen);
  if (model.spec.lora.enabled())
    for (size_t u = 0; u < model.units.size(); ++u) {
      const std::vector<ParamSpec>& params = model.units[u]->params();
      frozen[u] = std::none_of(params.begin(), params.end(),
                               [](const ParamSpec& param) { return param.adapter; });
    }
  for (const std::string& pattern : options.frozen) {
    bool found = false;
    std::vector<std::string> names;
    for (size_t u = 0; u < model.units.size(); ++u) {
      names.push_back(model.units[u]->name());
      if (!frozen_by(names.back(), pattern)) continue;
      frozen[u] = found = true;
    }
    if (!found)
      user_error(
          "run.freeze: the model has no unit \"{}\"{}; its units are embedding, block.0 to "
          "block.{} (each of block.N.attention and block.N.mlp) and head; block.* means all blocks",
          pattern, did_you_mean(pattern, names), model.spec.num_layers - 1);
  }
  if (std::find(frozen.begin(), frozen.end(), false) == frozen.end())
    user_error(
        "run.freeze, or a frozen group of optimizer.groups, has every unit: nothing would be "
        "trained");
  return frozen;
}

// Ranks and tiers: what is not whole on the device is brought there, and what leaves it is sent.
void apply_homes(Program& program, const std::vector<UnitTraits>& units,
                 const EngineOptions& options, int ranks) {
  const ZeroOptions& zero = options.zero;
  const bool tiers = options.offload.any();
  if (ranks == 1 && !tiers) return;  // of the data axis
  shard(program, units, ranks,
        {.max_live_elems = zero.max_live_elems, .max_reuse_distance = zero.max_reuse_distance});
  if (zero.node_ranks > 1) gather_inside(program, units);
  if (ranks > 1) {
    // Where units have packets of their own kinds, each travels alone.
    bucket(program, units, options.compression.adaptive ? 0 : zero.reduce_bucket_elems,
           zero.gather_bucket_elems);
    compress(program, {.gradients = !options.compression.gradients.none(),
                       .parameters = !options.compression.weights.none()});
  }
  if (tiers) offload(program, units);
  if (options.offload.activations != Tier::device) offload_activations(program);
  const OverlapOf of{.messages = ranks > 1 && zero.overlap, .copies = tiers};
  if (!of.messages && !of.copies) return;
  overlap(program, units, of);
  prefetch(program, units,
           zero.prefetch_elems == ZeroOptions::kAuto ? kOneUnit : zero.prefetch_elems,
           zero.max_live_elems);
}

}  // namespace

Homes homes_of(const EngineOptions& options, int64_t unit_elems, int ranks) {
  const ZeroOptions& zero = options.zero;
  Homes homes;
  homes.parameters.dtype = options.precision.compute;
  homes.gradients.dtype = options.precision.gradients;
  homes.parameters.tier = options.offload.parameters;
  homes.gradients.tier = homes.optimizer.tier = options.offload.optimizer;
  if (!options.training) homes.gradients.tier = homes.optimizer.tier = Tier::device;
  if (ranks == 1) return homes;
  homes.parameters.sharded = zero.stage >= 3 && unit_elems > zero.persistence_elems;
  homes.gradients.sharded = zero.stage >= 2;
  homes.optimizer.sharded = zero.stage >= 1;
  return homes;
}

namespace {

// Keeps on the device, or in the host's memory, what is to stay there: unit by unit in order, as
// long as half of a unit is within the share.
void keep_shares(std::vector<UnitTraits>& units, const OffloadOptions& offload) {
  int64_t trained = 0, passed = 0, in_host = 0;
  for (const UnitTraits& unit : units) trained += unit.frozen ? 0 : unit.trained_elems();
  const auto on_device =
      static_cast<int64_t>((1 - offload.optimizer_ratio) * static_cast<double>(trained));
  for (UnitTraits& unit : units) {
    if (!unit.frozen && passed + unit.trained_elems() / 2 < on_device)
      unit.homes.gradients.tier = unit.homes.optimizer.tier = Tier::device;
    passed += unit.frozen ? 0 : unit.trained_elems();
    if (unit.homes.parameters.tier != Tier::disk ||
        in_host + unit.elems > offload.host_parameter_elems)
      continue;
    unit.homes.parameters.tier = Tier::host;
    in_host += unit.elems;
  }
}

// The host steps what lives in its memory, as long as the parameters are there too, or a master
// copy is. A share of it, if only that is asked for, spread over the units.
void choose_host_steps(std::vector<UnitTraits>& units, const EngineOptions& options) {
  double offered = 0, taken = 0;
  for (UnitTraits& unit : units) {
    const Homes& homes = unit.homes;
    const bool may = unit.held() && options.optimizer.elementwise() && !unit.frozen &&
                     !unit.adapted() && homes.optimizer.tier == Tier::host &&
                     (homes.parameters.tier == Tier::host ||
                      (homes.parameters.tier == Tier::device && options.precision.has_master()));
    if (!may) continue;
    const auto elems = static_cast<double>(unit.elems);
    offered += elems;
    unit.host_steps = taken + elems / 2 < options.offload.host_step_ratio * offered;
    if (unit.host_steps) taken += elems;
  }
}

}  // namespace

namespace {

bool travels(Role role, const Model& model) {
  switch (role) {
    case Role::none:
      return false;
    case Role::sum:
      return !model.share.whole() && !model.share.scattered;  // else where the unit ends
    case Role::gather:
      return !model.share.whole();
    case Role::exchange:
    case Role::shift:
      return model.share.parts > 1;
    case Role::dispatch:
      return !model.experts.whole();
  }
  return false;
}

Travels travels_of(const Unit& unit, const Model& model, int64_t tokens) {
  Travels all;
  for (const bool backward : {false, true})
    for (int i = 0; i < unit.phases(backward, tokens); ++i) {
      const Phase phase = unit.phase(backward, i, tokens);
      const bool after = travels(phase.role, model);
      (backward ? all.backward : all.forward).push_back(after);
      (backward ? all.backward_rows : all.forward_rows)
          .push_back(after && phase.by_rows && model.share.overlapped);
    }
  for (const ParamSpec& param : unit.params())
    all.gradients |= param.summed_over.any() && is_saved(model.spec, param);
  return all;
}

// What travels along these axes has a lane where something is computed beside it; in a ring all
// turns do, for which there is one set of channels.
bool has_lane(Role role, bool beside_next) {
  return role == Role::shift || (beside_next && (role == Role::exchange || role == Role::dispatch));
}

void note_lanes(const Unit& unit, int64_t tokens, UnitTraits& traits) {
  PhaseCounts& phases = traits.phases;
  for (const bool backward : {false, true}) {
    std::vector<bool>& beside = backward ? phases.backward_beside : phases.forward_beside;
    std::vector<bool>& lane = backward ? traits.travels.backward_lane : traits.travels.forward_lane;
    const int count = unit.phases(backward, tokens);
    for (int i = 0; i < count; ++i) {
      const Phase phase = unit.phase(backward, i, tokens),
                  next = i + 1 < count ? unit.phase(backward, i + 1, tokens) : Phase{};
      beside.push_back(phase.beside);
      lane.push_back(has_lane(phase.role, next.beside || next.by_weights));
    }
  }
}

}  // namespace

std::vector<UnitTraits> unit_traits(const Model& model, const EngineOptions& options, int all_ranks,
                                    const Pipeline& pipeline) {
  const std::vector<bool> frozen = frozen_units(model, options);
  const int64_t align =
      slab_alignment(homes_of(options, 0, all_ranks), kept_states(options, false));
  std::vector<UnitTraits> traits;
  int number = 0;  // of units that are parts of blocks
  for (size_t u = 0; u < model.units.size(); ++u) {
    const Unit& unit = *model.units[u];
    UnitTraits one;
    if (!model.experts.whole() && unit.experts() > 0)
      one.ranks = expert_summing_ranks(options, all_ranks);
    const int ranks = one.ranks_of(summing_ranks(options, all_ranks));
    one.elems = SlabLayout(unit.params(), ranks, align, SlabOf::base).elems();
    one.adapter_elems = SlabLayout(unit.params(), ranks, align, SlabOf::adapters).elems();
    one.homes = homes_of(options, one.elems, ranks);
    if (one.homes.parameters.sharded && options.zero.node_ranks > 1)
      one.node_ranks =
          one.ranks > 0 ? expert_node_ranks(options, all_ranks) : options.zero.node_ranks;
    const SlabOf trained = one.adapted() ? SlabOf::adapters : SlabOf::all;
    const auto whole_elems = [&](OptimizerState::Of of) {
      return whole_layout(unit.params(), align, trained, of).elems();
    };
    one.vector_elems = whole_elems(OptimizerState::Of::vectors);
    one.factor_elems = whole_elems(OptimizerState::Of::factors);
    one.ratio_elems = whole_elems(OptimizerState::Of::ratios);
    one.has_hidden = std::any_of(unit.params().begin(), unit.params().end(),
                                 [](const ParamSpec& param) { return shape_of(param).hidden; });
    one.frozen = frozen[u];
    one.is_first = unit.is_first();
    one.has_loss = unit.has_loss();
    one.segment = segment_of(options.recompute, unit, number);
    number += unit.part() != BlockPart::none;
    const int64_t tokens = options.tokens();
    one.phases = {unit.phases(false, tokens), unit.phases(true, tokens)};
    for (int i = 0; i < one.phases.backward; ++i)
      one.phases.by_weights.push_back(unit.phase(true, i, tokens).by_weights);
    if (!model.share.whole() || model.share.parts > 1 || !model.experts.whole())
      one.travels = travels_of(unit, model, tokens);
    if (exchanges_beside(options)) note_lanes(unit, tokens, one);
    one.forward_reads.push_back(static_cast<int>(u));
    for (const Unit::Shared shared : unit.shared()) {
      one.forward_reads.push_back(shared.unit);
      one.adds_to.push_back(shared.unit);
    }
    if (unit.backward_reads_parameters()) one.backward_reads = one.forward_reads;
    traits.push_back(std::move(one));
  }
  if (pipeline.ranks > 1) place_units(traits, pipeline);
  keep_shares(traits, options.offload);
  if (options.training) choose_host_steps(traits, options);
  return traits;
}

namespace {

// Interleaved stages send what the next rank takes later than the one after it.
void add_lanes(Program& program, const Pipeline& pipeline) {
  if (pipeline.ranks > 1) pass_between_stages(program, pipeline.interleave > 1 ? 2 : 1);
}

void add_exchange_lane(Program& program, const EngineOptions& options,
                       const std::vector<UnitTraits>& units) {
  if (has_exchange_lane(options)) overlap_exchanges(program, units, options.overlap_chunks);
}

}  // namespace

Program training_program(const EngineOptions& options, const std::vector<UnitTraits>& units,
                         int ranks, const Pipeline& pipeline) {
  Program program = build_training_step(
      {.units = units, .micros = options.micros, .order = options.order, .pipeline = pipeline});
  accumulate(program);
  if (options.recompute.any()) recompute(program, units);
  apply_homes(program, units, options, summing_ranks(options, ranks));
  add_lanes(program, pipeline);
  if (options.split_phases || units_exchange(options)) split_phases(program, units);
  add_exchange_lane(program, options, units);
  return program;
}

Program evaluation_program(const EngineOptions& options, const std::vector<UnitTraits>& units,
                           int ranks, const Pipeline& pipeline) {
  Program program = build_evaluation(static_cast<int>(units.size()), pipeline);
  apply_homes(program, units, options, summing_ranks(options, ranks));
  add_lanes(program, pipeline);
  if (units_exchange(options)) split_phases(program, units);
  add_exchange_lane(program, options, units);
  return program;
}

StateBytes state_bytes(const std::vector<UnitTraits>& units, const EngineOptions& options,
                       int all_ranks, bool on_device) {
  StateBytes bytes;
  const auto counts = [&](const Home& home) { return !on_device || !home.offloaded(); };
  for (const UnitTraits& unit : units) {
    const int ranks = unit.ranks_of(summing_ranks(options, all_ranks));
    const auto kept = [&](const Home& home, int64_t elems) {
      return home.sharded ? elems / ranks : elems;
    };
    const Homes& homes = unit.homes;
    if (counts(homes.parameters))
      bytes.parameters += (kept(homes.parameters, unit.elems) + unit.adapter_elems) *
                          dtype_bytes(homes.parameters.dtype);
    if (unit.node_ranks > 0)
      bytes.parameters += unit.elems / unit.node_ranks * dtype_bytes(homes.parameters.dtype);
    if (unit.frozen) continue;
    const int64_t trained = unit.trained_elems();
    if (counts(homes.gradients))
      bytes.gradients += kept(homes.gradients, trained) * dtype_bytes(homes.gradients.dtype);
    if (!counts(homes.optimizer)) continue;
    for (const OptimizerState& state : kept_states(options, unit.has_hidden)) {
      using Of = OptimizerState::Of;
      const int64_t elems = state.of == Of::vectors   ? unit.vector_elems
                            : state.of == Of::factors ? unit.factor_elems
                            : state.of == Of::ratios  ? unit.ratio_elems
                                                     : kept(homes.optimizer, trained) / state.block;
      bytes.optimizer += elems * dtype_bytes(state.dtype);
    }
    if (options.training)
      bytes.optimizer += static_cast<int64_t>(own_states_of(options, ranks).size()) * trained *
                         dtype_bytes(DType::f32);
  }
  return bytes;
}

}  // namespace onefold
