#include "engine/programs.h"

#include <algorithm>

#include "base/text.h"

namespace onefold {
namespace {

bool frozen_by(const std::string& unit, const std::string& pattern) {
  if (pattern.ends_with('*')) return unit.starts_with(pattern.substr(0, pattern.size() - 1));
  return unit == pattern;
}

std::vector<bool> frozen_units(const Model& model, const std::vector<std::string>& patterns) {
  std::vector<bool> frozen(model.units.size());
  for (const std::string& pattern : patterns) {
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
          "block.{} and head (block.* means all blocks)",
          pattern, did_you_mean(pattern, names), model.spec.num_layers - 1);
  }
  if (std::find(frozen.begin(), frozen.end(), false) == frozen.end())
    user_error("run.freeze names every unit: nothing would be trained");
  return frozen;
}

bool tied(const Model& model) { return !model.units.back()->shared().empty(); }

void apply_zero(Program& program, const std::vector<UnitTraits>& units, const ZeroOptions& zero) {
  shard(program, units,
        {.max_live_elems = zero.max_live_elems, .max_reuse_distance = zero.max_reuse_distance});
  bucket(program, units, zero.reduce_bucket_elems, zero.gather_bucket_elems);
  if (!zero.overlap) return;
  overlap(program, units);
  prefetch(program, units,
           zero.prefetch_elems == ZeroOptions::kAuto ? kOneUnit : zero.prefetch_elems,
           zero.max_live_elems);
}

}  // namespace

Residence residence_of(const ZeroOptions& zero, int64_t unit_elems, int ranks) {
  if (ranks == 1) return {};
  return {.shard_parameters = zero.stage >= 3 && unit_elems > zero.persistence_elems,
          .shard_gradients = zero.stage >= 2,
          .shard_optimizer = zero.stage >= 1};
}

std::vector<UnitTraits> unit_traits(const Model& model, const EngineOptions& options, int ranks) {
  const std::vector<bool> frozen = frozen_units(model, options.frozen);
  std::vector<UnitTraits> traits;
  for (size_t u = 0; u < model.units.size(); ++u) {
    const Unit& unit = *model.units[u];
    UnitTraits one;
    one.elems = SlabLayout(unit.params(), ranks).elems();
    one.residence = residence_of(options.zero, one.elems, ranks);
    one.frozen = frozen[u];
    one.forward_reads.push_back(static_cast<int>(u));
    for (const Unit::Shared shared : unit.shared()) one.forward_reads.push_back(shared.unit);
    if (unit.backward_reads_parameters()) one.backward_reads = one.forward_reads;
    traits.push_back(std::move(one));
  }
  return traits;
}

Program training_program(const Model& model, const EngineOptions& options, int ranks) {
  const std::vector<UnitTraits> units = unit_traits(model, options, ranks);
  StepShape shape{.units = static_cast<int>(units.size()),
                  .micros = options.micros,
                  .order = options.order,
                  .tied = tied(model)};
  for (const UnitTraits& unit : units) shape.frozen.push_back(unit.frozen);
  Program program = build_training_step(shape);
  accumulate(program);
  if (options.recompute) recompute(program);
  if (ranks > 1) apply_zero(program, units, options.zero);
  return program;
}

Program evaluation_program(const Model& model, const EngineOptions& options, int ranks) {
  Program program = build_evaluation(static_cast<int>(model.units.size()));
  if (ranks > 1) apply_zero(program, unit_traits(model, options, ranks), options.zero);
  return program;
}

StateBytes state_bytes(const std::vector<UnitTraits>& units, int ranks, const StateWidths& widths) {
  StateBytes bytes;
  for (const UnitTraits& unit : units) {
    const auto held = [&](bool sharded) { return sharded ? unit.elems / ranks : unit.elems; };
    bytes.parameters += widths.parameters * held(unit.residence.shard_parameters);
    if (unit.frozen) continue;
    bytes.gradients += widths.gradients * held(unit.residence.shard_gradients);
    bytes.optimizer += widths.optimizer * held(unit.residence.shard_optimizer);
  }
  return bytes;
}

}  // namespace onefold
