// Local steps: ranks step by themselves, and are averaged by an outer optimizer now and then.
#include <algorithm>

#include "engine/engine.h"
#include "tensor/convert.h"

namespace onefold {
namespace {

enum Own : int { kAnchor, kMomentum };  // own_states_of()

std::span<float> numbers_of(Tensor tensor) {
  return {tensor.f32(), static_cast<size_t>(tensor.elems())};
}

// The sum over ranks, in their order; of any number of elements.
void sum_over_ranks(Channel& channel, std::string_view what, std::span<float> values) {
  const auto ranks = static_cast<size_t>(channel.ranks());
  const size_t shard = values.size() / ranks, rest = values.size() % ranks;
  std::vector<float> tail(ranks);
  std::copy_n(values.end() - static_cast<ptrdiff_t>(rest), rest, tail.begin());
  std::vector<Message> messages;
  if (shard > 0)
    messages.push_back({values.data(), nullptr, static_cast<int64_t>(shard), DType::f32});
  if (rest > 0) messages.push_back({tail.data(), nullptr, 1, DType::f32});
  channel.all_reduce(what, messages);
  std::copy_n(tail.begin(), rest, values.end() - static_cast<ptrdiff_t>(rest));
}

// What computes has the type of activations; what is stepped is fp32.
void round_parameters(const UnitState& own) {
  if (own.master() < 0) return;
  for (const UnitState::Part& part : own.parameter_parts()) {
    if (part.slab.dtype == DType::f32) continue;
    const Tensor exact = own.exact_parameters().at_home();
    narrow(part.slab.dtype, numbers_of(exact),
           {static_cast<std::byte*>(part.slab.data),
            static_cast<size_t>(part.slab.elems() * dtype_bytes(part.slab.dtype))});
  }
}

}  // namespace

void Engine::begin_local_steps() {
  if (device_->dry()) return;
  for (int u = 0; u < state_.units(); ++u) {
    const UnitState& own = state_.unit(u);
    if (own.frozen()) continue;
    const std::span<const float> exact = numbers_of(own.exact_parameters().at_home());
    std::copy(exact.begin(), exact.end(), numbers_of(own.own_state(kAnchor)).begin());
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
    const std::span<float> values = numbers_of(own.exact_parameters().at_home()),
                           anchor = numbers_of(own.own_state(kAnchor)),
                           momentum = numbers_of(own.own_state(kMomentum));
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
