// What the stages of a pipeline pass to each other.
#include <algorithm>

#include "engine/executor.h"

namespace onefold {

std::string Executor::carried_text(const Action& action) const {
  return fmt::format("{}, step {}", carried(action, unit(action.unit).name()), step_ + 1);
}

int64_t Executor::residual_bytes(const Walk& walk, int micro) const {
  const int64_t tokens = walk.micros[static_cast<size_t>(micro)].tokens_count();
  return tokens / (model_.share.scattered ? model_.share.count : 1) * model_.spec.hidden_size *
         dtype_bytes(type());
}

// The stage that a message comes from: that of the unit before the one that reads it.
int Executor::sender_of(const Action& action) const {
  return traits(action.of_backward ? action.unit + 1 : action.unit - 1).place;
}

// What was computed for a unit of another stage leaves this rank, and is kept until it is sent.
void Executor::send(const Action& action, Walk& walk) {
  Walk::Held& there = held(walk, action.unit, action.micro);
  Buffer& leaving = action.of_backward ? there.leaving_back : there.leaving;
  leaving = std::move(action.of_backward ? walk.gradients[static_cast<size_t>(action.micro)]
                                         : there.input);
  const int64_t bytes = residual_bytes(walk, action.micro);
  Channel& channel = channels_.hop(action.of_backward, sender_of(action));
  communicate(
      action, walk, channel, Travel::apart, bytes,
      [&channel, bytes, data = leaving.data(), to = traits(action.unit).place,
       what = carried_text(action)](const std::string&) { channel.send(what, to, data, bytes); });
}

void Executor::receive(const Action& action, Walk& walk) {
  Buffer& place = action.of_backward ? walk.gradients[static_cast<size_t>(action.micro)]
                                     : held(walk, action.unit, action.micro).input;
  const int64_t bytes = residual_bytes(walk, action.micro);
  place = ledger_.allocate(Kind::activations, bytes,
                           action.of_backward ? "residual gradient" : "residual");
  const int from = sender_of(action);
  Channel& channel = channels_.hop(action.of_backward, from);
  communicate(action, walk, channel, Travel::apart, bytes,
              [&channel, bytes, from, data = place.data(), what = carried_text(action)](
                  const std::string&) { channel.receive(what, from, data, bytes); });
}

void Executor::release_activations(const Action& action, Walk& walk) const {
  Walk::Held& own = held(walk, action.unit, action.micro);
  if (traits(action.unit).here()) {
    own.input = {};
    own.saved = {};
  } else {
    (action.of_backward ? own.leaving_back : own.leaving) = {};
  }
}

// Of a unit that two ranks have: what the one with the copy has added, which is of parameters that
// its own units share; and the whole, of all parameters, which comes back.
std::vector<Tensor> Executor::passed_gradients(const Action& action) {
  UnitState& own = state_.unit(action.unit);
  const auto params = static_cast<int>(own.layout().params().size());
  const bool complete = traits(action.unit).here() == (action.verb == Verb::send);
  std::vector<bool> wanted(static_cast<size_t>(params), complete);
  for (const auto& other : model_.units)
    for (const Unit::Shared shared : other->shared())
      if (shared.unit == action.unit) wanted[static_cast<size_t>(shared.param)] = true;
  std::vector<Tensor> parts;
  for (int p = 0; p < params; ++p)
    if (wanted[static_cast<size_t>(p)])
      if (const Tensor part = own.grad(p); !part.empty()) parts.push_back(part);
  return parts;
}

// In the order of computation: both ranks have nothing else left to do before clipping.
void Executor::pass_gradients(const Action& action, Walk& walk) {
  const bool sends = action.verb == Verb::send;
  int peer = traits(action.unit).place;
  if (traits(action.unit).here())
    for (size_t u = 0; u < model_.units.size(); ++u)
      for (const Unit::Shared shared : model_.units[u]->shared())
        if (shared.unit == action.unit) peer = traits_[u].place;
  for (const Tensor& part : passed_gradients(action)) {
    const int64_t bytes = part.elems() * dtype_bytes(part.dtype);
    communicate(action, walk, *channels_.stages(), Travel::apart, bytes,
                [&channel = *channels_.stages(), sends, peer, bytes, data = part.data,
                 what = carried_text(action)](const std::string&) {
                  if (sends)
                    channel.send(what, peer, data, bytes);
                  else
                    channel.receive(what, peer, data, bytes);
                });
  }
}

// ---- Backward in two parts, of which the second comes when the rank would stand still

void Executor::run_part(const Action& action, UnitCall& call) {
  const Unit& own = unit(action.unit);
  const int64_t tokens = call.batch.tokens_count();
  if (!take_rows(action, call)) return;
  compute(action, [&] {
    if (action.phase != Action::kAllPhases) return own.run(true, action.phase, call);
    for (int phase = 0; phase < own.phases(true, tokens); ++phase)
      if (own.phase(true, phase, tokens).by_weights == (action.part == Part::by_weights))
        own.run(true, phase, call);
  });
}

// The gradient of the output stays for the second part, and so does what phases leave in memory of
// their own.
std::unique_ptr<Walk::Later> Executor::open_later(const Action& action, Walk& walk) {
  const auto micro = static_cast<size_t>(action.micro);
  auto later = std::make_unique<Walk::Later>();
  if (!measures_)
    later->arena =
        Arena(ledger_.allocate(Kind::activations, later_bytes_[static_cast<size_t>(action.unit)],
                               "until gradients of weights"));
  later->gathered_from = arena_.mark();
  later->doutput = std::move(walk.gradients[micro]);
  walk.gradients[micro] =
      ledger_.allocate(Kind::activations, residual_bytes(walk, action.micro), "residual gradient");
  open_frame(action, walk, later->frame, later->arena);
  add_grads(action.unit, later->frame.grads);
  set_gradients(action, walk, later->frame, later->doutput);
  return later;
}

void Executor::backward_by_input(const Action& action, Walk& walk) {
  std::unique_ptr<Walk::Later>& later = held(walk, action.unit, action.micro).later;
  if (!later) later = open_later(action, walk);
  walk.later = later.get();
  run_part(action, *later->frame.call);
  if (!is_last_phase(action, walk)) return;
  if (model_.share.scattered) {
    scatter_result(action, walk);
    arena_.release_to(later->gathered_from);
  }
  walk.later = nullptr;
  if (walk.watch) walk.watch(action, *later->frame.call);
  if (!action.output) walk.gradients[static_cast<size_t>(action.micro)] = {};
}

// Parameters and gradients may have been brought anew. Of what is whole in computation alone a run
// was kept, which is gathered once more: keeping all of it for every micro-batch that waits would
// take what dividing it has saved.
void Executor::backward_by_weights(const Action& action, Walk& walk) {
  Walk::Later& later = *held(walk, action.unit, action.micro).later;
  Walk::Frame& frame = later.frame;
  frame.params.clear();
  frame.grads.clear();
  add_params(action.unit, frame.params);
  add_grads(action.unit, frame.grads);
  frame.call->params = frame.params;
  frame.call->grads = frame.grads;
  frame.call->dinput = {};
  const Arena::Scope scope(arena_);
  if (model_.share.scattered) {
    Walk::Held& own = held(walk, action.unit, action.micro);
    if (own.input) frame.call->input = gathered(action, walk, own.input);
    if (later.doutput) frame.call->doutput = gathered(action, walk, later.doutput);
  }
  run_part(action, *frame.call);
  if (walk.watch) walk.watch(action, *frame.call);
  if (measures_) {
    later_bytes_.resize(model_.units.size());
    int64_t& most = later_bytes_[static_cast<size_t>(action.unit)];
    most = std::max(most, later.arena.high_water_bytes());
  }
  held(walk, action.unit, action.micro) = {};
}

}  // namespace onefold
