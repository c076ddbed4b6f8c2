#include "engine/engine.h"

#include <algorithm>
#include <cmath>

#include "comm/nccl.h"
#include "device/device_name.h"
#include "device/profile.h"
#include "engine/divergence.h"
#include "engine/stages.h"
#include "program/verify.h"

namespace onefold {
namespace {

// What ranks keep of gradients is always in the scale that the next step has, and a checkpoint
// names that one. Ratios are powers of two (but for a least scale that is none): nothing is
// rounded. After a step all that a checkpoint had to save of it is saved.
void rescale_kept(RankState& state, Kernels& kernels, float ratio) {
  for (int u = 0; u < state.units(); ++u) {
    const UnitState& own = state.unit(u);
    for (int i = 0; i < own.own_states(); ++i)
      kernels.scale(own.own_state(i), ratio, own.own_state(i));
  }
}

BatchView dry_batch(const EngineOptions& options) {
  return {.batch = options.micro_batch, .sequence = options.sequence};
}

// Ranks that have a card each exchange over NCCL; those that share one, by the communicator itself.
std::shared_ptr<Communicator> exchange_for(const EngineOptions& options,
                                           std::shared_ptr<Communicator> communicator) {
  if (!communicator) return make_dry_communicator(1);
  const DeviceName device = parse_device(options.device);
  if (communicator->ranks() == 1 || device.kind == "cpu" || device.card) return communicator;
  return over_nccl(std::move(communicator), {.library_sums = options.library_sums});
}

Ledger::Tiers books_of(const Tiers& tiers, const EngineOptions& options) {
  return {Ledger::TierSetup{tiers.source(Tier::device), options.memory_limit_bytes},
          Ledger::TierSetup{tiers.source(Tier::host)}, Ledger::TierSetup{tiers.source(Tier::disk)}};
}

// Of the device's own kernels, for as long as it lives.
std::shared_ptr<const KernelScratch> scratch_of(Device& device) {
  return {std::shared_ptr<void>(), &device.kernels()};
}

std::unique_ptr<Device> open_device_for(const EngineOptions& options, const Communicator* ranks) {
  const Place place = ranks ? ranks->host() : Place{};
  std::unique_ptr<Device> device =
      open_device(device_of_rank(options.device, place.rank, place.ranks), options.threads);
  if (options.profile) device = profiled(std::move(device), options.profile);
  return device;
}

const ModelSpec& supported(const ModelSpec& spec, const EngineOptions& options) {
  if (const std::string why = obstacle_to_experts(spec, options); !why.empty())
    user_error("{}", why);
  return spec;
}

Program training_of(const EngineOptions& options, const std::vector<UnitTraits>& units, int ranks,
                    const Pipeline& pipeline) {
  return options.training ? training_program(options, units, ranks, pipeline) : Program{};
}

}  // namespace

Engine::Engine(const ModelSpec& spec, const EngineOptions& options,
               std::shared_ptr<Communicator> communicator)
    : Engine(spec, options, open_device_for(options, communicator.get()),
             exchange_for(options, communicator), std::nullopt) {}

Engine::Engine(const ModelSpec& spec, const EngineOptions& options, std::unique_ptr<Device> device,
               std::shared_ptr<Communicator> communicator, std::optional<Scratch> scratch)
    : options_(options),
      lines_(make_lines(supported(spec, options), options, std::move(communicator))),
      pipeline_(pipeline_of(spec, options, lines_.place())),
      device_(std::move(device)),
      model_(spec, device_->kernels().logits_bytes(), lines_.share(),
             {lines_.experts_share(), options.expert_bound}),
      tiers_(*device_, options.offload.uses(Tier::disk) ? options.offload.folder : "",
             options.offload.requests),
      ledger_(books_of(tiers_, options)),
      traits_(unit_traits(model_, options, lines_.all->ranks(), pipeline_)),
      training_(training_of(options, traits_, lines_.all->ranks(), pipeline_)),
      evaluation_(evaluation_program(options, traits_, lines_.all->ranks(), pipeline_)),
      state_(*device_, tiers_, ledger_, model_, traits_, options_, lines_),
      channels_(lines_, *device_, ledger_, lines_.data->ranks() > 1 && options.zero.overlap),
      control_(*lines_.all, channels_.control()),
      batches_(*device_, ledger_, options_, model_),
      loss_scale_(options.loss_scale),
      executor_(*device_, tiers_, ledger_, model_, state_, traits_, options_, channels_, control_) {
  const Program* const programs[] = {&training_, &evaluation_};
  executor_.open_packing(programs);
  if (channels_.host_stages() != nullptr) state_.set_stages(*channels_.host_stages());
  if (channels_.host_shares() != nullptr) state_.set_shares(*channels_.host_shares());
  if (channels_.host_experts() != nullptr) state_.set_holders(*channels_.host_experts());
  if (Channel* const same = channels_.same_experts(Lane::gather)) state_.set_same_experts(*same);
  if (!scratch)
    scratch = measure_arena(spec, options, this_machine(device_->threads()), device_->threads(),
                            {lines_.all->rank(), lines_.all->ranks()}, scratch_of(*device_));
  if (scratch->arena_bytes > 0)
    executor_.set_arena(
        Arena(ledger_.allocate(Kind::workspace, scratch->arena_bytes, "scratch arena")),
        std::move(scratch->later_bytes));
  if (!device_->dry()) state_.initialise();
}

Engine::~Engine() = default;

Engine::Scratch Engine::measure_arena(const ModelSpec& spec, const EngineOptions& options,
                                      const Hardware& hardware, int threads, Place place,
                                      std::shared_ptr<const KernelScratch> scratch) {
  EngineOptions unlimited = options;
  unlimited.memory_limit_bytes = Ledger::kNoLimit;
  // Temporaries of one micro-batch are those of any other.
  unlimited.micros = options.pipeline.interleave > 1 ? options.pipeline.ranks : 1;
  Engine dry(spec, unlimited, open_dry_device(hardware, threads, std::move(scratch)),
             make_dry_communicator(place.ranks, 0, place.rank, hardware.host_ranks), Scratch{});
  const BatchView batch = dry_batch(options);
  if (options.training)
    dry.train_step(std::vector<BatchView>(static_cast<size_t>(unlimited.micros), batch), 0);
  dry.evaluate(batch);
  return {dry.executor_.scratch_bytes(), dry.executor_.later_bytes()};
}

std::unique_ptr<Engine> Engine::plan(const ModelSpec& spec, const EngineOptions& options, int ranks,
                                     int64_t comm_scratch_bytes, const Hardware& hardware,
                                     int rank) {
  const Scratch scratch = measure_arena(spec, options, hardware, options.threads, {rank, ranks});
  std::unique_ptr<Engine> dry(new Engine(
      spec, options, open_dry_device(hardware, options.threads),
      make_dry_communicator(ranks, comm_scratch_bytes, rank, hardware.host_ranks), scratch));
  const int summed_over = summing_ranks(options, ranks);
  verify(dry->evaluation_, dry->traits_, summed_over);
  const std::vector<BatchView> micros(static_cast<size_t>(options.micros), dry_batch(options));
  if (options.training) {
    verify(dry->training_, dry->traits_, summed_over);
    dry->train_step(micros, 0);
  } else {
    dry->evaluate(micros[0]);
  }
  return dry;
}

std::unique_ptr<Engine> Engine::plan_worst(const ModelSpec& spec, const EngineOptions& options,
                                           int ranks, int64_t comm_scratch_bytes,
                                           const Hardware& hardware, std::vector<int64_t>* peaks) {
  std::unique_ptr<Engine> worst;
  const Mesh mesh = mesh_of(options, ranks);
  for (int stage = 0; stage < mesh.size(Axis::pipeline); ++stage) {
    std::unique_ptr<Engine> one =
        plan(spec, options, ranks, comm_scratch_bytes, hardware, stage * mesh.stage_ranks());
    if (peaks != nullptr) peaks->push_back(one->ledger().peak_bytes());
    if (!worst || one->ledger().peak_bytes() > worst->ledger().peak_bytes()) worst = std::move(one);
  }
  return worst;
}

TrafficTable Engine::traffic(Lane lane) const {
  if (lane == Lane::send) return channels_.passed();
  TrafficTable table{};
  if (lane == Lane::exchange) {
    for (const Axis axis : kExchangeAxes) add_traffic(exchanged(axis), table);
    return table;
  }
  if (channels_.has(lane)) table = channel(lane).traffic();
  if (lane == Lane::compute && &channels_.control() != &channel(lane))
    add_traffic(channels_.control(), table);
  if (const Channel* const same = channels_.same_experts(lane)) add_traffic(*same, table);
  if (lane == Lane::gather)
    for (const Channel* const node : {channels_.node(), channels_.expert_node()})
      if (node != nullptr) add_traffic(*node, table);
  if (lane == Lane::reduce && channels_.inside() != nullptr) {
    add_traffic(*channels_.inside(), table);
    add_traffic(*channels_.between(), table);
  }
  return table;
}

void Engine::require_exchanged() const {
  if (device_->memory_is_the_hosts()) return;  // calls end when they are done, and throw
  if (const std::string why = lines_.all->failure(); !why.empty()) throw PeerError(why);
}

StepResult Engine::train_step(std::span<const BatchView> micros, const StepRates& rates) {
  require(options_.training, "train_step on an engine without training state");
  require(static_cast<int>(micros.size()) == options_.micros,
          "{} micro-batches, the program has {}", micros.size(), options_.micros);
  double valid = 0;
  for (const BatchView& batch : micros) valid += static_cast<double>(batches_.valid_targets(batch));
  StepResult result;
  const double before = control_.seconds();
  const std::string what = fmt::format("count targets, step {}", steps_done_ + 1);
  // Ranks of one tensor group have the same targets, and so have the stages of a pipeline.
  const std::vector<double> of_ranks = control_.exchange(what, {&valid, 1});
  for (int rank = 0; rank < mesh().stage_ranks(); rank += mesh().size(Axis::tensor))
    result.valid_targets += static_cast<int64_t>(of_ranks[static_cast<size_t>(rank)]);
  executor_.times().add_control(control_.seconds() - before);
  if (result.valid_targets == 0)
    user_error("step {}: no valid target in the whole batch; every token is padding or masked",
               steps_done_ + 1);
  const std::vector<UnitBatch> batches = batches_.upload(micros);
  result.loss_scale = loss_scale_.scale();
  // With local steps a gradient is the mean over this rank's targets. A plan is of a step among
  // others.
  const LocalOptions& local = options_.local;
  const bool sums = !local.on() || (steps_done_ < local.whole_steps && !device_->dry());
  const double summed = sums ? static_cast<double>(result.valid_targets) : std::max(valid, 1.0);
  const auto loss_scale = static_cast<float>(result.loss_scale / summed);
  upload(*device_, std::span<const float>(&loss_scale, 1), executor_.scalars().loss_scale());
  // Parts of the batch, whose means experts' own losses are means of: in the whole batch, and in
  // what this rank's gradient is of.
  const int parts = options_.micros * data_ranks() * options_.context,
            summed_parts = sums ? parts : options_.micros;
  executor_.expert_load().begin(static_cast<float>(result.loss_scale / summed_parts));
  if (local.on() && steps_done_ == local.whole_steps) begin_local_steps();
  StepRates rates_here = rates;
  const CompressionOptions& compression = options_.compression;
  if (packs(Lane::reduce) && compression.corrects_momentum &&
      updates_done() >= compression.whole_steps) {
    rates_here.momentum_arrives = rates_here.squares_stay = true;
    if (updates_done() == compression.whole_steps || momentum_begins_)
      begin_own_momentum(result.loss_scale);
    momentum_begins_ = false;
  }
  // Whatever the optimizer has counted: steps that were skipped are among the whole ones.
  if (local.sums_moves && !sums) rates_here.squares_stay = true;
  Walk walk{.micros = batches,
            .training = true,
            .rates = rates_here,
            .loss_scale = result.loss_scale,
            .clip_limit = clip_limit(),
            .updates = updates_done(),
            .sums = sums,
            .stale = begin_stale_step()};
  executor_.run(training_, walk, steps_done_);
  const StepScalars::Values values = executor_.scalars().read();
  result.experts = executor_.expert_load().read(parts);
  require_exchanged();
  executor_.expert_load().require_room(model_, steps_done_, options_.expert_bound);
  result.skipped = !values.finite;
  end_step(result.skipped, walk);
  result.gradient_norm = values.norm;
  result.loss = values.loss_sum / static_cast<double>(result.valid_targets);
  if (!result.skipped) executor_.take_unit_squares(result.loss_scale);
  count_clipped(walk, result);
  if (options_.clip_rule.percentile > 0 && !result.skipped) {
    norms_.push_back(result.gradient_norm);
    if (static_cast<int64_t>(norms_.size()) > options_.clip_rule.window)
      norms_.erase(norms_.begin());
  }
  ++steps_done_;
  if (local.sums_moves && steps_done_ > local.whole_steps && !result.skipped)
    add_moves(rates.learning_rate);
  if (local.on() && local.meets(steps_done_))
    local.sums_moves ? sum_moves() : average_local_steps();
  return result;
}

// Units are copied in their order.
void Engine::announce_change() const {
  if (options_.before_action)
    options_.before_action({.verb = Verb::step, .unit = state_.units() - 1});
}

// With a percentile (between two norms in proportion), the lower of it and of what is set.
double Engine::clip_limit() const {
  const double percentile = options_.clip_rule.percentile;
  if (percentile == 0 || norms_.empty()) return options_.clipping;
  std::vector<double> sorted = norms_;
  std::sort(sorted.begin(), sorted.end());
  const double place = percentile / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const double above = sorted[std::min(below + 1, sorted.size() - 1)];
  const double limit =
      sorted[below] + (place - static_cast<double>(below)) * (above - sorted[below]);
  return options_.clipping > 0 ? std::min(limit, options_.clipping) : limit;
}

void Engine::count_clipped(const Walk& walk, StepResult& result) const {
  if (result.skipped) return;
  const ClipRule& rule = options_.clip_rule;
  if (!rule.each() && walk.clip_limit > 0) {
    result.clipped.factor = std::min(1.0, walk.clip_limit / (result.gradient_norm + kClipEps));
    result.clipped.tensors = result.clipped.factor < 1;
  }
  if (!rule.each() && !rule.counts_tensors()) return;
  const StepScalars& scalars = executor_.scalars();
  const std::vector<float> factors = rule.each() ? scalars.read_factors() : std::vector<float>();
  const std::vector<double> clamped =
      rule.value > 0 ? scalars.read_clamped() : std::vector<double>();
  size_t number = 0;  // of the parameter
  for (size_t u = 0; u < model_.units.size(); ++u) {
    ClippedGradients one;
    for (size_t p = 0; p < model_.units[u]->params().size(); ++p, ++number) {
      if (!clamped.empty()) one.values += static_cast<int64_t>(clamped[number]);
      if (factors.empty() || (p > 0 && !rule.by_tensor())) continue;
      const auto place =
          static_cast<size_t>(scalars.place(static_cast<int>(u), static_cast<int>(p)));
      const double factor = static_cast<double>(factors[place]) * walk.loss_scale;
      one.factor = std::min(one.factor, factor);
      one.tensors += factor < 1;
    }
    result.clipped.factor = std::min(result.clipped.factor, one.factor);
    result.clipped.tensors += one.tensors;
    result.clipped.values += one.values;
    result.clipped_units.push_back(one);
  }
}

std::pair<double, int64_t> Engine::evaluate(const BatchView& batch) {
  const std::vector<UnitBatch> batches = batches_.upload({&batch, 1});
  Walk walk{.micros = batches};
  executor_.expert_load().begin(0);
  executor_.run(evaluation_, walk, steps_done_);
  // Of the part of its sequences that is here: then of all parts, in their order.
  const double sums[] = {executor_.scalars().read_losses()[0],
                         static_cast<double>(batches_.valid_targets(batch))};
  require_exchanged();
  executor_.expert_load().require_room(model_, steps_done_, options_.expert_bound);
  const std::vector<double> of_parts =
      gather_from_parts("loss of an evaluation", std::span<const double>(sums));
  double loss = 0, valid = 0;
  for (size_t at = 0; at < of_parts.size(); at += 2) {
    loss += of_parts[at];
    valid += of_parts[at + 1];
  }
  pass_to_all_stages("loss of an evaluation", std::span(&loss, 1));
  return {loss, static_cast<int64_t>(valid)};
}

template <typename T>
std::vector<T> Engine::gather_from_parts(const char* what, std::span<const T> mine) {
  Channel* const parts = channels_.host_context();
  std::vector<T> shard(mine.begin(), mine.end());
  if (parts == nullptr) return shard;
  std::vector<T> all(shard.size() * static_cast<size_t>(parts->ranks()));
  const Message message{all.data(), shard.data(), static_cast<int64_t>(shard.size()), dtype_of<T>};
  parts->all_gather(what, {&message, 1});
  return all;
}

// The last stage has the losses.
template <typename T>
void Engine::pass_to_all_stages(const char* what, std::span<T> values) {
  if (Channel* const stages = channels_.host_stages())
    stages->broadcast(what, stages->ranks() - 1, values.data(),
                      static_cast<int64_t>(values.size_bytes()));
}

std::vector<float> Engine::token_losses(const BatchView& batch) {
  evaluate(batch);
  Share share = model_.share;
  const int64_t length = batch.sequence / share.parts;
  std::vector<float> mine(static_cast<size_t>(batch.batch * length));
  executor_.read_losses(mine);
  const std::vector<float> all =
      gather_from_parts("losses of an evaluation", std::span<const float>(mine));
  // From part after part to sequence after sequence.
  std::vector<float> losses(all.size());
  auto from = all.begin();
  for (share.part = 0; share.part < share.parts; ++share.part)
    for (int64_t row = 0; row < batch.batch; ++row)
      for (const Span& run : runs_of(share, batch.sequence)) {
        std::copy_n(from, run.size, losses.begin() + row * batch.sequence + run.first);
        from += run.size;
      }
  pass_to_all_stages("losses of an evaluation", std::span(losses));
  return losses;
}

void Engine::resume_after(int64_t steps, const std::optional<LossScale::State>& scale,
                          std::span<const double> norms) {
  norms_.assign(norms.begin(), norms.end());
  steps_done_ = resumed_after_ = steps;
  if (!scale) return;
  loss_scale_.resume(*scale);
  follow_scale(scale->scale);
}

// What ranks keep of gradients, from the scale that was.
void Engine::follow_scale(double before) {
  if (loss_scale_.scale() == before || !packs(Lane::reduce) || device_->dry()) return;
  executor_.settle();
  rescale_kept(state_, device_->kernels(), static_cast<float>(loss_scale_.scale() / before));
}

// Gradients that are not finite end the run, unless it may go on without this step.
void Engine::end_step(bool skipped, const Walk& walk) {
  // A scale that follows the gradients comes to its end; without one nothing else would.
  constexpr int kMostInARow = 50;
  skipped_in_a_row_ = skipped ? skipped_in_a_row_ + 1 : 0;
  const bool endless = !options_.loss_scale.dynamic() && skipped_in_a_row_ >= kMostInARow;
  if (skipped && (!options_.skip_overflow || endless)) report_divergence(walk);
  const double scale = loss_scale_.scale();
  if (!loss_scale_.update(skipped))
    throw DivergedError(fmt::format(
        "step {}: gradients overflow at the least loss scale, {}. The weights are those before "
        "this step. Lower the learning rate or fp16.min_loss_scale, or train in bf16",
        steps_done_ + 1, options_.loss_scale.least));
  follow_scale(scale);
}

// The step once more, watched. The weights are those before it, and stay so: the step is not
// finite again. All ranks together; what appeared first on any of them, in the order in which units
// are computed, is named by all.
void Engine::report_divergence(const Walk& failed) {
  FirstNotFinite first(*device_, model_, pipeline_.ranks > 1);
  Walk walk{.micros = failed.micros,
            .training = true,
            .rates = failed.rates,
            .loss_scale = failed.loss_scale,
            .clip_limit = failed.clip_limit,
            .updates = failed.updates,
            .sums = failed.sums,
            .stale = failed.stale,
            .watch = [&](const Action& action, const UnitCall& call) { first.look(action, call); }};
  if (failed.stale) executor_.swap_stale();
  executor_.run(training_, walk, steps_done_);
  const double mine = first.position();
  const std::vector<double> positions = control_.exchange("diverged", {&mine, 1});
  const auto earliest = std::min_element(positions.begin(), positions.end());
  const std::string at_rank = ranks() == 1 ? "" : fmt::format(", rank {}", rank());
  const char* advice = first.is_weight()
                           ? "It was so before this step: go on from an earlier checkpoint"
                           : "The weights are those before this step. Lower the learning rate, "
                             "lengthen the warm-up or set gradient_clipping";
  const std::vector<std::string> texts =
      control_.collect("diverged", fmt::format("step {}, micro-batch {}{}: {}. {}", steps_done_ + 1,
                                               first.micro(), at_rank, first.what(), advice));
  if (std::isfinite(*earliest))
    throw DivergedError(texts[static_cast<size_t>(earliest - positions.begin())]);
  throw DivergedError(fmt::format(
      "step {}: the sum of all gradients, over ranks or of their squares, is too large for a "
      "number. The weights are those before this step. Lower the learning rate or set "
      "gradient_clipping",
      steps_done_ + 1));
}

}  // namespace onefold
