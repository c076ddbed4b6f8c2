// The end of a step: squares of gradients, clipping, and the optimizer.
#include <algorithm>

#include "base/block8.h"
#include "engine/executor.h"

namespace onefold {
namespace {

// What a step exchanges, in the order of computation.
class StepChannel final : public StepRanks {
 public:
  explicit StepChannel(Channel& channel) : channel_(channel) {}
  int rank() const override { return channel_.rank(); }
  int ranks() const override { return channel_.ranks(); }
  void sum(Tensor numbers) override { call(&Channel::all_reduce, "sums of a step", numbers); }
  void gather(Tensor whole) override { call(&Channel::all_gather, "matrices of a step", whole); }
  void sum_shards(Tensor whole) override {
    call(&Channel::reduce_scatter, "directions of a step", whole);
  }
  void sum_whole(Tensor whole) override {
    call(&Channel::all_reduce, "directions of a step", whole);
  }

 private:
  using Call = void (Channel::*)(std::string_view, std::span<const Message>);
  void call(Call call, std::string_view what, Tensor whole) {
    if (ranks() == 1) return;
    const int64_t shard = whole.cols / ranks();
    const Message message{whole.data, whole.col_range(rank() * shard, shard).data, shard,
                          whole.dtype};
    (channel_.*call)(what, {&message, 1});
  }

  Channel& channel_;
};

}  // namespace

std::unique_ptr<StepRanks> Executor::make_step_ranks(const Channels& channels) {
  return std::make_unique<StepChannel>(
      channels.of(channels.stages() != nullptr ? Lane::reduce : Lane::compute));
}

// A shard's pieces are summed one by one, at every stage, so that the norm has the same bits
// wherever the gradient lives.
void Executor::squares(const Action& action, const Walk& walk) {
  const ClipRule& rule = options_.clip_rule;
  if (options_.local.on() && walk.sums) sum_over_ranks(action.unit);
  if (rule.value > 0) clamp(action.unit, rule.value * walk.loss_scale);
  const UnitState& own = state_.unit(action.unit);
  Kernels& kernels = device_.kernels();
  const Tensor gradient = own.gradient_shard();
  std::vector<Squares> list;
  int64_t scratch_bytes = 0;
  for (const SlabPiece& piece : own.trained_layout().shard_pieces(own.rank())) {
    if (frozen(action.unit, piece.param)) continue;
    scratch_bytes += kernels.sum_squares_scratch_bytes(piece.elems);
    // What several shares hold is counted by the first.
    const ParamSpec& param = own.layout().params()[static_cast<size_t>(piece.param)];
    const int64_t elems = std::min(piece.elems, param.own_elems() - piece.first);
    if (elems > 0)
      list.push_back(
          {gradient.col_range(piece.offset, elems), scalars_.squares(action.unit, piece.param)});
  }
  const Arena::Scope scope(arena_);
  kernels.sum_squares(list, scalars_.squares(action.unit), scalars_.sum_of(action.unit),
                      arena_.take_bytes(scratch_bytes));
  if (rule.adaptive) weigh(action.unit);
}

// All of the gradient that this rank steps; what is in its own shard is counted.
void Executor::clamp(int unit, double limit) {
  const UnitState& own = state_.unit(unit);
  const SlabLayout& layout = own.trained_layout();
  const Tensor gradient = own.gradients_to_step();
  const Arena::Scope scope(arena_);
  const Tensor elsewhere = arena_.take(1, 1, DType::f64);
  const bool sharded = own.homes().optimizer.sharded;
  const bool counted = traits(unit).here();
  std::vector<Clamp> list;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const bool mine = rank == own.rank();
    if (sharded && !mine) continue;
    const int64_t begin = sharded ? 0 : rank * layout.shard_elems();
    for (const SlabPiece& piece : layout.shard_pieces(rank))
      if (!frozen(unit, piece.param))
        list.push_back({gradient.col_range(begin + piece.offset, piece.elems),
                        mine && counted ? scalars_.clamped(unit, piece.param) : elsewhere});
  }
  device_.kernels().clamp(list, static_cast<float>(limit));
}

// Squares of the parameters themselves, as they are computed with.
void Executor::weigh(int unit) {
  if (!traits(unit).here()) return;  // where it is computed
  const UnitState& own = state_.unit(unit);
  Kernels& kernels = device_.kernels();
  const Tensor parameters = own.parameter_shard();
  std::vector<Squares> list;
  int64_t scratch_bytes = 0;
  for (const SlabPiece& piece : own.trained_layout().shard_pieces(own.rank())) {
    list.push_back(
        {parameters.col_range(piece.offset, piece.elems), scalars_.weights(unit, piece.param)});
    scratch_bytes += kernels.sum_squares_scratch_bytes(piece.elems);
  }
  const Arena::Scope scope(arena_);
  const Tensor total = arena_.take(1, 1, DType::f64);
  kernels.sum_squares(list, scalars_.weights(unit), total, arena_.take_bytes(scratch_bytes));
}

// As PyTorch's clip_grad_norm_: the small constant keeps a norm of exactly the limit from dividing
// up.
void Executor::clip(const Walk& walk) {
  if (walk.stale) swap_stale();  // steps are of the newest
  Kernels& kernels = device_.kernels();
  // All shares have the same losses, and one of them counts; of a pipeline the last stage has them.
  const bool counts = model_.share.first() && traits(model_.head()).here();
  kernels.sum(scalars_.losses().col_range(0, counts ? scalars_.losses().cols : 0),
              scalars_.sum_of_losses());
  // Sums of the last step are of all ranks: where a unit is not computed, it has none.
  for (size_t u = 0; u < traits_.size(); ++u)
    if (!traits_[u].here()) {
      const Tensor sum = scalars_.sum_of(static_cast<int>(u));
      kernels.fill(matrix(sum.data, 1, 2), 0);  // a double as two words
    }
  const ClipRule& rule = options_.clip_rule;
  const auto clip_by = [&](double limit, const StepControl& control) {
    kernels.clip({.sums = scalars_.sums(),
                  .squares = static_cast<int64_t>(model_.units.size()),
                  .limit = limit,
                  .eps = kClipEps,
                  .scale = walk.loss_scale,
                  .norm = scalars_.norm(),
                  .control = control});
  };
  // Ranks that step by themselves clip by their own norms, and agree on what is finite.
  const bool local = options_.local.on();
  const Arena::Scope scope(arena_);
  StepControl control = scalars_.control();
  if (local) {
    clip_by(walk.clip_limit, control);
    control.factor = arena_.take(1, 1, DType::f32);
  }
  if (control_.ranks() > 1) {
    const Message message = scalars_.sums_message(control_.rank());
    channels_.of(Lane::compute).all_reduce(fmt::format("clip, step {}", step_ + 1), {&message, 1});
  }
  if (control_.ranks() > 1 && load_.any()) {
    const Message message = load_.message(control_.rank());
    channels_.of(Lane::compute)
        .all_reduce(fmt::format("load of experts, step {}", step_ + 1), {&message, 1});
  }
  clip_by(rule.each() || local ? 0 : walk.clip_limit, control);
  if (rule.counts_tensors()) {
    scalars_.collect(kernels);
    if (control_.ranks() > 1) {
      const Message message = scalars_.collected_message(control_.rank());
      channels_.of(Lane::compute)
          .all_reduce(fmt::format("clip tensors, step {}", step_ + 1), {&message, 1});
    }
  }
  if (!rule.each()) return;
  const auto units = static_cast<int64_t>(model_.units.size());
  kernels.clip_each(
      {.squares = rule.by_tensor() ? scalars_.all_squares() : scalars_.sums().col_range(0, units),
       .weights = rule.adaptive ? scalars_.all_weights() : Tensor{},
       .limit = walk.clip_limit,
       .least = rule.least,
       .eps = kClipEps,
       .scale = walk.loss_scale,
       .factors = scalars_.factors()});
}

// The host's copy of what a step reads: it is there when the compute lane's mark is.
void Executor::bring_control() {
  if (!host_.lane) return;
  const StepControl from = scalars_.control(), to = host_control();
  const JobLabel label{.tag = static_cast<int>(Verb::clip)};
  device_.copy(device_.compute(), label, to.factor.data, from.factor.data, sizeof(float));
  device_.copy(device_.compute(), label, to.finite.data, from.finite.data, sizeof(int32_t));
  device_.copy(device_.compute(), label, host_place(2), scalars_.one().data, sizeof(float));
  const Tensor factors = scalars_.factors();
  if (factors.empty()) return;
  device_.copy(device_.compute(), label, host_place(kFactorsPlace), factors.data,
               factors.cols * dtype_bytes(DType::f32));
}

// Where factors differ, that of a parameter's gradient, where it is stepped; else empty.
Tensor Executor::factor_of(int unit, int param) const {
  if (!options_.clip_rule.each()) return {};
  Tensor factors = scalars_.factors();
  if (state_.unit(unit).host_steps() && host_.lane) factors.data = host_place(kFactorsPlace);
  return factors.col_range(scalars_.place(unit, param), 1);
}

StepControl Executor::host_control() const {
  if (!host_.lane) return scalars_.control();
  return {matrix(host_place(0), 1, 1, DType::f32), matrix(host_place(1), 1, 1, DType::i32)};
}

// Factor, flag, one and factors by gradient, each from an aligned place on; null on a dry device.
std::byte* Executor::host_place(int number) const {
  auto* const memory = static_cast<std::byte*>(host_control_.data());
  return memory ? memory + number * Ledger::kAlignment : nullptr;
}

Tensor Executor::common_of(const UnitState& own, int param) {
  for (int i = 0; i < own.states(); ++i)
    if (own.kept(i).of_parameters()) return own.part_of(i, own.stepped_state(i), {.param = param});
  return {};
}

bool Executor::rounds(const UnitState& own) const {
  return (options_.precision.compute != DType::f32 && own.master() < 0) ||
         options_.precision.moments != DType::f32;
}

SteppedParam Executor::stepped_param(int unit, const SlabPiece& piece) const {
  const UnitState& own = state_.unit(unit);
  const ParamSpec& param = own.layout().params()[static_cast<size_t>(piece.param)];
  const auto part = [&](Tensor slab) { return slab.col_range(piece.offset, piece.elems); };
  Stepped stepped{part(own.stepped_parameters()), part(own.stepped_gradients())};
  std::vector<Tensor> states;
  for (int i = 0; i < own.states(); ++i)
    if (i != own.master() && !own.kept(i).of_parameters())
      states.push_back(own.part_of(i, own.stepped_state(i), piece));
  if (own.master() >= 0) stepped.master = part(own.stepped_state(own.master()));
  if (rounds(own))
    stepped.rounding = {philox_key(options_.seed, Draw::rounding, static_cast<uint32_t>(step_),
                                   param.layer_key, param.place_key),
                        piece.first};
  stepped.factor = factor_of(unit, piece.param);
  SteppedParam result{shape_of(param), stepped,     std::move(states),          piece.param,
                      piece.offset,    piece.first, common_of(own, piece.param)};
  if (const ParamGroup* group = this->group(unit, piece.param)) {
    result.rate = group->rate;
    result.weight_decay = group->weight_decay;
  }
  return result;
}

// Rounding draws numbers by an element's place in the whole parameter: a divided one is stepped in
// pieces that lie together there. Codes of moments have blocks of what is here; where not all such
// pieces begin with a block, all is stepped together, by numbers that no other share draws, but for
// heads that several have.
void Executor::step_divided(int unit, const SlabPiece& piece, UnitStep& step) const {
  const auto p = static_cast<size_t>(piece.param);
  const ParamSpec& here = state_.unit(unit).layout().params()[p];
  const ParamSpec& whole = state_.whole_params(unit)[p];
  bool begin_blocks = true;  // of all of the parameter, however a stage cuts it
  for_each_run(here, whole.cols, 0, here.elems(),
               [&](int64_t at, int64_t, int64_t) { begin_blocks &= at % kBlock8 == 0; });
  if (options_.precision.moments == DType::u8 && !begin_blocks) {
    SlabPiece all = piece;
    int share = here.summed_over.replicas ? 0 : model_.share.index;
    if (traits(unit).ranks > 0 && !here.summed_over.holders)  // experts
      share += model_.experts.index * model_.share.count;
    all.first += share * whole.elems();
    step.params.push_back(stepped_param(unit, all));
    return;
  }
  for_each_run(here, whole.cols, piece.first, piece.first + piece.elems,
               [&](int64_t at, int64_t place, int64_t elems) {
                 step.params.push_back(stepped_param(
                     unit, {piece.param, place, elems, piece.offset + at - piece.first}));
               });
}

UnitStep Executor::unit_step(int unit) const {
  const UnitState& own = state_.unit(unit);
  UnitStep step;
  for (const SlabPiece& piece : own.stepped_pieces()) {
    if (frozen(unit, piece.param)) continue;
    const auto p = static_cast<size_t>(piece.param);
    if (!rounds(own) || own.layout().params()[p].boxes.empty()) {
      step.params.push_back(stepped_param(unit, piece));
      continue;
    }
    step_divided(unit, piece, step);
  }
  if (options_.optimizer.elementwise()) return step;
  const SlabLayout& layout = own.trained_layout();
  step.sharded = own.homes().optimizer.sharded;
  step.whole_elems = layout.elems();
  step.numbers = static_cast<int>(layout.params().size());
  for (int p = 0; p < step.numbers; ++p) {
    step.offsets.push_back(frozen(unit, p) ? -1 : layout.offset(p));
    step.shapes.push_back(shape_of(layout.params()[static_cast<size_t>(p)]));
    if (step.offsets.back() < 0) continue;
    if (const Tensor common = common_of(own, p); !common.empty())
      step.wholes.push_back({.shape = step.shapes.back(),
                             .stepped = {.factor = factor_of(unit, p)},
                             .state = {},
                             .number = p,
                             .common = common});
  }
  for (SlabPiece piece : layout.shard_pieces(own.rank())) {
    if (frozen(unit, piece.param)) continue;
    if (!step.sharded) piece.offset += own.rank() * layout.shard_elems();
    step.owned.push_back(stepped_param(unit, piece));
  }
  return step;
}

void Executor::step(const Action& action, Walk& walk) {
  UnitState& own = state_.unit(action.unit);
  if (own.host_steps())
    host_step(action, walk);
  else
    compute(action, [&] {
      optimizer_step({device_.kernels(), &arena_, step_ranks_.get(), scalars_.one()},
                     options_.optimizer, walk.updates + 1, walk.rates, scalars_.control(),
                     unit_step(action.unit));
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
                    one = host_.lane ? matrix(host_place(2), 1, 1, DType::f32) : scalars_.one(),
                    unit = unit_step(action.unit)] {
    optimizer_step({kernels, nullptr, nullptr, one}, options_.optimizer, step, rates, control,
                   unit);
    if (!device_.dry() && *control.finite.i32() == 0) own.fill_outbox();
  };
  const Ticket ticket = queue.post(label_of(action), job);
  pending_[static_cast<size_t>(action.unit)] = ticket;
  if (action.ticket >= 0) walk.tickets[action.ticket] = ticket;
}

}  // namespace onefold
