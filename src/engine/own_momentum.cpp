// Momentum that ranks take before the sum begins as the optimizer's, which is after it.
#include <algorithm>
#include <cmath>

#include "engine/engine.h"

namespace onefold {
namespace {

// What each tensor's momentum is multiplied by on its way, so that those of all tensors are of one
// size: the mean of their root mean squares over its own. `momentum` has all of a unit's. Of what
// has no momentum, or is not stepped, nothing is known, and nothing is multiplied.
class MomentumScales {
 public:
  explicit MomentumScales(const OptimizerSpec& optimizer) : optimizer_(optimizer) {}

  void add(UnitState& own, std::span<const float> momentum) {
    for (const SlabPiece& piece : own.trained_layout().whole_pieces()) {
      const ParamSpec& param = own.layout().params()[static_cast<size_t>(piece.param)];
      const ParamGroup* const group = optimizer_.group_of(param.name);
      if (group != nullptr && group->frozen) continue;
      double squares = 0;
      for (const float value :
           momentum.subspan(static_cast<size_t>(piece.offset), static_cast<size_t>(piece.elems)))
        squares += static_cast<double>(value) * static_cast<double>(value);
      if (squares > 0)
        sizes_.push_back(
            {&own, piece.param, std::sqrt(squares / static_cast<double>(piece.elems))});
    }
  }

  void set(Device& device) const {
    double sum = 0;
    for (const Size& one : sizes_) sum += one.size;
    const double mean = sum / static_cast<double>(sizes_.size());
    for (const Size& one : sizes_)
      one.unit->set_momentum_scale(device, one.param, static_cast<float>(mean / one.size));
  }

 private:
  struct Size {
    UnitState* unit;
    int param;
    double size;
  };
  const OptimizerSpec& optimizer_;
  std::vector<Size> sizes_;
};

}  // namespace

// Packets are added: each rank has an equal part of the momentum, in the scale of gradients.
void Engine::begin_own_momentum(double loss_scale) {
  if (device_->dry() || options_.compression.whole_steps == 0) return;
  executor_.settle();
  announce_change();
  device_->compute().wait(device_->compute().mark().number);
  MomentumScales scales(options_.optimizer);
  for (int u = 0; u < state_.units(); ++u) {
    UnitState& own = state_.unit(u);
    const int first = own.master() + 1;  // state after the master copy, which comes first
    if (own.own_states() < 2 || own.states() <= first) continue;
    const Tensor velocity = own.own_state(1);
    const Tensor momentum = own.state(first).at_home();
    if (own.homes().optimizer.sharded) {
      Channel& channel = channels_.of(Lane::gather, traits_[static_cast<size_t>(u)]);
      const Message message{velocity.data, momentum.data, momentum.elems(), DType::f32};
      channel.all_gather(
          fmt::format("momentum of {}", model_.units[static_cast<size_t>(u)]->name()),
          {&message, 1});
    } else {
      device_->kernels().copy(momentum, velocity);
    }
    if (RankMemory* const memory = channels_.memory(Lane::gather)) memory->finish();
    if (!options_.optimizer.frozen_trust) continue;
    std::vector<float> values(static_cast<size_t>(velocity.elems()));
    download(*device_, velocity, std::span(values));
    scales.add(own, values);
  }
  scales.set(*device_);
  for (int u = 0; u < state_.units(); ++u) {
    const UnitState& own = state_.unit(u);
    if (own.own_states() < 2) continue;
    const int sources =
        channels_.between() ? channels_.between()->ranks() : own.trained_layout().ranks();
    const auto part = static_cast<float>(loss_scale / sources);
    for (const SlabPiece& piece : own.trained_layout().whole_pieces()) {
      const Tensor velocity = own.own_state(1).col_range(piece.offset, piece.elems);
      device_->kernels().scale(velocity, part * own.momentum_scale(*device_, piece.param),
                               velocity);
    }
  }
}

}  // namespace onefold
