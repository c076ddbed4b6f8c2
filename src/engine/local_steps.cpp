// Local steps: ranks step by themselves, and are averaged by an outer optimizer now and then; or
// what they have moved is summed, and becomes their momentum.
#include <algorithm>
#include <cmath>

#include "engine/engine.h"
#include "tensor/convert.h"

namespace onefold {
namespace {

enum Own : int { kAnchor, kMomentum, kMoved = 1, kResidual };  // own_states_of()

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

int64_t LocalOptions::interval(int64_t step) const {
  if (!sums_moves) return steps;
  int64_t length = 1;
  for (int64_t times = (step - whole_steps - 1) / scaler; times > 0 && length < steps; --times)
    length = length > steps / 2 ? steps : 2 * length;
  return length;
}

bool LocalOptions::meets(int64_t step) const {
  if (step <= whole_steps) return false;
  return (sums_moves ? step : step - whole_steps) % interval(step) == 0;
}

// What the ranks cannot divide is summed as it is.
void Executor::MovedSums::sum(const std::string& what, const PackedMessage& packed, int64_t elems) {
  const Message& message = packed.message;
  const int64_t rest = elems % ranks;
  if (message.shard_elems > 0) calls->all_reduce(what, *wire, {&packed, 1});
  if (rest == 0 || message.whole == nullptr) return;
  const int64_t size = dtype_bytes(message.dtype);
  const std::span<std::byte> bytes(static_cast<std::byte*>(message.whole) + (elems - rest) * size,
                                   static_cast<size_t>(rest * size));
  std::vector<float> tail(static_cast<size_t>(rest));
  widen(message.dtype, bytes, tail);
  onefold::sum_over_ranks(*channel, what, tail);
  narrow(message.dtype, tail, bytes);
}

// Memory for packets of the largest unit.
void Executor::open_moved_sums() {
  MovedSums& own = moved_sums_;
  own.channel = &channels_.of(Lane::compute);
  own.ranks = own.channel->ranks();
  own.wire = make_wire(options_.compression.gradients);
  int64_t bytes = 0;
  for (int u = 0; u < state_.units(); ++u) {
    const Message message{.shard_elems = state_.unit(u).trained_layout().elems() / own.ranks,
                          .dtype = DType::f32};
    bytes = std::max(bytes, PackedCalls::scratch_bytes(Collective::all_reduce, *own.wire,
                                                       {&message, 1}, own.ranks));
  }
  own.calls = std::make_unique<PackedCalls>(*own.channel, device_.dry());
  own.scratch = ledger_.allocate(Kind::communication, bytes, "packets");
  own.calls->set_scratch(own.scratch.data(), bytes);
}

void Executor::sum_in_packets(int unit, const std::string& what, Tensor values) {
  if (!moved_sums_.calls) return;  // of one rank, whose sum they are
  const UnitState& own = state_.unit(unit);
  const int64_t elems = values.elems();
  PackedMessage packed =
      packed_message(unit, {values.data, nullptr, elems / moved_sums_.ranks, values.dtype});
  packed.gaps = gaps_[static_cast<size_t>(unit)];
  packed.kept = static_cast<float*>(own.own_state(kResidual).data);
  moved_sums_.sum(fmt::format("{} {}, step {}", what, this->unit(unit).name(), step_ + 1), packed,
                  elems);
}

// As they are everywhere after it: every rank takes the same step.
void Executor::sum_over_ranks(int unit) {
  if (device_.dry()) return;
  const Tensor gradient = state_.unit(unit).gradients_to_step();
  if (moved_sums_.calls &&
      !options_.compression.gradients_after(updates_, options_.optimizer).none())
    return sum_in_packets(unit, "sum", gradient);
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
  announce_change();
  for (int u = 0; u < state_.units(); ++u) {
    const UnitState& own = state_.unit(u);
    if (own.frozen()) continue;
    const std::span<const float> exact = floats_of(own.exact_parameters().at_home());
    std::copy(exact.begin(), exact.end(), floats_of(own.own_state(kAnchor)).begin());
    if (!options_.local.sums_moves) continue;
    // What was kept back is of gradients, and what is summed from here on is not.
    for (const Own one : {kMoved, kResidual})
      std::ranges::fill(floats_of(own.own_state(one)), 0.0f);
  }
}

// What is stepped of a unit: its elements, and by how much of the learning rate.
void Engine::for_each_stepped(int unit,
                              const std::function<void(const SlabPiece&, double, double)>& visit) {
  const OptimizerSpec& optimizer = options_.optimizer;
  const UnitState& own = state_.unit(unit);
  for (const SlabPiece& piece : own.trained_layout().whole_pieces()) {
    const ParamSpec& param = own.layout().params()[static_cast<size_t>(piece.param)];
    const ParamGroup* const group = optimizer.group_of(param.name);
    if (group != nullptr && group->frozen) continue;
    const double decay = param.decay || optimizer.decay_all ? optimizer.weight_decay : 0;
    if (group == nullptr)
      visit(piece, 1, decay);
    else
      visit(piece, group->rate, group->weight_decay.value_or(decay));
  }
}

// By the step that has just been taken, from where it ended: the second moment stayed, so its
// direction is known.
void Engine::add_moves(double learning_rate) {
  rates_since_sum_ += learning_rate;
  if (device_->dry()) return;
  const auto eps = static_cast<float>(options_.optimizer.eps);
  for (int u = 0; u < state_.units(); ++u) {
    const UnitState& own = state_.unit(u);
    if (own.frozen()) continue;
    const std::span<const float> values = floats_of(own.exact_parameters().at_home()),
                                 mean = floats_of(own.state(own.master() + 1).at_home()),
                                 square = floats_of(own.state(own.master() + 2).at_home());
    const std::span<float> moved = floats_of(own.own_state(kMoved));
    for_each_stepped(u, [&](const SlabPiece& piece, double times, double weight_decay) {
      const auto rate = static_cast<float>(learning_rate * times),
                 decay = static_cast<float>(weight_decay), keep = 1.0f - rate * decay;
      for (auto i = static_cast<size_t>(piece.offset), end = i + static_cast<size_t>(piece.elems);
           i < end; ++i) {
        const float way = mean[i] / (std::sqrt(square[i]) + eps);
        moved[i] -= rate * (way + decay * (values[i] + rate * way) / keep);
      }
    });
  }
}

// From where ranks began, all go by the mean of what they have moved; and momentum is what moves so
// far at the rates that there were. Moves are summed times the root of the second moment: as
// momentum, whose sizes are more alike.
void Engine::sum_moves() {
  const auto eps = static_cast<float>(options_.optimizer.eps);
  const double ranks = control_.ranks();
  for (int u = 0; u < state_.units(); ++u) {
    const UnitState& own = state_.unit(u);
    if (own.frozen()) continue;
    if (device_->dry()) {
      executor_.sum_in_packets(u, "moves of", own.own_state(kMoved));
      continue;
    }
    const std::span<float> values = floats_of(own.exact_parameters().at_home()),
                           anchor = floats_of(own.own_state(kAnchor)),
                           moved = floats_of(own.own_state(kMoved)),
                           mean = floats_of(own.state(own.master() + 1).at_home());
    const std::span<const float> square = floats_of(own.state(own.master() + 2).at_home());
    for (size_t i = 0; i < moved.size(); ++i) moved[i] *= std::sqrt(square[i]) + eps;
    executor_.sum_in_packets(u, "moves of", own.own_state(kMoved));
    for_each_stepped(u, [&](const SlabPiece& piece, double times, double) {
      const auto share = static_cast<float>(1 / ranks);
      const double rates = rates_since_sum_ * times;
      for (auto i = static_cast<size_t>(piece.offset), end = i + static_cast<size_t>(piece.elems);
           i < end; ++i) {
        const float sum = moved[i] * share;
        if (rates > 0) mean[i] = static_cast<float>(-double{sum} / rates);
        values[i] = anchor[i] = anchor[i] + sum / (std::sqrt(square[i]) + eps);
      }
    });
    std::ranges::fill(moved, 0.0f);
    round_parameters(own);
  }
  rates_since_sum_ = 0;
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
