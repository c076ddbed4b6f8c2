#include "engine/unit_state.h"

#include <algorithm>
#include <cstring>

#include "engine/options.h"
#include "tensor/convert.h"

namespace onefold {

int64_t slab_alignment(const Homes& homes, const std::vector<OptimizerState>& states) {
  int64_t elems = 1;
  const auto consider = [&](DType dtype) {
    elems = std::max(elems, Ledger::kAlignment / dtype_bytes(dtype));
  };
  consider(homes.parameters.dtype);
  consider(homes.gradients.dtype);
  for (const OptimizerState& state : states) {
    if (state.block == 1)
      consider(state.dtype);
    else
      elems = std::max(elems, state.block);
  }
  return elems;
}

SlabLayout whole_layout(std::span<const ParamSpec> params, int64_t align_elems, SlabOf trained,
                        OptimizerState::Of of) {
  std::vector<ParamSpec> kept(params.begin(), params.end());
  for (ParamSpec& param : kept) {
    const bool here = trained == SlabOf::all || param.adapter == (trained == SlabOf::adapters);
    const OptimizerState state{.name = {}, .of = of};
    param.cols = here ? state.elements(shape_of(param)) : 0;
    param.rows = 1;
    param.slack_rows = 0;
  }
  return SlabLayout(kept, 1, align_elems);
}

UnitState::UnitState(Ledger& ledger, const std::string& name, std::span<const ParamSpec> params,
                     const UnitTraits& traits, int rank, int ranks,
                     const std::vector<OptimizerState>& states, size_t own_states)
    : layout_(params, ranks, slab_alignment(traits.homes, states),
              traits.adapted() ? SlabOf::base : SlabOf::all),
      adapters_layout_(params, ranks, slab_alignment(traits.homes, states), SlabOf::adapters),
      vectors_layout_(whole_layout(params, slab_alignment(traits.homes, states),
                                   traits.adapted() ? SlabOf::adapters : SlabOf::all,
                                   OptimizerState::Of::vectors)),
      factors_layout_(whole_layout(params, slab_alignment(traits.homes, states),
                                   traits.adapted() ? SlabOf::adapters : SlabOf::all,
                                   OptimizerState::Of::factors)),
      ratios_layout_(whole_layout(params, slab_alignment(traits.homes, states),
                                  traits.adapted() ? SlabOf::adapters : SlabOf::all,
                                  OptimizerState::Of::ratios)),
      homes_(traits.homes),
      frozen_(traits.frozen),
      host_steps_(traits.host_steps),
      rank_(rank),
      node_ranks_(traits.node_ranks),
      parameters_(ledger, layout_, homes_.parameters, Kind::parameters, rank, name),
      gradients_(ledger, traits.adapted() ? adapters_layout_ : layout_, homes_.gradients,
                 Kind::gradients, rank, name) {
  parameters_.hold();
  if (in_node())
    node_ =
        ledger.allocate(Kind::parameters,
                        layout_.elems() / node_ranks_ * dtype_bytes(homes_.parameters.dtype), name);
  if (traits.adapted()) {
    const Home home{.dtype = homes_.parameters.dtype};
    adapters_.emplace(ledger, adapters_layout_, home, Kind::parameters, rank, name);
    adapters_->hold();
  }
  if (frozen_) return;
  if (homes_.gradients.offloaded() && !states.empty()) gradients_.hold();
  if (traits.fetches_stepped()) {
    const Home home{homes_.optimizer.sharded, homes_.optimizer.tier, homes_.parameters.dtype};
    outbox_.emplace(ledger, layout_, home, Kind::parameters, rank, name);
    outbox_->hold();
    // Padding, and the rows of zeros behind a share's vocabulary, travel with the rest: no step
    // writes them. The host's memory; null of a plan.
    const Tensor all = outbox_->at_home();
    if (all.data != nullptr)
      std::memset(all.data, 0, static_cast<size_t>(all.elems() * dtype_bytes(all.dtype)));
  }
  optimizer_.reserve(states.size());
  for (const OptimizerState& state : states) {
    const bool whole = state.of != OptimizerState::Of::all;
    const SlabLayout& layout = layout_of(state);
    if (layout.elems() == 0) continue;
    kept_.push_back(state);
    if (state.name == kMaster) master_ = static_cast<int>(optimizer_.size());
    Home home = homes_.optimizer;
    home.dtype = state.dtype;
    if (whole) home.sharded = false;
    optimizer_.emplace_back(ledger, layout, home, Kind::optimizer, rank, name, state.block);
    optimizer_.back().hold();
  }
  own_.reserve(own_states);
  for (size_t i = 0; i < own_states; ++i) {
    own_.emplace_back(ledger, trained_layout(), Home{}, Kind::optimizer, rank, name);
    own_.back().hold();
  }
}

const SlabLayout& UnitState::layout_of(const OptimizerState& state) const {
  switch (state.of) {
    case OptimizerState::Of::all:
      return trained_layout();
    case OptimizerState::Of::vectors:
      return vectors_layout_;
    case OptimizerState::Of::factors:
      return factors_layout_;
    case OptimizerState::Of::ratios:
      return ratios_layout_;
  }
  return trained_layout();
}

Tensor UnitState::part_of(int index, Tensor slab, const SlabPiece& piece) const {
  const OptimizerState& state = kept(index);
  if (state.of == OptimizerState::Of::all)
    return slab.col_range(piece.offset / state.block,
                          (piece.elems + state.block - 1) / state.block);
  const int64_t elems =
      state.elements(shape_of(layout_.params()[static_cast<size_t>(piece.param)]));
  if (elems == 0) return {};
  if (state.of_parameters()) return slab.col_range(layout_of(state).offset(piece.param), elems);
  return slab.col_range(vectors_layout_.offset(piece.param) + piece.first, piece.elems);
}

Tensor UnitState::momentum_scale_of(int param) const {
  for (int i = 0; i < states(); ++i)
    if (kept(i).of == OptimizerState::Of::ratios) {
      const Tensor ratios = part_of(i, state(i).at_home(), {.param = param});
      return ratios.data == nullptr ? Tensor{} : ratios.flat().col_range(kMomentumScale, 1);
    }
  return {};
}

float UnitState::momentum_scale(Device& device, int param) const {
  const Tensor place = momentum_scale_of(param);
  float scale = 0;
  if (place.data != nullptr) download(device, place, std::span(&scale, 1));
  return scale == 0 ? 1.0f : scale;
}

void UnitState::set_momentum_scale(Device& device, int param, float scale) {
  const Tensor place = momentum_scale_of(param);
  if (place.data != nullptr) upload(device, std::span<const float>(&scale, 1), place);
}

Message UnitState::node_message() const {
  return {parameters_.whole().data, node_.data(), layout_.elems() / node_ranks_,
          homes_.parameters.dtype};
}

UnitState::NodeCopy UnitState::node_copy() const {
  const int64_t part = layout_.elems() / node_ranks_;
  return {node_.data(), parameters_.whole().col_range(rank_ % node_ranks_ * part, part).data,
          part * dtype_bytes(homes_.parameters.dtype)};
}

void UnitState::acquire() {
  if (homes_.parameters.sharded) parameters_.stage();
}

std::vector<Slab*> UnitState::slabs(State state) {
  if (state == State::gradients) return {&gradients_};
  if (state != State::optimizer) return {&parameters_};
  std::vector<Slab*> all;
  for (Slab& slab : optimizer_) all.push_back(&slab);
  return all;
}

Transfer UnitState::stepped_transfer() const {
  const Tensor there = outbox_->at_home();
  const Tensor here = homes_.optimizer.sharded ? parameters_.shard() : parameters_.here();
  return {outbox_->home().tier, there.data, here.data, there.elems() * dtype_bytes(there.dtype)};
}

void UnitState::fill_outbox() const {
  if (!outbox_) return;
  const Tensor from = state(master_).at_home(), to = outbox_->at_home();
  narrow(
      to.dtype, {from.f32(), static_cast<size_t>(from.elems())},
      {static_cast<std::byte*>(to.data), static_cast<size_t>(to.elems() * dtype_bytes(to.dtype))});
}

std::vector<Transfer> UnitState::fetch(State state) {
  if (state == State::stepped) return {stepped_transfer()};
  std::vector<Transfer> transfers;
  for (Slab* slab : slabs(state)) {
    slab->bring();
    transfers.push_back(slab->transfer());
  }
  return transfers;
}

std::vector<Transfer> UnitState::spill(State state) {
  std::vector<Transfer> transfers;
  for (const Slab* slab : slabs(state)) transfers.push_back(slab->transfer());
  return transfers;
}

void UnitState::release(State state) {
  for (Slab* slab : slabs(state)) slab->release();
}

std::vector<UnitState::Part> UnitState::parameter_parts() const {
  std::vector<Part> parts = {
      {homes_.parameters.tier, parameters_.at_home(), pieces(layout_, homes_.parameters.sharded)}};
  if (adapters_)
    parts.push_back({Tier::device, adapters_->at_home(), adapters_layout_.whole_pieces()});
  if (master_ >= 0)
    parts.push_back({homes_.optimizer.tier, state(master_).at_home(), stepped_pieces()});
  return parts;
}

Tensor UnitState::grad(int index) {
  if (frozen_ || !trained_layout().holds(index)) return {};
  has_gradients_ = true;
  if (homes_.gradients.sharded) {
    if (!gradients_.is_staged()) gradients_.stage();
  } else if (!gradients_.is_here()) {
    homes_.gradients.offloaded() ? gradients_.bring() : gradients_.hold();
  }
  return trained_layout().view(gradients_.whole(), index);
}

void UnitState::begin_reduce() {
  if (!homes_.gradients.sharded || gradients_.is_here()) return;
  homes_.gradients.offloaded() ? gradients_.bring() : gradients_.hold();
}

// Room on another tier stays: it is there for the next step.
void UnitState::drop_gradients() {
  has_gradients_ = false;
  if (!homes_.gradients.offloaded()) gradients_.drop();
}

}  // namespace onefold
