#include "engine/executor.h"

#include <algorithm>

namespace onefold {
namespace {

int64_t sent_bytes(const std::vector<Message>& messages, int ranks) {
  int64_t bytes = 0;
  for (const Message& message : messages) bytes += message.shard_bytes() * (ranks - 1);
  return bytes;
}

// What is under way between a disk and a device that cannot reach it.
constexpr int64_t kThroughBytes = int64_t{16} << 20;

}  // namespace

Executor::Executor(Device& device, const Tiers& tiers, Ledger& ledger, const Model& model,
                   RankState& state, const EngineOptions& options, Channels& channels,
                   Control& control)
    : device_(device),
      tiers_(tiers),
      ledger_(ledger),
      model_(model),
      state_(state),
      options_(options),
      channels_(channels),
      control_(control),
      scalars_(device, ledger, model, options.micros, control.ranks()),
      pending_(model.units.size()) {
  const ModelSpec& spec = model.spec;
  losses_ = ledger.allocate(
      Kind::workspace, options.micro_batch * options.sequence * dtype_bytes(DType::f32), "losses");
  if (spec.positions == Positions::rope) {
    rope_positions_ = std::max(options.positions, options.sequence);
    rope_ = ledger.allocate(
        Kind::workspace, rope_positions_ * spec.head_dim * dtype_bytes(DType::f32), "rope table");
    const Tensor rows = rope_.as(rope_positions_, spec.head_dim);
    for (int64_t row = 0; row < rope_positions_ && !device.dry(); ++row)
      device.write(rows.row_range(row, 1), [&](int64_t, std::span<std::byte> piece) {
        rope_row(spec, row,
                 {reinterpret_cast<float*>(piece.data()), static_cast<size_t>(spec.head_dim)});
      });
  }
  for (const Lane lane : kAllLanes) lanes_[static_cast<size_t>(lane)] = channels.own_lane(lane);
  lanes_[static_cast<size_t>(Lane::compute)] = &device.compute();
  if (!options.offload.any()) return;
  for (const Lane lane : {Lane::fetch, Lane::spill}) {
    const auto i = static_cast<size_t>(lane);
    copy_lanes_[i] = tiers.open_lane();
    lanes_[i] = copy_lanes_[i].get();
    if (tiers.pass_through_host())
      through_[i] = ledger.allocate(Kind::communication, kThroughBytes, "between disk and device",
                                    Tier::host);
  }
  bool host_steps = false;
  for (int u = 0; u < state.units(); ++u) {
    if (!state.unit(u).host_steps()) continue;
    host_steps = true;
    // A plan is of a step among others.
    if (device.dry()) pending_[static_cast<size_t>(u)].emplace();
  }
  if (!host_steps) return;
  host_ = open_host_side(device);
  lanes_[static_cast<size_t>(Lane::host)] = host_.lane.get();
  if (host_.lane)
    host_control_ =
        ledger.allocate(Kind::workspace, 2 * Ledger::kAlignment, "step control", Tier::host);
}

// Lanes wait for each other: all must be still before one goes.
Executor::~Executor() {
  for (const Lane lane : {Lane::spill, Lane::host, Lane::fetch}) try {
      if (LaneQueue* queue = this->lane(lane)) queue->wait(queue->mark().number);
    } catch (const std::exception&) {  // whoever waited for it has heard of it
    }
}

// A rank that fails must not leave the others waiting, nor its own lanes waiting for the others.
void Executor::run(const Program& program, Walk& walk, int64_t step) {
  step_ = step;
  walk.held.resize(model_.units.size() * walk.micros.size());
  walk.gradients.resize(walk.micros.size());
  try {
    for (const Action& action : program.actions) {
      ledger_.moment([this, verb = action.verb, unit = action.unit, micro = action.micro,
                      joined = action.joined] {
        const Action what{.verb = verb, .unit = unit, .micro = micro, .joined = joined};
        return describe(what, this->unit(unit).name());
      });
      perform(action, walk);
    }
    finish_lanes();
  } catch (const PeerError&) {
    throw;
  } catch (const AgreedError&) {
    throw;
  } catch (const std::exception& error) {
    control_.abort(error.what());
    throw;
  }
}

// A device that fails says what it could not do; where that was is the next question.
void Executor::perform(const Action& action, Walk& walk) {
  try {
    if (options_.before_action && !device_.dry()) options_.before_action(action);
    wait_for(action, walk);
    execute(action, walk);
  } catch (const InternalError& error) {
    internal_error("{}, step {}: {}", describe(action, unit(action.unit).name()), step_ + 1,
                   error.what());
  }
}

void Executor::execute(const Action& action, Walk& walk) {
  switch (action.verb) {
    case Verb::gather:
      return gather(action, walk);
    case Verb::reduce:
      return reduce(action, walk);
    case Verb::release:
      return state_.unit(action.unit).release(action.state);
    case Verb::fetch:
    case Verb::spill:
      return move(action, walk);
    case Verb::forward:
      return forward(action, walk);
    case Verb::backward:
      return backward(action, walk);
    case Verb::exchange:
      return exchange(action, walk);
    case Verb::squares:
      return compute(action, [&] { squares(action); });
    case Verb::clip:
      compute(action, [&] { clip(walk); });
      return bring_control();
    case Verb::step:
      return step(action, walk);
  }
}

JobLabel Executor::label_of(const Action& action, int64_t bytes) const {
  JobLabel label{.tag = static_cast<int>(action.verb), .bytes = bytes};
  if (named()) label.name = describe(action, unit(action.unit).name());
  return label;
}

void Executor::compute(const Action& action, const std::function<void()>& job) {
  device_.compute().post(label_of(action), job);
}

void Executor::wait_for(const Action& action, Walk& walk) {
  LaneQueue& queue = lane(action.lane) ? *lane(action.lane) : device_.compute();
  for (const int number : action.waits)
    if (const auto found = walk.tickets.find(number); found != walk.tickets.end())
      queue.after(found->second);
}

void Executor::finish_lanes() {
  for (const Lane other : kAllLanes)
    if (LaneQueue* queue = lane(other);
        queue && other != Lane::compute && other != Lane::host)  // its steps go on beside the next
      device_.compute().after(queue->mark());
  times_.collect(lanes_);
}

// On the action's lane if there is one, else at its place. Memory that was just taken may still
// have readers that computation has been given but has not reached: the lane waits for its mark.
void Executor::communicate(const Action& action, Walk& walk, int64_t bytes,
                           std::function<void(const std::string& what)> call) {
  std::string what =
      fmt::format("{}, step {}", describe(action, unit(action.unit).name()), step_ + 1);
  LaneQueue* queue = lane(action.lane) ? lane(action.lane) : &device_.compute();
  if (queue != &device_.compute()) queue->after(device_.compute().mark());
  JobLabel label = label_of(action, bytes);
  if (named()) label.name = what;
  const Ticket ticket = queue->post(
      std::move(label), [call = std::move(call), what = std::move(what)] { call(what); });
  if (action.ticket >= 0 && queue != &device_.compute()) walk.tickets[action.ticket] = ticket;
}

void Executor::gather(const Action& action, Walk& walk) {
  std::vector<Message> messages;
  for (const int unit : units_of(action)) {
    if (action.state == State::stepped) {
      messages.push_back(state_.unit(unit).stepped_message());
      continue;
    }
    state_.unit(unit).acquire();
    messages.push_back(state_.unit(unit).gather_message());
  }
  Channel& channel = channels_.of(Lane::gather);
  communicate(
      action, walk, sent_bytes(messages, channel.ranks()),
      [&channel, messages](const std::string& what) { channel.all_gather(what, messages); });
}

void Executor::reduce(const Action& action, Walk& walk) {
  std::vector<Message> messages;
  for (const int unit : units_of(action)) {
    state_.unit(unit).begin_reduce();
    messages.push_back(state_.unit(unit).reduce_message());
  }
  // Where every rank updates everything, every rank needs the whole sum.
  const bool whole = !state_.unit(action.unit).homes().optimizer.sharded;
  Channel& channel = channels_.of(Lane::reduce);
  communicate(action, walk, (whole ? 2 : 1) * sent_bytes(messages, channel.ranks()),
              [&channel, messages, whole](const std::string& what) {
                if (whole)
                  channel.all_reduce(what, messages);
                else
                  channel.reduce_scatter(what, messages);
              });
}

// Between the shares of a unit, in the order of computation. Of a forward that is computed again
// there may be no output, and so nothing that travels.
void Executor::exchange(const Action& action, Walk& walk) {
  if (!channels_.has(Lane::exchange)) return;  // one rank: nothing travels
  if (action.state == State::gradients) {
    exchange_gradients(action, walk, channels_.of(Lane::exchange), true);
    if (channels_.replicas() != nullptr)
      exchange_gradients(action, walk, *channels_.replicas(), false);
    return;
  }
  Channel& channel = channels_.of(Lane::exchange);
  const UnitCall& call = *walk.frame.call;
  const Tensor tensor = unit(action.unit).boundary(action.of_backward, action.phase, call);
  if (tensor.empty()) return;
  const bool sums =
      unit(action.unit).phase(action.of_backward, action.phase, call.batch.tokens_count()).role ==
      Role::sum;
  require(tensor.contiguous() && tensor.elems() % channel.ranks() == 0, "{}x{} over {} shares",
          tensor.rows, tensor.cols, channel.ranks());
  const int64_t elems = tensor.elems() / channel.ranks();
  const std::vector<Message> messages = {
      {tensor.data, tensor.flat().col_range(channel.rank() * elems, elems).data, elems,
       tensor.dtype}};
  communicate(action, walk, (sums ? 2 : 1) * sent_bytes(messages, channel.ranks()),
              [&channel, messages, sums](const std::string& what) {
                if (sums)
                  channel.all_reduce(what, messages);
                else
                  channel.all_gather(what, messages);
              });
}

// What shares have parts of, all of it in one message.
void Executor::exchange_gradients(const Action& action, Walk& walk, Channel& channel,
                                  bool over_all) {
  UnitState& own = state_.unit(action.unit);
  std::vector<Tensor> parts;
  int64_t elems = 0;
  for (size_t p = 0; p < own.layout().params().size(); ++p) {
    const ParamSpec& param = own.layout().params()[p];
    if (param.summed_from < 0 || param.summed_over_all != over_all) continue;
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
      action, walk, 2 * sent_bytes(messages, channel.ranks()),
      [&channel, messages](const std::string& what) { channel.all_reduce(what, messages); });
  compute(action, [&] { copy_parts(true); });
}

// Between the device and another tier.
void Executor::move(const Action& action, Walk& walk) {
  const bool in = action.verb == Verb::fetch;
  UnitState& own = state_.unit(action.unit);
  LaneQueue* queue = lane(action.lane) ? lane(action.lane) : &device_.compute();
  std::optional<Ticket>& stepped = pending_[static_cast<size_t>(action.unit)];
  if (action.state == State::stepped && !stepped) return;  // nothing was, since it was last read
  if (action.state == State::stepped || action.state == State::parameters) {
    if (stepped) queue->after(*stepped);
    stepped.reset();
  }
  const std::vector<Transfer> transfers = in ? own.fetch(action.state) : own.spill(action.state);
  if (queue != &device_.compute()) queue->after(device_.compute().mark());
  const Buffer& through = through_[static_cast<size_t>(in ? Lane::fetch : Lane::spill)];
  Ticket ticket;
  for (const Transfer& transfer : transfers)
    ticket = tiers_.copy(*queue, label_of(action), transfer, in ? Tiers::Way::in : Tiers::Way::out,
                         {static_cast<std::byte*>(through.data()),
                          static_cast<size_t>(through ? through.bytes() : 0)});
  if (action.ticket >= 0 && queue != &device_.compute()) walk.tickets[action.ticket] = ticket;
}

void Executor::add_params(int index, std::vector<Tensor>& params) const {
  const UnitState& own = state_.unit(index);
  for (size_t p = 0; p < own.layout().params().size(); ++p)
    params.push_back(own.param(static_cast<int>(p)));
  for (const Unit::Shared shared : unit(index).shared())
    params.push_back(state_.unit(shared.unit).param(shared.param));
}

void Executor::add_grads(int index, std::vector<Tensor>& grads) {
  UnitState& own = state_.unit(index);
  for (size_t p = 0; p < own.layout().params().size(); ++p)
    grads.push_back(own.grad(static_cast<int>(p)));
  for (const Unit::Shared shared : unit(index).shared())
    grads.push_back(state_.unit(shared.unit).grad(shared.param));
}

UnitCall Executor::call_for(const UnitBatch& batch, std::span<const Tensor> params) {
  UnitCall call{.kernels = device_.kernels(), .arena = arena_, .batch = batch, .params = params};
  if (rope_) call.rope = rope_.as(rope_positions_, model_.spec.head_dim);
  call.losses =
      losses_.as(1, std::min(batch.tokens_count(), options_.micro_batch * options_.sequence));
  call.seed = options_.seed;
  call.step = step_;
  return call;
}

void Executor::call_unit(int index, const UnitBatch& batch,
                         const std::function<void(UnitCall&)>& body) {
  std::vector<Tensor> params;
  add_params(index, params);
  UnitCall call = call_for(batch, params);
  const Arena::Scope scope(arena_);
  device_.compute().post({.tag = static_cast<int>(Verb::forward)}, [&] { body(call); });
  times_.collect(lanes_);
}

Tensor Executor::input_of(const Walk& walk, int unit, int micro) const {
  const auto m = static_cast<size_t>(micro);
  return walk.held[static_cast<size_t>(unit) * walk.micros.size() + m].input.as(
      walk.micros[m].tokens_count(), model_.spec.hidden_size, type());
}

void Executor::read_losses(std::span<float> losses) const {
  download(device_, losses_.as(1, static_cast<int64_t>(losses.size())), losses);
}

// What both directions have in common: parameters, input, and what forward has saved.
void Executor::open_frame(const Action& action, Walk& walk) {
  const UnitBatch& batch = walk.micros[static_cast<size_t>(action.micro)];
  Walk::Held& own = held(walk, action.unit, action.micro);
  Walk::Frame& frame = walk.frame;
  frame.params.clear();
  frame.grads.clear();
  if (action.verb == Verb::forward || unit(action.unit).backward_reads_parameters())
    add_params(action.unit, frame.params);
  frame.arena_top = arena_.mark();
  frame.call.emplace(call_for(batch, frame.params));
  UnitCall& call = *frame.call;
  if (own.input) call.input = own.input.as(batch.tokens_count(), model_.spec.hidden_size, type());
  call.training = walk.training;
  if (walk.training) call.dropout = model_.spec.dropout;
  const int block = unit(action.unit).block();
  if (!walk.caches.empty()) call.cache = &walk.caches[static_cast<size_t>(std::max(block, 0))];
  if (action.verb == Verb::forward) {
    const int64_t bytes = unit(action.unit).saved_bytes(batch.batch, batch.sequence, type());
    if (bytes > 0) own.saved = ledger_.allocate(Kind::activations, bytes, unit(action.unit).name());
  }
  if (own.saved) call.saved = own.saved.as(1, own.saved.bytes(), DType::u8);
}

bool Executor::is_last_phase(const Action& action, const Walk& walk) const {
  const int64_t tokens = walk.micros[static_cast<size_t>(action.micro)].tokens_count();
  return action.phase == Action::kAllPhases ||
         action.phase + 1 == unit(action.unit).phases(action.verb == Verb::backward, tokens);
}

void Executor::run_phases(const Action& action, Walk& walk) {
  UnitCall& call = *walk.frame.call;
  const bool backward = action.verb == Verb::backward;
  compute(action, [&] {
    if (walk.in_place_of_loss && unit(action.unit).has_loss())
      walk.in_place_of_loss(call);
    else if (action.phase != Action::kAllPhases)
      unit(action.unit).run(backward, action.phase, call);
    else if (backward)
      unit(action.unit).backward(call);
    else
      unit(action.unit).forward(call);
  });
  if (is_last_phase(action, walk)) arena_.release_to(walk.frame.arena_top);
}

void Executor::forward(const Action& action, Walk& walk) {
  const UnitBatch& batch = walk.micros[static_cast<size_t>(action.micro)];
  const int64_t tokens = batch.tokens_count(), hidden = model_.spec.hidden_size;
  Walk::Held& own = held(walk, action.unit, action.micro);
  if (action.phase <= 0) {  // all, or the first
    open_frame(action, walk);
    if (action.output) {
      Buffer& next = held(walk, action.unit + 1, action.micro).input;
      next = ledger_.allocate(Kind::activations, tokens * hidden * dtype_bytes(type()), "residual");
      walk.frame.call->output = next.as(tokens, hidden, type());
    }
  }
  run_phases(action, walk);
  if (!is_last_phase(action, walk)) return;
  if (walk.watch) walk.watch(action, *walk.frame.call);
  if (unit(action.unit).has_loss() && !walk.in_place_of_loss)
    device_.kernels().sum(walk.frame.call->losses, scalars_.loss(action.micro));
  if (!action.keep_saved) own.saved = {};
  if (!action.keep_input) own.input = {};
}

// The gradient of the residual connection is rewritten in place by each unit: from the one by its
// output to the one by its input.
void Executor::backward(const Action& action, Walk& walk) {
  const auto micro = static_cast<size_t>(action.micro);
  const int64_t tokens = walk.micros[micro].tokens_count(), hidden = model_.spec.hidden_size;
  const bool has_loss = unit(action.unit).has_loss();
  if (action.phase <= 0) {
    open_frame(action, walk);
    add_grads(action.unit, walk.frame.grads);
    if (has_loss)
      walk.gradients[micro] = ledger_.allocate(
          Kind::activations, tokens * hidden * dtype_bytes(type()), "residual gradient");
    UnitCall& call = *walk.frame.call;
    call.grads = walk.frame.grads;
    call.doutput = call.dinput = walk.gradients[micro].as(tokens, hidden, type());
    call.accumulate = action.accumulate;
    call.loss_scale = scalars_.loss_scale();
  }
  run_phases(action, walk);
  if (!is_last_phase(action, walk)) return;
  if (walk.watch) walk.watch(action, *walk.frame.call);
  if (has_loss) device_.kernels().sum(walk.frame.call->losses, scalars_.loss(action.micro));
  held(walk, action.unit, action.micro) = {};
  if (!action.output) walk.gradients[micro] = {};
}

// A shard's pieces are summed one by one, at every stage, so that the norm has the same bits
// wherever the gradient lives.
void Executor::squares(const Action& action) {
  const UnitState& own = state_.unit(action.unit);
  Kernels& kernels = device_.kernels();
  const Tensor gradient = own.gradient_shard();
  std::vector<Squares> list;
  int64_t scratch_bytes = 0;
  const int rank = channels_.of(Lane::reduce).rank();
  for (const SlabPiece& piece : own.trained_layout().shard_pieces(rank)) {
    // What several shares hold is counted by the first.
    const ParamSpec& param = own.layout().params()[static_cast<size_t>(piece.param)];
    const int64_t elems = std::min(piece.elems, param.own_elems() - piece.first);
    scratch_bytes += kernels.sum_squares_scratch_bytes(piece.elems);
    if (elems > 0)
      list.push_back(
          {gradient.col_range(piece.offset, elems), scalars_.squares(action.unit, piece.param)});
  }
  const Arena::Scope scope(arena_);
  kernels.sum_squares(list, scalars_.squares(action.unit), scalars_.sum_of(action.unit),
                      arena_.take_bytes(scratch_bytes));
}

// As PyTorch's clip_grad_norm_: the small constant keeps a norm of exactly the limit from dividing
// up.
void Executor::clip(const Walk& walk) {
  Kernels& kernels = device_.kernels();
  // All shares have the same losses, and one of them counts.
  kernels.sum(scalars_.losses().col_range(0, model_.share.first() ? scalars_.losses().cols : 0),
              scalars_.sum_of_losses());
  if (control_.ranks() > 1) {
    const Message message = scalars_.sums_message(control_.rank());
    channels_.of(Lane::compute).all_reduce(fmt::format("clip, step {}", step_ + 1), {&message, 1});
  }
  kernels.clip({.sums = scalars_.sums(),
                .squares = static_cast<int64_t>(model_.units.size()),
                .limit = options_.clipping,
                .eps = 1e-6,
                .scale = walk.loss_scale,
                .norm = scalars_.norm(),
                .control = scalars_.control()});
}

// The host's copy of what a step reads: it is there when the compute lane's mark is.
void Executor::bring_control() {
  if (!host_.lane) return;
  const StepControl from = scalars_.control(), to = host_control();
  const JobLabel label{.tag = static_cast<int>(Verb::clip)};
  device_.copy(device_.compute(), label, to.factor.data, from.factor.data, sizeof(float));
  device_.copy(device_.compute(), label, to.finite.data, from.finite.data, sizeof(int32_t));
}

StepControl Executor::host_control() const {
  if (!host_.lane) return scalars_.control();
  auto* const memory = static_cast<std::byte*>(host_control_.data());
  return {matrix(memory, 1, 1, DType::f32), matrix(memory + Ledger::kAlignment, 1, 1, DType::i32)};
}

SteppedParam Executor::stepped_param(const UnitState& own, const SlabPiece& piece) const {
  const ParamSpec& param = own.layout().params()[static_cast<size_t>(piece.param)];
  const auto part = [&](Tensor slab, int64_t block = 1) {
    return slab.col_range(piece.offset / block, (piece.elems + block - 1) / block);
  };
  Stepped stepped{part(own.stepped_parameters()), part(own.stepped_gradients())};
  std::vector<Tensor> states;
  for (int i = 0; i < own.states(); ++i)
    if (i != own.master()) states.push_back(part(own.stepped_state(i), own.block(i)));
  if (own.master() >= 0) stepped.master = part(own.stepped_state(own.master()));
  if (rounds(own))
    stepped.rounding = {philox_key(options_.seed, Draw::rounding, static_cast<uint32_t>(step_),
                                   param.layer_key, param.place_key),
                        piece.first};
  return {param.decay, stepped, std::move(states)};
}

bool Executor::rounds(const UnitState& own) const {
  return (options_.precision.compute != DType::f32 && own.master() < 0) ||
         options_.precision.moments != DType::f32;
}

// Rounding draws numbers by an element's place in the whole parameter: a divided one is stepped in
// pieces that lie together there.
std::vector<SteppedParam> Executor::stepped_params(int unit) const {
  const UnitState& own = state_.unit(unit);
  std::vector<SteppedParam> params;
  for (const SlabPiece& piece : own.stepped_pieces()) {
    const auto p = static_cast<size_t>(piece.param);
    if (!rounds(own)) {
      params.push_back(stepped_param(own, piece));
      continue;
    }
    for_each_run(own.layout().params()[p], state_.whole_params(unit)[p].cols, piece.first,
                 piece.first + piece.elems, [&](int64_t at, int64_t whole_at, int64_t elems) {
                   params.push_back(stepped_param(
                       own, {piece.param, whole_at, elems, piece.offset + at - piece.first}));
                 });
  }
  return params;
}

void Executor::step(const Action& action, Walk& walk) {
  UnitState& own = state_.unit(action.unit);
  if (own.host_steps())
    host_step(action, walk);
  else
    compute(action, [&] {
      optimizer_step(device_.kernels(), options_.optimizer, walk.updates + 1, walk.rates,
                     scalars_.control(), stepped_params(action.unit));
    });
  if (!options_.keep_gradients) own.drop_gradients();
}

// It may outlive the walk: the next one waits for it where it reads what was stepped.
void Executor::host_step(const Action& action, Walk& walk) {
  const UnitState& own = state_.unit(action.unit);
  LaneQueue& queue = host_.lane ? *host_.lane : device_.compute();
  if (host_.lane) queue.after(device_.compute().mark());
  const auto job = [this, &own, &kernels = host_.lane ? *host_.kernels : device_.kernels(),
                    step = walk.updates + 1, rates = walk.rates, control = host_control(),
                    params = stepped_params(action.unit)] {
    optimizer_step(kernels, options_.optimizer, step, rates, control, params);
    if (!device_.dry() && *control.finite.i32() == 0) own.fill_outbox();
  };
  const Ticket ticket = queue.post(label_of(action), job);
  pending_[static_cast<size_t>(action.unit)] = ticket;
  if (action.ticket >= 0) walk.tickets[action.ticket] = ticket;
}

void Executor::settle() {
  if (host_.lane) host_.lane->wait(host_.lane->mark().number);
  for (int u = 0; u < state_.units(); ++u) {
    std::optional<Ticket>& stepped = pending_[static_cast<size_t>(u)];
    if (stepped && state_.unit(u).has_outbox())
      for (const Transfer& transfer : state_.unit(u).fetch(State::stepped))
        tiers_.copy(device_.compute(), {.tag = static_cast<int>(Verb::fetch)}, transfer,
                    Tiers::Way::in);
    stepped.reset();
  }
}

}  // namespace onefold
