// Local steps: ranks step by themselves, and are averaged by an outer optimizer now and then.
#include <algorithm>

#include "engine/engine.h"
#include "tensor/convert.h"

namespace onefold {
namespace {

enum Own : int { kAnchor, kMomentum };  // own_states_of()

// What computes has the type of activations; what is stepped is fp32.
void round_parameters(const UnitState& own) {
  if (own.master() < 0) return;
  for (const UnitState::Part& part : own.parameter_parts()) {
    if (part.slab.dtype == DType::f32) continue;
    const Tensor exact = own.exact_parameters().at_home();
    narrow(part.slab.dtype, floats_of(exact),
           {static_cast<std::byte*>(part.slab.data),
            static_cast<size_t>(part.slab.elems() * dtype_bytes(part.slab.dtype))});
  }
}

}  // namespace

// As they are everywhere after it: every rank takes the same step.
void Executor::sum_over_ranks(int unit) {
  if (device_.dry()) return;
  const Tensor gradient = state_.unit(unit).gradients_to_step();
  const std::span<std::byte> bytes(
      static_cast<std::byte*>(gradient.data),
      static_cast<size_t>(gradient.elems() * dtype_bytes(gradient.dtype)));
  std::vector<float> wide(static_cast<size_t>(gradient.elems()));
  widen(gradient.dtype, bytes, wide);
  onefold::sum_over_ranks(channels_.of(Lane::compute),
                          fmt::format("sum {}, step {}", this->unit(unit).name(), step_ + 1), wide);
  narrow(gradient.dtype, wide, bytes);
}

void Engine::begin_local_steps() {
  if (device_->dry()) return;
  for (int u = 0; u < state_.units(); ++u) {
    const UnitState& own = state_.unit(u);
    if (own.frozen()) continue;
    const std::span<const float> exact = floats_of(own.exact_parameters().at_home());
    std::copy(exact.begin(), exact.end(), floats_of(own.own_state(kAnchor)).begin());
  }
}

// The outer gradient is where ranks began, less the mean of where they are.
void Engine::average_local_steps() {
  Channel& channel = channels_.of(Lane::compute);
  const LocalOptions& local = options_.local;
  const float share = 1.0f / static_cast<float>(channel.ranks());
  for (int u = 0; u < state_.units(); ++u) {
    const UnitState& own = state_.unit(u);
    if (own.frozen()) continue;
    const std::string what = fmt::format("average {}, step {}",
                                         model_.units[static_cast<size_t>(u)]->name(), steps_done_);
    if (device_->dry()) {
      const Message message{nullptr, nullptr, own.trained_layout().elems() / channel.ranks(),
                            DType::f32};
      channel.all_reduce(what, {&message, 1});
      continue;
    }
    const std::span<float> values = floats_of(own.exact_parameters().at_home()),
                           anchor = floats_of(own.own_state(kAnchor)),
                           momentum = floats_of(own.own_state(kMomentum));
    for (size_t i = 0; i < values.size(); ++i) values[i] = anchor[i] - values[i];
    sum_over_ranks(channel, what, values);
    for (size_t i = 0; i < values.size(); ++i) {
      const float gradient = values[i] * share;
      momentum[i] = local.momentum * momentum[i] + gradient;
      const float step = local.nesterov ? gradient + local.momentum * momentum[i] : momentum[i];
      values[i] = anchor[i] = anchor[i] - local.rate * step;
    }
    round_parameters(own);
  }
}

}  // namespace onefold
