#include "engine/engine.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "kernels/dry/dry_kernels.h"
#include "program/passes.h"

namespace onefold {
namespace {

// Parameters are initialised in pieces of this many elements, shared out over the pool.
constexpr int64_t kInitPiece = int64_t{1} << 18;

int64_t count_valid(const BatchView& batch) {
  const int32_t* targets = batch.targets.i32();
  if (!targets) return batch.tokens_count();  // dry: every target counts
  return std::count_if(targets, targets + batch.tokens_count(),
                       [](int32_t target) { return target >= 0; });
}

// Summed in token order, in double.
double sum_losses(Tensor losses) {
  double sum = 0;
  if (const float* loss = losses.f32())
    for (int64_t i = 0; i < losses.elems(); ++i) sum += loss[i];
  return sum;
}

BatchView dry_batch(int64_t batch, int64_t sequence) {
  const Tensor row = matrix(nullptr, 1, batch * sequence, DType::i32);
  return {row, row, nullptr, batch, sequence};
}

}  // namespace

// One unit's slabs, and what it holds for each micro-batch in flight.
struct Engine::UnitState {
  SlabLayout layout;
  Slab params;
  std::optional<Slab> grads;  // from the unit's first backward to its step
  std::vector<Slab> optimizer;
  std::vector<Tensor> param_views;  // own, then shared
  double sum_squares = 0;

  UnitState(Ledger& ledger, const Unit& unit, const EngineOptions& options)
      : layout(unit.params(), 1), params(ledger, layout, Kind::parameters, unit.name()) {
    if (!options.training) return;
    for (int i = 0; i < options.optimizer.state_count(); ++i)
      optimizer.emplace_back(ledger, layout, Kind::optimizer, unit.name());
  }
};

// The state of one walk over a program: what has been computed and is still needed.
struct Engine::Walk {
  struct Held {
    Buffer input, saved;
  };
  std::span<const BatchView> micros;
  std::vector<std::vector<Held>> held;  // [unit][micro]
  std::vector<Buffer> streams;          // [micro]
  std::span<KvCache> caches;
  bool training = false;
  float loss_scale = 0;
  double loss_sum = 0;
  double learning_rate = 0;
  double gradient_scale = 1;

  Walk(std::span<const BatchView> batches, size_t units)
      : micros(batches), held(units), streams(batches.size()) {
    for (auto& unit : held) unit.resize(batches.size());
  }
};

Engine::Engine(const ModelSpec& spec, const EngineOptions& options)
    : Engine(spec, options, Ledger::Memory::real, measure_arena(spec, options)) {}

Engine::Engine(const ModelSpec& spec, const EngineOptions& options, Ledger::Memory memory,
               int64_t arena_bytes)
    : model_(spec),
      options_(options),
      pool_(std::make_unique<ThreadPool>(options.threads)),
      ledger_(memory, options.memory_limit_bytes),
      kernels_(make_cpu_kernels(*pool_)) {
  const int units = static_cast<int>(model_.units.size());
  if (memory == Ledger::Memory::dry) kernels_ = std::make_unique<DryKernels>(std::move(kernels_));
  training_ = build_training_step(units, options.micros);
  accumulate(training_);
  if (options.recompute) recompute(training_);
  evaluation_ = build_evaluation(units);
  allocate(arena_bytes);
}

Engine::~Engine() = default;

void Engine::allocate(int64_t arena_bytes) {
  ledger_.moment("allocating the training state");
  const ModelSpec& spec = model_.spec;
  for (const auto& unit : model_.units)
    states_.push_back(std::make_unique<UnitState>(ledger_, *unit, options_));
  for (size_t u = 0; u < states_.size(); ++u) {
    UnitState& state = *states_[u];
    state.param_views = state.params.views();
    for (const Unit::Shared shared : model_.units[u]->shared()) {
      const UnitState& owner = *states_[static_cast<size_t>(shared.unit)];
      state.param_views.push_back(owner.params.param(shared.param));
    }
  }
  const int64_t tokens = options_.micro_batch * options_.sequence;
  losses_ = ledger_.allocate(Kind::workspace, tokens * dtype_bytes(DType::f32), "losses");
  if (spec.positions == Positions::rope) {
    rope_ = ledger_.allocate(Kind::workspace,
                             spec.max_sequence_length * spec.head_dim * dtype_bytes(DType::f32),
                             "rope table");
    if (rope_.data()) fill_rope_table(spec, rope_.as(spec.max_sequence_length, spec.head_dim));
  }
  if (arena_bytes > 0)
    arena_ = Arena(ledger_.allocate(Kind::workspace, arena_bytes, "scratch arena"));
  if (ledger_.memory() == Ledger::Memory::dry) return;
  for (size_t u = 0; u < states_.size(); ++u) {
    const auto& params = model_.units[u]->params();
    for (size_t p = 0; p < params.size(); ++p) {
      Tensor flat = states_[u]->params.param(static_cast<int>(p)).flat();
      pool_->run((flat.cols + kInitPiece - 1) / kInitPiece, [&](int64_t piece, int) {
        const int64_t first = piece * kInitPiece;
        initialise(params[p], spec, options_.seed, static_cast<int>(u), static_cast<int>(p), first,
                   flat.col_range(first, std::min(kInitPiece, flat.cols - first)));
      });
    }
    for (Slab& slab : states_[u]->optimizer) kernels_->fill(slab.flat(), 0);
  }
}

int64_t Engine::measure_arena(const ModelSpec& spec, const EngineOptions& options) {
  EngineOptions unlimited = options;
  unlimited.memory_limit_bytes = Ledger::kNoLimit;
  Engine dry(spec, unlimited, Ledger::Memory::dry, 0);
  const BatchView batch = dry_batch(options.micro_batch, options.sequence);
  if (options.training) {
    const std::vector<BatchView> micros(static_cast<size_t>(options.micros), batch);
    dry.train_step(micros, 0);
  }
  dry.evaluate(batch);
  return dry.arena_.high_water_bytes();
}

std::unique_ptr<Engine> Engine::plan(const ModelSpec& spec, const EngineOptions& options) {
  std::unique_ptr<Engine> dry(
      new Engine(spec, options, Ledger::Memory::dry, measure_arena(spec, options)));
  const std::vector<BatchView> micros(static_cast<size_t>(options.micros),
                                      dry_batch(options.micro_batch, options.sequence));
  if (options.training)
    dry->train_step(micros, 0);
  else
    dry->evaluate(micros[0]);
  return dry;
}

StepResult Engine::train_step(std::span<const BatchView> micros, double learning_rate) {
  require(options_.training, "train_step on an engine without training state");
  require(static_cast<int>(micros.size()) == options_.micros,
          "{} micro-batches, the program has {}", micros.size(), options_.micros);
  StepResult result;
  for (const BatchView& batch : micros) result.valid_targets += count_valid(batch);
  if (result.valid_targets == 0)
    user_error("step {}: no valid target in the whole batch; every token is padding or masked",
               steps_done_ + 1);
  Walk walk(micros, model_.units.size());
  walk.training = true;
  walk.loss_scale = static_cast<float>(1.0 / static_cast<double>(result.valid_targets));
  walk.learning_rate = learning_rate;
  run(training_, walk);
  double sum = 0;
  for (const auto& state : states_) sum += state->sum_squares;
  result.gradient_norm = std::sqrt(sum);
  result.loss = walk.loss_sum / static_cast<double>(result.valid_targets);
  ++steps_done_;
  return result;
}

std::pair<double, int64_t> Engine::evaluate(const BatchView& batch) {
  Walk walk({&batch, 1}, model_.units.size());
  run(evaluation_, walk);
  return {walk.loss_sum, count_valid(batch)};
}

void Engine::run(const Program& program, Walk& walk) {
  for (const Action& action : program.actions) {
    ledger_.moment(describe(action, model_.units[static_cast<size_t>(action.unit)]->name()));
    const double begin = now_seconds();
    switch (action.verb) {
      case Verb::forward:
        forward(action, walk);
        times_.forward += now_seconds() - begin;
        break;
      case Verb::backward:
        backward(action, walk);
        times_.backward += now_seconds() - begin;
        break;
      case Verb::norm:
        norm(action, walk);
        times_.norm += now_seconds() - begin;
        break;
      case Verb::step:
        step(action, walk);
        times_.step += now_seconds() - begin;
        break;
    }
  }
}

UnitCall Engine::call_for(int unit, const BatchView& batch) {
  const UnitState& state = *states_[static_cast<size_t>(unit)];
  UnitCall call{.kernels = *kernels_, .arena = arena_, .batch = batch, .params = state.param_views};
  if (rope_) call.rope = rope_.as(model_.spec.max_sequence_length, model_.spec.head_dim);
  call.losses =
      losses_.as(1, std::min(batch.tokens_count(), options_.micro_batch * options_.sequence));
  call.seed = options_.seed;
  call.step = steps_done_;
  return call;
}

// Gradients are taken when a unit's first backward writes them and given back after its step.
// Backward frees activations as it goes, so the two peaks do not add up.
std::vector<Tensor> Engine::gradients_of(int unit) {
  const auto slab_of = [&](int owner) -> Slab& {
    UnitState& state = *states_[static_cast<size_t>(owner)];
    const std::string& name = model_.units[static_cast<size_t>(owner)]->name();
    if (!state.grads) state.grads.emplace(ledger_, state.layout, Kind::gradients, name);
    return *state.grads;
  };
  std::vector<Tensor> views = slab_of(unit).views();
  for (const Unit::Shared shared : model_.units[static_cast<size_t>(unit)]->shared())
    views.push_back(slab_of(shared.unit).param(shared.param));
  return views;
}

void Engine::forward(const Action& action, Walk& walk) {
  const auto unit = static_cast<size_t>(action.unit), micro = static_cast<size_t>(action.micro);
  const BatchView& batch = walk.micros[micro];
  Walk::Held& held = walk.held[unit][micro];
  const int64_t hidden = model_.spec.hidden_size;
  UnitCall call = call_for(action.unit, batch);
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
  UnitCall call = call_for(action.unit, batch);
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
    check_loss(loss, action.micro);
    walk.loss_sum += loss;
  }
  held = {};
  if (action.unit == 0) walk.streams[micro] = {};
}

void Engine::norm(const Action& action, Walk&) {
  const Arena::Scope scope(arena_);
  UnitState& state = *states_[static_cast<size_t>(action.unit)];
  state.sum_squares = 0;
  for (const Tensor& grad : state.grads->views()) {
    Tensor scratch = arena_.take(1, kernels_->sum_squares_scratch(grad.elems()));
    state.sum_squares += kernels_->sum_squares(grad.flat(), scratch);
  }
  if (!std::isfinite(state.sum_squares)) report_not_finite(action.unit);
}

void Engine::step(const Action& action, Walk& walk) {
  if (action.unit == 0) {  // the first: all norms are known now
    double sum = 0;
    for (const auto& state : states_) sum += state->sum_squares;
    const double norm = std::sqrt(sum);
    // As PyTorch's clip_grad_norm_: the small constant keeps a norm of exactly the limit from
    // dividing up.
    walk.gradient_scale =
        options_.clipping > 0 ? std::min(1.0, options_.clipping / (norm + 1e-6)) : 1.0;
  }
  UnitState& state = *states_[static_cast<size_t>(action.unit)];
  const auto& params = model_.units[static_cast<size_t>(action.unit)]->params();
  for (size_t p = 0; p < params.size(); ++p) {
    std::vector<Tensor> moments;
    for (const Slab& slab : state.optimizer) moments.push_back(slab.views()[p]);
    optimizer_step(*kernels_, options_.optimizer, steps_done_ + 1, walk.learning_rate,
                   params[p].decay, walk.gradient_scale, state.params.views()[p],
                   state.grads->views()[p], moments);
  }
  if (!options_.keep_gradients) state.grads.reset();
}

void Engine::check_loss(double loss, int micro) const {
  if (std::isfinite(loss)) return;
  throw DivergedError(
      fmt::format("step {}, micro-batch {}: the loss is {} (unit head, tensor logits). The weights "
                  "are those before this "
                  "step. Lower the learning rate, lengthen the warm-up or set gradient_clipping",
                  steps_done_ + 1, micro, loss));
}

void Engine::report_not_finite(int unit) {
  const auto& params = model_.units[static_cast<size_t>(unit)]->params();
  const Arena::Scope scope(arena_);
  for (size_t p = 0; p < params.size(); ++p) {
    const Tensor grad = states_[static_cast<size_t>(unit)]->grads->views()[p].flat();
    Tensor scratch = arena_.take(1, kernels_->sum_squares_scratch(grad.elems()));
    if (std::isfinite(kernels_->sum_squares(grad, scratch))) continue;
    throw DivergedError(fmt::format(
        "step {}: the gradient is not finite (unit {}, tensor {}). The weights are those before "
        "this step. Lower the "
        "learning rate, lengthen the warm-up or set gradient_clipping",
        steps_done_ + 1, model_.units[static_cast<size_t>(unit)]->name(), params[p].name));
  }
  internal_error("step {}: the norm of unit {} is not finite but each tensor's is", steps_done_ + 1,
                 unit);
}

void Engine::decode(const BatchView& batch, std::span<KvCache> caches, Tensor logits) {
  require(static_cast<int64_t>(caches.size()) == model_.spec.num_layers,
          "one cache for each block");
  Walk walk({&batch, 1}, model_.units.size());
  walk.caches = caches;
  Program blocks = evaluation_;
  blocks.actions.pop_back();  // all but the head
  run(blocks, walk);
  const size_t head = static_cast<size_t>(model_.head());
  Tensor stream = walk.held[head][0].input.as(batch.tokens_count(), model_.spec.hidden_size);
  Tensor last = {stream.row_range(batch.sequence - 1, 1).data, stream.dtype, batch.batch,
                 stream.cols, stream.stride * batch.sequence};
  head_logits(call_for(model_.head(), batch), *model_.units[head], last, logits);
  for (KvCache& cache : caches) cache.length += batch.sequence;
}

void Engine::for_each_parameter(const std::function<void(const ParamSpec&, Tensor)>& visit) const {
  for (size_t u = 0; u < states_.size(); ++u)
    for (size_t p = 0; p < model_.units[u]->params().size(); ++p)
      visit(model_.units[u]->params()[p], states_[u]->params.views()[p]);
}

void Engine::for_each_gradient(const std::function<void(const ParamSpec&, Tensor)>& visit) const {
  require(options_.keep_gradients, "gradients are asked for, and were not kept");
  for (size_t u = 0; u < states_.size(); ++u)
    for (size_t p = 0; p < model_.units[u]->params().size(); ++p)
      visit(model_.units[u]->params()[p], states_[u]->grads->views()[p]);
}

}  // namespace onefold
