// Momentum that ranks take before the sum begins as the optimizer's, which is after it.
#include <algorithm>

#include "engine/engine.h"

namespace onefold {

// Packets are added: each rank has an equal part of the momentum, in the scale of gradients.
void Engine::begin_own_momentum(double loss_scale) {
  if (device_->dry() || options_.compression.whole_steps == 0) return;
  executor_.settle();
  Channel& channel = channels_.of(Lane::gather);
  const int sources = channels_.between() ? channels_.between()->ranks() : channel.ranks();
  const auto part = static_cast<float>(loss_scale / sources);
  for (int u = 0; u < state_.units(); ++u) {
    const UnitState& own = state_.unit(u);
    const int first = own.master() + 1;  // state after the master copy, which comes first
    if (own.own_states() < 2 || own.states() <= first) continue;
    const Tensor velocity = own.own_state(1);
    const Tensor momentum = own.state(first).at_home();
    if (own.homes().optimizer.sharded) {
      const Message message{velocity.data, momentum.data, momentum.elems(), DType::f32};
      channel.all_gather(
          fmt::format("momentum of {}", model_.units[static_cast<size_t>(u)]->name()),
          {&message, 1});
    } else {
      std::copy_n(momentum.f32(), momentum.elems(), velocity.f32());
    }
    for (float& value : std::span(velocity.f32(), static_cast<size_t>(velocity.elems())))
      value *= part;
  }
}

}  // namespace onefold
