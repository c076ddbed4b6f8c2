#include "engine/rank_state.h"

namespace onefold {
namespace {

std::span<const float> as_floats(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

// Writes `dst`, elements [first, ...) of a parameter, by `fill`.
void write_floats(Device& device, Tensor dst, int64_t first,
                  const std::function<void(int64_t first, std::span<float> dst)>& fill,
                  Device::Calls calls = Device::Calls::in_order) {
  require(dst.dtype == DType::f32, "host values for a tensor of {}", dtype_name(dst.dtype));
  const auto make = [&](int64_t offset, std::span<std::byte> piece) {
    fill(first + offset, {reinterpret_cast<float*>(piece.data()), piece.size() / sizeof(float)});
  };
  device.write(dst, make, calls);
}

}  // namespace

RankState::RankState(Device& device, Ledger& ledger, const Model& model,
                     const std::vector<UnitTraits>& traits, const EngineOptions& options, int rank,
                     int ranks)
    : device_(device), model_(model), options_(options), rank_(rank) {
  for (size_t u = 0; u < model.units.size(); ++u) {
    std::vector<OptimizerState> states;
    if (options.training) states = options.optimizer.states(traits[u].homes.parameters.dtype);
    units_.push_back(
        std::make_unique<UnitState>(ledger, *model.units[u], traits[u], rank, ranks, states));
  }
}

void RankState::initialise() {
  // Padding travels with the rest: it must be defined.
  for (const auto& unit : units_) {
    device_.kernels().fill(unit->held_parameters(), 0);
    for (int i = 0; i < unit->states(); ++i) device_.kernels().fill(unit->stepped_state(i), 0);
  }
  if (options_.initial) return write_parameters(options_.initial);
  write_parameters(
      [&](const ParamSpec& param, int64_t first, std::span<float> dst) {
        onefold::initialise(param, model_.spec, options_.seed, first, dst);
      },
      Device::Calls::shared_out);
}

void RankState::visit_whole(const ParamSpec& param, Tensor values, const VisitWhole& visit) const {
  std::vector<float> joined;  // where the device hands its values out in pieces
  device_.read(values, [&](int64_t first, std::span<const std::byte> bytes) {
    const std::span<const float> piece = as_floats(bytes);
    if (static_cast<int64_t>(piece.size()) == values.elems()) return visit(param, piece);
    joined.insert(joined.end(), piece.begin(), piece.end());
    if (first + static_cast<int64_t>(piece.size()) == values.elems()) visit(param, joined);
  });
}

void RankState::for_each_parameter(Channel& gather, const VisitWhole& visit) {
  for (int u = 0; u < units(); ++u) {
    UnitState& own = unit(u);
    const bool sharded = own.homes().parameters.sharded;
    if (sharded) {
      own.acquire();
      const Message message = own.gather_message();
      gather.all_gather("visit " + model_.units[static_cast<size_t>(u)]->name(), {&message, 1});
    }
    for (size_t p = 0; p < own.layout().params().size(); ++p)
      visit_whole(own.layout().params()[p], own.param(static_cast<int>(p)), visit);
    if (sharded) own.release();
  }
}

void RankState::for_each_gradient(Channel& gather, const VisitWhole& visit) {
  require(options_.keep_gradients, "gradients are asked for, and were not kept");
  for (int u = 0; u < units(); ++u) {
    UnitState& own = unit(u);
    if (own.frozen()) continue;
    require(own.has_gradients(), "gradients are asked for before a step");
    // Where the optimizer is sharded, each rank has the sum of its own shard alone.
    const bool sharded = own.homes().gradients.sharded;
    if (sharded) own.stage_gradients();
    if (own.homes().optimizer.sharded) {
      const Message message = own.reduce_message();
      gather.all_gather("visit gradients of " + model_.units[static_cast<size_t>(u)]->name(),
                        {&message, 1});
    }
    for (size_t p = 0; p < own.layout().params().size(); ++p)
      visit_whole(own.layout().params()[p], own.whole_gradient(static_cast<int>(p)), visit);
    if (sharded) own.release_gradients();
  }
}

void RankState::write_parameters(const Fill& fill, Device::Calls calls) {
  for (const auto& unit : units_)
    for (const SlabPiece& piece : unit->held_pieces()) {
      const ParamSpec& param = unit->layout().params()[static_cast<size_t>(piece.param)];
      write_floats(
          device_, unit->held_parameters().col_range(piece.offset, piece.elems), piece.first,
          [&](int64_t first, std::span<float> dst) { fill(param, first, dst); }, calls);
    }
}

void RankState::write_optimizer(const FillState& fill) {
  for (const auto& unit : units_) {
    const std::vector<OptimizerState> states =
        options_.optimizer.states(unit->homes().parameters.dtype);
    for (int i = 0; i < unit->states(); ++i)
      for (const SlabPiece& piece : unit->stepped_pieces()) {
        const ParamSpec& param = unit->layout().params()[static_cast<size_t>(piece.param)];
        write_floats(device_, unit->stepped_state(i).col_range(piece.offset, piece.elems),
                     piece.first, [&](int64_t first, std::span<float> dst) {
                       fill(states[static_cast<size_t>(i)].name, param, first, dst);
                     });
      }
  }
}

std::vector<OptimizerState> RankState::saved_states(int index) const {
  const DType dtype = unit(index).homes().parameters.dtype;
  std::vector<OptimizerState> states{{"parameters", dtype}};
  if (unit(index).frozen()) return states;
  for (OptimizerState& state : options_.optimizer.states(dtype)) states.push_back(std::move(state));
  return states;
}

std::vector<RankState::SavedPiece> RankState::saved_pieces(int index) const {
  const UnitState& own = unit(index);
  const std::vector<OptimizerState> states = saved_states(index);
  std::vector<SavedPiece> pieces;
  for (size_t s = 0; s < states.size(); ++s) {
    const Tensor shard = s == 0 ? own.parameter_shard() : own.state_shard(static_cast<int>(s) - 1);
    for (const SlabPiece& piece : own.layout().shard_pieces(rank_))
      pieces.push_back({&own.layout().params()[static_cast<size_t>(piece.param)], states[s].name,
                        piece.first, shard.col_range(piece.offset, piece.elems)});
  }
  return pieces;
}

}  // namespace onefold
