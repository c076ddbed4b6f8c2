// The executor walks a program. Memory is taken and given back here, on one thread and in program
// order, so that what a rank holds is a function of the program alone; lanes only move bytes.
#include <algorithm>
#include <cmath>

#include "engine/walk.h"

namespace onefold {
namespace {

// Summed in token order, in double.
double sum_losses(Tensor losses) {
  double sum = 0;
  if (const float* loss = losses.f32())
    for (int64_t i = 0; i < losses.elems(); ++i) sum += loss[i];
  return sum;
}

std::vector<int> units_of(const Action& action) {
  std::vector<int> units{action.unit};
  units.insert(units.end(), action.joined.begin(), action.joined.end());
  return units;
}

int64_t sent_bytes(const std::vector<Message>& parts, int ranks) {
  int64_t bytes = 0;
  for (const Message& part : parts) bytes += part.shard_bytes() * (ranks - 1);
  return bytes;
}

}  // namespace

// A rank that fails must not leave the others waiting, nor its own lanes waiting for the others.
void Engine::run(const Program& program, Walk& walk) {
  try {
    for (const Action& action : program.actions) {
      ledger_.moment(describe(action, unit_name(action.unit)));
      if (options_.before_action && !dry()) options_.before_action(action);
      wait_for(action, walk);
      execute(action, walk);
    }
    finish_lanes();
  } catch (const PeerError&) {
    throw;
  } catch (const AgreedError&) {
    throw;
  } catch (const std::exception& error) {
    communicator_->abort(error.what());
    throw;
  }
}

void Engine::execute(const Action& action, Walk& walk) {
  const double begin = now_seconds();
  const auto timed = [&](double& total) {
    total += now_seconds() - begin;
    if (trace_.on()) trace_.add(Lane::compute, describe(action, unit_name(action.unit)), begin);
  };
  switch (action.verb) {
    case Verb::gather:
      return gather(action, walk);
    case Verb::reduce:
      return reduce(action, walk);
    case Verb::release:
      return release(action);
    case Verb::forward:
      forward(action, walk);
      return timed(times_.forward);
    case Verb::backward:
      backward(action, walk);
      return timed(times_.backward);
    case Verb::norm:
      norm(action, walk);
      return timed(times_.norm);
    case Verb::clip:
      return clip(walk);
    case Verb::step:
      step(action, walk);
      return timed(times_.step);
  }
}

void Engine::wait_for(const Action& action, Walk& walk) {
  for (const int number : action.waits) {
    const auto found = walk.tickets.find(number);
    if (found == walk.tickets.end()) continue;  // dry, or without lanes: done when it was issued
    const Walk::Ticket& ticket = found->second;
    const double begin = now_seconds();
    lanes_[static_cast<size_t>(ticket.lane)]->wait(ticket.job);
    const double seconds = now_seconds() - begin;
    times_.communication += seconds;
    exposed_[static_cast<size_t>(ticket.lane)] += seconds;
    if (trace_.on()) trace_.add(Lane::compute, "wait for " + ticket.name, begin);
  }
}

void Engine::finish_lanes() {
  for (const Lane lane : {Lane::gather, Lane::reduce}) {
    LaneThread* thread = lanes_[static_cast<size_t>(lane)].get();
    if (!thread) continue;
    const double begin = now_seconds();
    thread->drain();
    const double seconds = now_seconds() - begin;
    times_.communication += seconds;
    exposed_[static_cast<size_t>(lane)] += seconds;
  }
}

// On the action's lane if there is one, else here and now.
void Engine::communicate(const Action& action, Walk& walk,
                         std::function<void(const std::string&)> call) {
  const std::string name = describe(action, unit_name(action.unit));
  std::string what = fmt::format("{}, step {}", name, steps_done_ + 1);
  LaneThread* thread = lanes_[static_cast<size_t>(action.lane)].get();
  if (!thread) {
    const double begin = now_seconds();
    call(what);
    const double seconds = now_seconds() - begin;
    times_.communication += seconds;
    exposed_[static_cast<size_t>(action.verb == Verb::reduce ? Lane::reduce : Lane::gather)] +=
        seconds;
    return;
  }
  const int64_t job =
      thread->post([call = std::move(call), what = std::move(what)] { call(what); });
  walk.tickets[action.ticket] = {action.lane, job, name};
}

void Engine::gather(const Action& action, Walk& walk) {
  std::vector<Message> parts;
  for (const int unit : units_of(action)) {
    state(unit).begin_gather();
    parts.push_back(state(unit).gather_part());
  }
  communicate(action, walk, [this, parts](const std::string& what) {
    const double begin = now_seconds();
    channel(Lane::gather).all_gather(what, parts);
    trace_.add(Lane::gather, what, begin, sent_bytes(parts, ranks()));
  });
}

void Engine::reduce(const Action& action, Walk& walk) {
  std::vector<Message> parts;
  for (const int unit : units_of(action)) {
    state(unit).begin_reduce();
    parts.push_back(state(unit).reduce_part());
  }
  // Where every rank updates everything, every rank needs the whole sum.
  const bool whole = !state(action.unit).residence().shard_optimizer;
  communicate(action, walk, [this, parts, whole](const std::string& what) {
    const double begin = now_seconds();
    if (whole)
      channel(Lane::reduce).all_reduce(what, parts);
    else
      channel(Lane::reduce).reduce_scatter(what, parts);
    trace_.add(Lane::reduce, what, begin, (whole ? 2 : 1) * sent_bytes(parts, ranks()));
  });
}

void Engine::release(const Action& action) {
  if (action.state == State::parameters)
    state(action.unit).release_parameters();
  else
    state(action.unit).release_gradients();
}

UnitCall Engine::call_for(int unit, const BatchView& batch, std::vector<Tensor>& params) {
  const UnitState& own = state(unit);
  for (size_t p = 0; p < own.layout().params().size(); ++p)
    params.push_back(own.param(static_cast<int>(p)));
  for (const Unit::Shared shared : model_.units[static_cast<size_t>(unit)]->shared())
    params.push_back(state(shared.unit).param(shared.param));
  return call_for(batch, params);
}

UnitCall Engine::call_for(const BatchView& batch, std::span<const Tensor> params) {
  UnitCall call{.kernels = *kernels_, .arena = arena_, .batch = batch, .params = params};
  if (rope_) call.rope = rope_.as(model_.spec.max_sequence_length, model_.spec.head_dim);
  call.losses =
      losses_.as(1, std::min(batch.tokens_count(), options_.micro_batch * options_.sequence));
  call.seed = options_.seed;
  call.step = steps_done_;
  return call;
}

std::vector<Tensor> Engine::gradients_of(int unit) {
  std::vector<Tensor> views;
  for (size_t p = 0; p < state(unit).layout().params().size(); ++p)
    views.push_back(state(unit).grad(static_cast<int>(p)));
  for (const Unit::Shared shared : model_.units[static_cast<size_t>(unit)]->shared())
    views.push_back(state(shared.unit).grad(shared.param));
  return views;
}

void Engine::forward(const Action& action, Walk& walk) {
  const auto unit = static_cast<size_t>(action.unit), micro = static_cast<size_t>(action.micro);
  const BatchView& batch = walk.micros[micro];
  Walk::Held& held = walk.held[unit][micro];
  const int64_t hidden = model_.spec.hidden_size;
  std::vector<Tensor> params;
  UnitCall call = call_for(action.unit, batch, params);
  if (held.input) call.input = held.input.as(batch.tokens_count(), hidden);
  if (walk.training) call.dropout = model_.spec.dropout;
  if (!walk.caches.empty()) {
    const bool is_block = action.unit > 0 && action.unit < model_.head();
    call.cache = &walk.caches[is_block ? unit - 1 : 0];
  }
  const int64_t saved = model_.units[unit]->saved_elems(batch.batch, batch.sequence);
  if (saved > 0) {
    held.saved = ledger_.allocate(Kind::activations, saved * dtype_bytes(DType::f32),
                                  model_.units[unit]->name());
    call.saved = held.saved.as(1, saved);
  }
  const bool is_head = action.unit == model_.head();
  if (!is_head && !action.again) {
    Buffer& next = walk.held[unit + 1][micro].input;
    next = ledger_.allocate(Kind::activations,
                            batch.tokens_count() * hidden * dtype_bytes(DType::f32), "stream");
    call.output = next.as(batch.tokens_count(), hidden);
  }
  model_.units[unit]->forward(call);
  if (is_head) walk.loss_sum += sum_losses(call.losses);
  if (!action.keep) held.saved = {};
  if (!walk.training) held.input = {};
}

void Engine::backward(const Action& action, Walk& walk) {
  const auto unit = static_cast<size_t>(action.unit), micro = static_cast<size_t>(action.micro);
  const BatchView& batch = walk.micros[micro];
  Walk::Held& held = walk.held[unit][micro];
  const int64_t tokens = batch.tokens_count(), hidden = model_.spec.hidden_size;
  const bool is_head = action.unit == model_.head();
  const std::vector<Tensor> grads = gradients_of(action.unit);
  std::vector<Tensor> params;
  UnitCall call = model_.units[unit]->backward_reads_parameters()
                      ? call_for(action.unit, batch, params)
                      : call_for(batch, params);
  call.grads = grads;
  if (is_head)
    walk.streams[micro] = ledger_.allocate(
        Kind::activations, tokens * hidden * dtype_bytes(DType::f32), "stream gradient");
  if (held.input) call.input = held.input.as(tokens, hidden);
  if (held.saved)
    call.saved = held.saved.as(1, model_.units[unit]->saved_elems(batch.batch, batch.sequence));
  call.stream = walk.streams[micro].as(tokens, hidden);
  call.dropout = model_.spec.dropout;
  call.accumulate = action.accumulate;
  call.loss_scale = walk.loss_scale;
  model_.units[unit]->backward(call);
  if (is_head) {
    const double loss = sum_losses(call.losses);
    if (!std::isfinite(loss) && walk.diverged.empty())
      walk.diverged = loss_not_finite(loss, action.micro);
    walk.loss_sum += loss;
  }
  held = {};
  if (action.unit == lowest_trained_) walk.streams[micro] = {};
}

// A shard's pieces are summed one by one, at every stage, so that the norm has the same bits
// wherever the gradient lives.
double Engine::sum_squares(Tensor gradient, const Piece& piece) {
  const Arena::Scope scope(arena_);
  Tensor scratch = arena_.take(1, kernels_->sum_squares_scratch(gradient.cols));
  return kernels_->sum_squares(gradient.col_range(piece.offset, piece.elems), scratch);
}

void Engine::norm(const Action& action, Walk& walk) {
  const UnitState& unit = state(action.unit);
  double sum = 0;
  for (const Piece& piece : unit.layout().shard_pieces(rank()))
    sum += sum_squares(unit.gradient_shard(), piece);
  sum_squares_[static_cast<size_t>(action.unit)] = sum;
  if (!std::isfinite(sum) && walk.diverged.empty())
    walk.diverged = gradient_not_finite(action.unit);
}

void Engine::clip(Walk& walk) {
  std::vector<double> mine = sum_squares_;
  mine.push_back(walk.loss_sum);
  const std::vector<double> all = exchange("clip", mine);
  if (!std::all_of(all.begin(), all.end(), [](double value) { return std::isfinite(value); }))
    report_divergence(walk, all);
  std::vector<double> sums(mine.size());
  for (size_t i = 0; i < all.size(); ++i) sums[i % sums.size()] += all[i];
  walk.loss_sum = sums.back();
  sums.pop_back();
  double sum = 0;
  for (const double of_unit : sums) sum += of_unit;
  walk.gradient_norm = std::sqrt(sum);
  // As PyTorch's clip_grad_norm_: the small constant keeps a norm of exactly the limit from
  // dividing up.
  if (options_.clipping > 0)
    walk.gradient_scale = std::min(1.0, options_.clipping / (walk.gradient_norm + 1e-6));
}

void Engine::step(const Action& action, Walk& walk) {
  UnitState& unit = state(action.unit);
  const Tensor params = unit.stepped_parameters(), grads = unit.stepped_gradients();
  for (const Piece& piece : unit.stepped_pieces()) {
    std::vector<Tensor> moments;
    for (int i = 0; i < options_.optimizer.state_count(); ++i)
      moments.push_back(unit.stepped_state(i).col_range(piece.offset, piece.elems));
    optimizer_step(*kernels_, options_.optimizer, steps_done_ + 1, walk.learning_rate,
                   unit.layout().params()[static_cast<size_t>(piece.param)].decay,
                   walk.gradient_scale, params.col_range(piece.offset, piece.elems),
                   grads.col_range(piece.offset, piece.elems), moments);
  }
  if (!options_.keep_gradients) unit.drop_gradients();
}

std::string Engine::at_rank() const { return ranks() == 1 ? "" : fmt::format(", rank {}", rank()); }

std::string Engine::loss_not_finite(double loss, int micro) const {
  return fmt::format(
      "step {}, micro-batch {}{}: the loss is {} (unit head, tensor logits). The weights are those "
      "before this step. Lower the learning rate, lengthen the warm-up or set gradient_clipping",
      steps_done_ + 1, micro, at_rank(), loss);
}

std::string Engine::gradient_not_finite(int unit) {
  const UnitState& own = state(unit);
  for (const Piece& piece : own.layout().shard_pieces(rank())) {
    if (std::isfinite(sum_squares(own.gradient_shard(), piece))) continue;
    return fmt::format(
        "step {}{}: the gradient is not finite (unit {}, tensor {}). The weights are those before "
        "this step. Lower the learning rate, lengthen the warm-up or set gradient_clipping",
        steps_done_ + 1, at_rank(), unit_name(unit),
        own.layout().params()[static_cast<size_t>(piece.param)].name);
  }
  internal_error("step {}: the norm of unit {} is not finite but each tensor's is", steps_done_ + 1,
                 unit);
}

void Engine::report_divergence(const Walk& walk, std::span<const double> clipped) {
  const std::vector<std::string> texts = collect("diverged", walk.diverged);
  const size_t stride = clipped.size() / texts.size();
  // A loss that is not finite spoils the gradients of all ranks: it is named before them.
  for (size_t r = 0; r < texts.size(); ++r)
    if (!std::isfinite(clipped[(r + 1) * stride - 1])) throw DivergedError(texts[r]);
  throw DivergedError(*std::find_if(texts.begin(), texts.end(),
                                    [](const std::string& text) { return !text.empty(); }));
}

}  // namespace onefold
