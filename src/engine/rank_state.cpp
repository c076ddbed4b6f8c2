#include "engine/rank_state.h"

#include "tensor/convert.h"

namespace onefold {
namespace {

constexpr const char* kParameters = "parameters";

// Writes `dst`, elements [first, ...) of a state of a parameter, by `fill`, in its own type.
void write_values(Device& device, const std::string& state, const ParamSpec& param, Tensor dst,
                  int64_t first,
                  const std::function<void(int64_t first, std::span<float> dst)>& fill,
                  Device::Calls calls = Device::Calls::in_order) {
  const auto make = [&](int64_t offset, std::span<std::byte> piece) {
    const size_t count = piece.size() / static_cast<size_t>(dtype_bytes(dst.dtype));
    if (dst.dtype == DType::f32)
      return fill(first + offset, {reinterpret_cast<float*>(piece.data()), count});
    std::vector<float> wide(count);
    fill(first + offset, wide);
    if (const int64_t overflows = narrow(dst.dtype, wide, piece); overflows > 0)
      user_error(
          "{} of {}: {} of {} values are too large for {}; train in bf16 or fp32, which hold them",
          state, param.name, overflows, count, dtype_name(dst.dtype));
  };
  device.write(dst, make, calls);
}

}  // namespace

RankState::RankState(Device& device, Ledger& ledger, const Model& model,
                     const std::vector<UnitTraits>& traits, const EngineOptions& options, int rank,
                     int ranks)
    : device_(device), model_(model), options_(options), rank_(rank) {
  for (size_t u = 0; u < model.units.size(); ++u) {
    units_.push_back(std::make_unique<UnitState>(ledger, *model.units[u], traits[u], rank, ranks,
                                                 kept_states(options)));
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
  std::vector<float> joined;  // where the values are of another type, or come in pieces
  device_.read(values, [&](int64_t first, std::span<const std::byte> bytes) {
    const auto count = static_cast<int64_t>(bytes.size()) / dtype_bytes(values.dtype);
    if (values.dtype == DType::f32 && count == values.elems())
      return visit(param,
                   {reinterpret_cast<const float*>(bytes.data()), static_cast<size_t>(count)});
    joined.resize(static_cast<size_t>(first + count));
    widen(values.dtype, bytes, std::span(joined).subspan(static_cast<size_t>(first)));
    if (first + count == values.elems()) visit(param, joined);
  });
}

void RankState::for_each_parameter(Channel& gather, const VisitWhole& visit) {
  for (int u = 0; u < units(); ++u) {
    const SlabLayout& layout = unit(u).layout();
    Slab& slab = unit(u).exact_parameters();
    const bool sharded = slab.home().sharded;
    if (sharded) {
      slab.stage();
      const Message message = slab.message();
      gather.all_gather("visit " + model_.units[static_cast<size_t>(u)]->name(), {&message, 1});
    }
    for (size_t p = 0; p < layout.params().size(); ++p)
      visit_whole(layout.params()[p], layout.view(slab.whole(), static_cast<int>(p)), visit);
    if (sharded) slab.unstage();
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
  for (const auto& unit : units_) {
    const auto write = [&](Tensor slab, const std::vector<SlabPiece>& pieces) {
      for (const SlabPiece& piece : pieces) {
        const ParamSpec& param = unit->layout().params()[static_cast<size_t>(piece.param)];
        write_values(
            device_, kParameters, param, slab.col_range(piece.offset, piece.elems), piece.first,
            [&](int64_t first, std::span<float> dst) { fill(param, first, dst); }, calls);
      }
    };
    write(unit->held_parameters(), unit->held_pieces());
    if (unit->master() >= 0) write(unit->stepped_state(unit->master()), unit->stepped_pieces());
  }
}

void RankState::write_optimizer(const FillState& fill) {
  const std::vector<OptimizerState> states = kept_states(options_);
  for (const auto& unit : units_)
    for (int i = 0; i < unit->states(); ++i) {
      if (i == unit->master()) continue;
      for (const SlabPiece& piece : unit->stepped_pieces()) {
        const ParamSpec& param = unit->layout().params()[static_cast<size_t>(piece.param)];
        const std::string& state = states[static_cast<size_t>(i)].name;
        write_values(device_, state, param,
                     unit->stepped_state(i).col_range(piece.offset, piece.elems), piece.first,
                     [&](int64_t first, std::span<float> dst) { fill(state, param, first, dst); });
      }
    }
}

std::vector<OptimizerState> RankState::saved_states(int index) const {
  const UnitState& own = unit(index);
  std::vector<OptimizerState> states{{kParameters, own.exact_parameters().home().dtype}};
  if (own.frozen()) return states;
  for (OptimizerState& state : kept_states(options_))
    if (state.name != kMaster) states.push_back(std::move(state));
  return states;
}

std::vector<RankState::SavedPiece> RankState::saved_pieces(int index) const {
  const UnitState& own = unit(index);
  const auto add = [&](const std::string& state, Tensor shard, std::vector<SavedPiece>& pieces) {
    for (const SlabPiece& piece : own.layout().shard_pieces(rank_))
      pieces.push_back({&own.layout().params()[static_cast<size_t>(piece.param)], state,
                        piece.first, shard.col_range(piece.offset, piece.elems)});
  };
  std::vector<SavedPiece> pieces;
  add(kParameters, own.exact_parameters().shard(), pieces);
  const std::vector<OptimizerState> states = kept_states(options_);
  for (int i = 0; i < own.states(); ++i)
    if (i != own.master()) add(states[static_cast<size_t>(i)].name, own.state_shard(i), pieces);
  return pieces;
}

}  // namespace onefold
