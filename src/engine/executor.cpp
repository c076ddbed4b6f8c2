#include "engine/executor.h"

#include <algorithm>
#include <cstring>

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
                   RankState& state, const std::vector<UnitTraits>& traits,
                   const EngineOptions& options, Channels& channels, Control& control)
    : device_(device),
      tiers_(tiers),
      ledger_(ledger),
      model_(model),
      state_(state),
      traits_(traits),
      options_(options),
      channels_(channels),
      control_(control),
      scalars_(device, ledger, model, options, control.ranks()),
      load_(device, ledger, model, control.ranks()),
      pending_(model.units.size()),
      step_ranks_(make_step_ranks(channels)) {
  for (const auto& unit : model.units) {
    groups_.emplace_back();
    for (const ParamSpec& param : unit->params())
      groups_.back().push_back(options.optimizer.group_of(param.name));
  }
  const ModelSpec& spec = model.spec;
  losses_ = ledger.allocate(Kind::workspace, options.tokens() * dtype_bytes(DType::f32), "losses");
  if (spec.positions == Positions::rope) {
    rope_positions_ = std::max(options.positions, options.sequence);
    rope_ =
        ledger.allocate(Kind::workspace,
                        rope_positions_ * spec.rope_cols() * dtype_bytes(DType::f32), "rope table");
    const Tensor rows = rope_.as(rope_positions_, spec.rope_cols());
    for (int64_t row = 0; row < rope_positions_ && !device.dry(); ++row)
      device.write(rows.row_range(row, 1), [&](int64_t, std::span<std::byte> piece) {
        rope_row(spec, row,
                 {reinterpret_cast<float*>(piece.data()), static_cast<size_t>(spec.rope_cols())});
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
    host_control_ = ledger.allocate(
        Kind::workspace,
        kFactorsPlace * Ledger::kAlignment + scalars_.factors().cols * dtype_bytes(DType::f32),
        "step control", Tier::host);
}

// Lanes wait for each other: all must be still before one goes. Where a walk has failed those of
// the channels may still use what is held here (the arena, packets), and a card's computation may
// come to wait for the host's lane only now.
Executor::~Executor() {
  for (const Lane lane : kAllLanes) try {
      if (LaneQueue* const queue = this->lane(lane)) queue->wait(queue->mark().number);
    } catch (const std::exception&) {  // whoever waited for it has heard of it
    }
}

// A rank that fails must not leave the others waiting, nor its own lanes waiting for the others.
void Executor::run(const Program& program, Walk& walk, int64_t step) {
  step_ = step;
  updates_ = walk.updates;
  walk.held.resize(model_.units.size() * walk.micros.size());
  walk.gradients.resize(walk.micros.size());
  if (reduces_.on() && walk.training) set_formats(walk.loss_scale);
  try {
    for (const Action& action : program.actions) {
      ledger_.moment([this, verb = action.verb, unit = action.unit, micro = action.micro,
                      of_backward = action.of_backward, state = action.state,
                      joined = action.joined] {
        const Action what{.verb = verb,
                          .unit = unit,
                          .micro = micro,
                          .of_backward = of_backward,
                          .state = state,
                          .joined = joined};
        return describe(what, this->unit(unit).name());
      });
      action_ = static_cast<int>(&action - program.actions.data());
      perform(action, walk);
    }
    action_ = -1;
    finish_lanes();
  } catch (const PeerError&) {
    abandon(walk);
    throw;
  } catch (const AgreedError&) {
    abandon(walk);
    throw;
  } catch (const std::exception& error) {
    control_.abort(error.what());
    abandon(walk);
    throw;
  } catch (...) {
    abandon(walk);
    throw;
  }
}

// A lane may still be sending, receiving or summing what the walk holds, or another rank be reading
// it.
void Executor::abandon(Walk& walk) {
  state_.keep_to_the_end(std::make_shared<std::vector<Walk::Held>>(std::move(walk.held)));
  state_.keep_to_the_end(std::make_shared<std::vector<Buffer>>(std::move(walk.gradients)));
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
      if (action.state == State::activations) return release_activations(action, walk);
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
      return compute(action, [&] { squares(action, walk); });
    case Verb::clip:
      compute(action, [&] { clip(walk); });
      return bring_control();
    case Verb::step:
      return step(action, walk);
    case Verb::send:
      return action.state == State::gradients ? pass_gradients(action, walk) : send(action, walk);
    case Verb::recv:
      return action.state == State::gradients ? pass_gradients(action, walk)
                                              : receive(action, walk);
  }
}

JobLabel Executor::label_of(const Action& action, int64_t bytes) const {
  JobLabel label{.tag = static_cast<int>(action.verb), .bytes = bytes, .action = action_};
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
  // A step of the host that failed: a stream that waited for it has not heard why.
  if (host_.lane) host_.lane->wait(0);
  times_.collect(lanes_);
}

// On the action's lane if there is one, else at its place. Memory that was just taken may still
// have readers that computation has been given but has not reached: the lane waits for its mark.
void Executor::communicate(const Action& action, Walk& walk, const Channel& channel, Travel travel,
                           int64_t bytes, std::function<void(const std::string& what)> call,
                           const PackCost& besides) {
  std::string what =
      fmt::format("{}, step {}", describe(action, unit(action.unit).name()), step_ + 1);
  LaneQueue* queue = lane(action.lane) ? lane(action.lane) : &device_.compute();
  if (queue != &device_.compute()) queue->after(device_.compute().mark());
  JobLabel label = label_of(action, bytes);
  label.core_seconds = besides.core_seconds;
  label.card_bytes = besides.card_bytes;
  label.host_links =
      travel == Travel::together ? channel.host_members() : std::min(1, channel.host_members());
  if (named()) label.name = what;
  const Ticket ticket = queue->post(
      std::move(label), [call = std::move(call), what = std::move(what)] { call(what); });
  if (action.ticket >= 0 && queue != &device_.compute()) walk.tickets[action.ticket] = ticket;
}

void Executor::gather(const Action& action, Walk& walk) {
  if (action.packed) return gather_packed(action, walk);
  std::vector<Message> messages;
  for (const int unit : units_of(action)) {
    if (action.state == State::stepped) {
      messages.push_back(state_.unit(unit).stepped_message());
      continue;
    }
    state_.unit(unit).acquire();
    messages.push_back(action.inside ? state_.unit(unit).node_message()
                                     : state_.unit(unit).gather_message());
  }
  Channel& channel = action.inside ? channels_.node(traits(action.unit))
                                   : channels_.of(Lane::gather, traits(action.unit));
  const UnitState& own = state_.unit(action.unit);
  UnitState::NodeCopy kept;
  if (own.in_node() && action.state == State::parameters && !action.inside) kept = own.node_copy();
  communicate(
      action, walk, channel, Travel::together, sent_bytes(messages, channel.ranks()),
      [&channel, kept, messages, memory = channels_.memory(Lane::gather)](const std::string& what) {
        channel.all_gather(what, messages);
        if (kept.to == nullptr) return;
        if (memory)
          memory->copy(kept.from, kept.to, kept.bytes);
        else
          std::memcpy(kept.to, kept.from, static_cast<size_t>(kept.bytes));
      });
}

void Executor::reduce(const Action& action, Walk& walk) {
  if (action.packed && reduces_.wire) return reduce_packed(action, walk);
  std::vector<Message> messages;
  for (const int unit : units_of(action)) {
    state_.unit(unit).begin_reduce();
    messages.push_back(state_.unit(unit).reduce_message());
    if (walk.stale) compensate(unit);
  }
  // Where every rank updates everything, every rank needs the whole sum.
  const bool whole = !state_.unit(action.unit).homes().optimizer.sharded;
  Channel& channel = channels_.of(Lane::reduce, traits(action.unit));
  communicate(action, walk, channel, Travel::together,
              (whole ? 2 : 1) * sent_bytes(messages, channel.ranks()),
              [&channel, messages, whole](const std::string& what) {
                if (whole)
                  channel.all_reduce(what, messages);
                else
                  channel.reduce_scatter(what, messages);
              });
}

// Room where they go; what they leave stays until the copy is done: on the device until the
// release, on the other tier until their reader has them.
std::vector<Transfer> Executor::move_activations(const Action& action, Walk& walk) {
  const Tier tier = options_.offload.activations;
  const bool in = action.verb == Verb::fetch;
  Walk::Held& own = held(walk, action.unit, action.micro);
  std::vector<Transfer> transfers;
  const auto add = [&](Buffer& here, Buffer& away) {
    Buffer &from = in ? away : here, &to = in ? here : away;
    if (!from) return;
    to = ledger_.allocate(Kind::activations, from.bytes(), unit(action.unit).name(),
                          in ? Tier::device : tier);
    transfers.push_back({tier, away.data(), here.data(), from.bytes()});
  };
  add(own.input, own.input_away);
  add(own.saved, own.saved_away);
  return transfers;
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
  const std::vector<Transfer> transfers = action.state == State::activations
                                              ? move_activations(action, walk)
                                          : in ? own.fetch(action.state)
                                               : own.spill(action.state);
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

UnitCall Executor::call_for(const UnitBatch& batch, std::span<const Tensor> params, Arena& arena) {
  UnitCall call{.kernels = device_.kernels(), .arena = arena, .batch = batch, .params = params};
  if (rope_) call.rope = rope_.as(rope_positions_, model_.spec.rope_cols());
  call.losses = losses_.as(1, std::min(batch.tokens_count(), options_.tokens()));
  call.seed = options_.seed;
  call.step = step_;
  return call;
}

void Executor::call_unit(int index, const UnitBatch& batch,
                         const std::function<void(UnitCall&)>& body) {
  std::vector<Tensor> params;
  add_params(index, params);
  UnitCall call = call_for(batch, params, arena_);
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
void Executor::open_frame(const Action& action, Walk& walk, Walk::Frame& frame, Arena& arena) {
  const UnitBatch& batch = walk.micros[static_cast<size_t>(action.micro)];
  Walk::Held& own = held(walk, action.unit, action.micro);
  frame.params.clear();
  frame.grads.clear();
  if (action.verb == Verb::forward || unit(action.unit).backward_reads_parameters())
    add_params(action.unit, frame.params);
  frame.arena_top = arena.mark();
  own.input_away = {};
  own.saved_away = {};
  frame.call.emplace(call_for(batch, frame.params, arena));
  UnitCall& call = *frame.call;
  if (own.input)
    call.input = model_.share.scattered ? gathered(action, walk, own.input)
                                        : all_tokens(walk, action.micro, own.input.data());
  call.training = walk.training;
  call.rows_needed = load_.rows_needed(action.unit);
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

// Whether a call of a whole unit does the same work whenever it is given the same memory: it draws
// no random numbers, nothing of it is divided, and nobody else looks at it.
bool Executor::repeats(const Action& action, const Walk& walk) const {
  const ModelSpec& spec = model_.spec;
  return action.phase == Action::kAllPhases && !walk.in_place_of_loss && !walk.watch &&
         walk.caches.empty() && unit(action.unit).experts() == 0 &&
         (!walk.training || (spec.dropout == 0 && spec.lora.dropout == 0));
}

// The rows of a call; false: there are none.
bool Executor::take_rows(const Action& action, UnitCall& call) const {
  call.rows = {};
  if (action.chunk.count == 1) return true;
  call.rows = rows_of(action.chunk, call.batch.tokens_count());
  return call.rows.size > 0;
}

void Executor::run_phases(const Action& action, Walk& walk) {
  UnitCall& call = *walk.frame.call;
  if (!take_rows(action, call)) return;
  const bool backward = action.verb == Verb::backward;
  const auto job = [&] {
    if (walk.in_place_of_loss && unit(action.unit).has_loss())
      walk.in_place_of_loss(call);
    else if (action.phase != Action::kAllPhases)
      unit(action.unit).run(backward, action.phase, call);
    else if (backward)
      unit(action.unit).backward(call);
    else
      unit(action.unit).forward(call);
  };
  if (repeats(action, walk))
    device_.compute().repeat(
        label_of(action),
        [&] { return fmt::format("{} {} ", action.unit, backward) + call.identity(); },
        [&, arena_top = call.arena.mark()] {  // which may be begun again
          call.arena.release_to(arena_top);
          call.temps = {};
          job();
        });
  else
    compute(action, job);
  if (!is_last_phase(action, walk)) return;
  if (model_.share.scattered) scatter_result(action, walk);
  arena_.release_to(walk.frame.arena_top);
}

void Executor::forward(const Action& action, Walk& walk) {
  Walk::Held& own = held(walk, action.unit, action.micro);
  if (action.phase <= 0) {  // all, or the first
    open_frame(action, walk, walk.frame, arena_);
    if (action.output) {
      Buffer& next = held(walk, action.unit + 1, action.micro).input;
      next = ledger_.allocate(Kind::activations, residual_bytes(walk, action.micro), "residual");
      walk.frame.call->output = residual_of(walk, action.micro, next);
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
void Executor::set_gradients(const Action& action, Walk& walk, Walk::Frame& frame,
                             const Buffer& doutput) {
  UnitCall& call = *frame.call;
  call.grads = frame.grads;
  if (model_.share.scattered) {
    // The unit with the loss makes the first one.
    call.doutput = call.dinput = unit(action.unit).has_loss()
                                     ? residual_of(walk, action.micro, doutput)
                                     : gathered(action, walk, doutput);
  } else {
    call.doutput = all_tokens(walk, action.micro, doutput.data());
    call.dinput =
        all_tokens(walk, action.micro, walk.gradients[static_cast<size_t>(action.micro)].data());
  }
  call.accumulate = action.accumulate;
  call.loss_scale = scalars_.loss_scale();
  call.router_scale = load_.scale();
  call.load = load_.of(action.unit);
}

void Executor::backward(const Action& action, Walk& walk) {
  if (action.part == Part::by_input) return backward_by_input(action, walk);
  if (action.part == Part::by_weights) return backward_by_weights(action, walk);
  const auto micro = static_cast<size_t>(action.micro);
  const bool has_loss = unit(action.unit).has_loss();
  if (action.phase <= 0) {
    open_frame(action, walk, walk.frame, arena_);
    add_grads(action.unit, walk.frame.grads);
    if (has_loss)
      walk.gradients[micro] = ledger_.allocate(
          Kind::activations, residual_bytes(walk, action.micro), "residual gradient");
    set_gradients(action, walk, walk.frame, walk.gradients[micro]);
  }
  run_phases(action, walk);
  if (!is_last_phase(action, walk)) return;
  if (walk.watch) walk.watch(action, *walk.frame.call);
  if (has_loss) device_.kernels().sum(walk.frame.call->losses, scalars_.loss(action.micro));
  held(walk, action.unit, action.micro) = {};
  if (!action.output) walk.gradients[micro] = {};
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
