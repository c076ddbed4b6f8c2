// What shares of a unit exchange between its phases, and of its gradients.
#include <algorithm>

#include "engine/executor.h"

namespace onefold {
namespace {

int64_t shard_bytes_sent(const std::vector<Message>& messages, int ranks) {
  int64_t bytes = 0;
  for (const Message& message : messages) bytes += message.shard_bytes() * (ranks - 1);
  return bytes;
}

}  // namespace

// What travels between the phases of a unit, in the order of computation, among those that its role
// says; along an axis that the mesh does not have, nothing does.
void Executor::exchange(const Action& action, Walk& walk) {
  if (action.state == State::gradients) {
    using Over = ParamSpec::SummedOver;
    Channel* const shares = channels_.has(Lane::exchange) ? &channels_.of(Lane::exchange) : nullptr;
    exchange_gradients(action, walk, shares, &Over::shares);
    exchange_gradients(action, walk, channels_.replicas(), &Over::replicas);
    return exchange_gradients(action, walk, channels_.experts(), &Over::holders);
  }
  switch (const Role role = role_after(action, walk)) {
    case Role::sum:
    case Role::gather:
      if (channels_.has(Lane::exchange)) exchange_shares(action, walk, role == Role::sum);
      return;
    case Role::exchange:
      return exchange_blocks(action, walk, channels_.context(action.lane));
    case Role::dispatch:
      return exchange_blocks(action, walk, channels_.dispatch(action.lane));
    case Role::shift:
      return shift(action, walk);
    case Role::none:
      return;
  }
}

// Of a forward that is computed again there may be no output, and so nothing that travels.
void Executor::exchange_shares(const Action& action, Walk& walk, bool sums) {
  Channel& channel =
      action.lane == Lane::exchange ? *channels_.overlapped() : channels_.of(Lane::exchange);
  const UnitCall& call = walk.call();
  Tensor tensor = unit(action.unit).boundary(action.of_backward, action.phase, call);
  if (tensor.empty()) return;
  if (action.chunk.count > 1) {
    const Span rows = rows_of(action.chunk, tensor.rows);
    if (rows.size == 0) return;
    tensor = tensor.row_range(rows.first, rows.size);
  }
  require(tensor.contiguous() && tensor.elems() % channel.ranks() == 0, "{}x{} over {} shares",
          tensor.rows, tensor.cols, channel.ranks());
  const int64_t elems = tensor.elems() / channel.ranks();
  const std::vector<Message> messages = {
      {tensor.data, tensor.flat().col_range(channel.rank() * elems, elems).data, elems,
       tensor.dtype}};
  communicate(action, walk, channel, Travel::together,
              (sums ? 2 : 1) * shard_bytes_sent(messages, channel.ranks()),
              [&channel, messages, sums](const std::string& what) {
                if (sums)
                  channel.all_reduce(what, messages);
                else
                  channel.all_gather(what, messages);
              });
}

// As equal as the device's products can be cut with the bits of the whole; the last may be none.
Span Executor::rows_of(const Chunk& chunk, int64_t tokens) const {
  const int64_t unit = device_.kernels().row_unit(tokens, model_.spec.hidden_size);
  const auto end_of = [&](int64_t chunks) {
    const int64_t even = tokens * chunks / chunk.count;
    return std::min(tokens, (even + unit - 1) / unit * unit);
  };
  const int64_t first = end_of(chunk.index);
  return {first, end_of(chunk.index + 1) - first};
}

void Executor::pass_residual(const Action& action, Walk& walk, Tensor whole, void* run,
                             bool gathers) {
  Channel& channel = channels_.of(Lane::exchange);
  const std::vector<Message> messages = {
      {whole.data, run, whole.elems() / channel.ranks(), whole.dtype}};
  const Action exchange{.verb = Verb::exchange,
                        .unit = action.unit,
                        .micro = action.micro,
                        .phase = action.phase,
                        .of_backward = action.verb == Verb::backward,
                        .state = State::activations};
  communicate(exchange, walk, channel, Travel::together,
              shard_bytes_sent(messages, channel.ranks()),
              [&channel, messages, gathers](const std::string& what) {
                if (gathers)
                  channel.all_gather(what, messages);
                else
                  channel.reduce_scatter(what, messages);
              });
}

Tensor Executor::gathered(const Action& action, Walk& walk, const Buffer& run) {
  const Tensor whole = residual_of(walk, action.micro, run);
  pass_residual(action, walk, whole, run.data(), true);
  return whole;
}

// What a unit has made for the next one, or for the one before it.
void Executor::scatter_result(const Action& action, Walk& walk) {
  if (!action.output) return;
  const UnitCall& call = walk.call();
  if (action.verb == Verb::backward)
    return pass_residual(action, walk, call.dinput,
                         walk.gradients[static_cast<size_t>(action.micro)].data(), false);
  pass_residual(action, walk, call.output, held(walk, action.unit + 1, action.micro).input.data(),
                false);
}

Role Executor::role_after(const Action& action, const Walk& walk) const {
  const int64_t tokens = walk.call().batch.tokens_count();
  return unit(action.unit).phase(action.of_backward, action.phase, tokens).role;
}

// Between parts of the same sequences, or those that divide experts: a block for each.
void Executor::exchange_blocks(const Action& action, Walk& walk, Channel* channel) {
  if (channel == nullptr) return;  // they are whole
  const UnitCall& call = walk.call();
  const Tensor from = unit(action.unit).boundary(action.of_backward, action.phase, call),
               to = unit(action.unit).arrival(action.of_backward, action.phase, call);
  if (from.empty()) return;
  require(from.contiguous() && to.contiguous() && from.elems() == to.elems() &&
              from.elems() % channel->ranks() == 0,
          "{}x{} to {}x{} over {} parts", from.rows, from.cols, to.rows, to.cols, channel->ranks());
  const int64_t bytes = from.elems() / channel->ranks() * dtype_bytes(from.dtype);
  communicate(action, walk, *channel, Travel::apart, bytes * (channel->ranks() - 1),
              [channel, from, to, bytes](const std::string& what) {
                channel->all_to_all(what, from.data, to.data, bytes);
              });
}

// From each part to the next, and from the last to the first. Parts at even places send first, so
// that none waits for itself.
void Executor::shift(const Action& action, Walk& walk) {
  const Channel* const parts = channels_.context(Lane::compute);
  if (parts == nullptr) return;
  const UnitCall& call = walk.call();
  const Tensor from = unit(action.unit).boundary(action.of_backward, action.phase, call),
               to = unit(action.unit).arrival(action.of_backward, action.phase, call);
  require(from.contiguous() && to.contiguous() && from.elems() == to.elems(), "{}x{} to {}x{}",
          from.rows, from.cols, to.rows, to.cols);
  const int64_t bytes = from.elems() * dtype_bytes(from.dtype);
  const int here = parts->rank(), ranks = parts->ranks(), next = (here + 1) % ranks,
            before = (here + ranks - 1) % ranks;
  communicate(action, walk, *parts, Travel::apart, bytes, [=, this](const std::string& what) {
    if (here % 2 == 0) channels_.turn(here).send(what, next, from.data, bytes);
    channels_.turn(before).receive(what, before, to.data, bytes);
    if (here % 2 == 1) channels_.turn(here).send(what, next, from.data, bytes);
  });
}

// What each has a part of, all of it in one message.
void Executor::exchange_gradients(const Action& action, Walk& walk, Channel* among,
                                  bool ParamSpec::SummedOver::*over) {
  if (among == nullptr) return;
  Channel& channel = *among;
  UnitState& own = state_.unit(action.unit);
  std::vector<Tensor> parts;
  int64_t elems = 0;
  for (size_t p = 0; p < own.layout().params().size(); ++p) {
    const ParamSpec& param = own.layout().params()[p];
    if (!(param.summed_over.*over) || !own.trained_layout().holds(static_cast<int>(p))) continue;
    const int64_t count = param.elems() - param.summed_from;
    parts.push_back(own.grad(static_cast<int>(p)).flat().col_range(param.summed_from, count));
    elems += count;
  }
  if (parts.empty()) return;
  const int64_t shard = (elems + channel.ranks() - 1) / channel.ranks();
  const Arena::Scope scope(arena_);
  const Tensor all = arena_.take(1, shard * channel.ranks(), parts[0].dtype);
  const auto copy_parts = [&](bool back) {
    int64_t at = 0;
    for (const Tensor& part : parts) {
      const Tensor there = all.col_range(at, part.cols);
      device_.kernels().copy(back ? there : part, back ? part : there);
      at += part.cols;
    }
  };
  const std::vector<Message> messages = {
      {all.data, all.col_range(channel.rank() * shard, shard).data, shard, all.dtype}};
  compute(action, [&] {
    device_.kernels().fill(all, 0);
    copy_parts(false);
  });
  communicate(
      action, walk, channel, Travel::together, 2 * shard_bytes_sent(messages, channel.ranks()),
      [&channel, messages](const std::string& what) { channel.all_reduce(what, messages); });
  compute(action, [&] { copy_parts(true); });
}

}  // namespace onefold
