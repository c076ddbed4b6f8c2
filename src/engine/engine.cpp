#include "engine/engine.h"

#include <algorithm>
#include <cmath>

#include "engine/walk.h"

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

BatchView dry_batch(int64_t batch, int64_t sequence) {
  const Tensor row = matrix(nullptr, 1, batch * sequence, DType::i32);
  return {row, row, nullptr, batch, sequence};
}

std::shared_ptr<Communicator> or_alone(std::shared_ptr<Communicator> communicator) {
  return communicator ? communicator : make_dry_communicator(1);
}

}  // namespace

Engine::Engine(const ModelSpec& spec, const EngineOptions& options,
               std::shared_ptr<Communicator> communicator)
    : Engine(spec, options, Ledger::Memory::real, or_alone(communicator),
             measure_arena(spec, options, *or_alone(communicator))) {}

Engine::Engine(const ModelSpec& spec, const EngineOptions& options, Ledger::Memory memory,
               std::shared_ptr<Communicator> communicator, int64_t arena_bytes)
    : model_(spec),
      options_(options),
      communicator_(std::move(communicator)),
      pool_(std::make_unique<ThreadPool>(options.threads)),
      ledger_(memory, options.memory_limit_bytes),
      kernels_(make_cpu_kernels(*pool_, options.products)),
      traits_(unit_traits(model_, options, ranks())),
      training_(training_program(model_, options, ranks())),
      evaluation_(evaluation_program(model_, options, ranks())) {
  if (memory == Ledger::Memory::dry) kernels_ = make_dry_kernels(std::move(kernels_));
  while (traits_[static_cast<size_t>(lowest_trained_)].frozen) ++lowest_trained_;
  ledger_.moment("allocating the training state");
  allocate_state();
  allocate_workspace(arena_bytes);
  open_channels();
  if (!dry()) initialise_parameters();
}

Engine::~Engine() = default;

void Engine::allocate_state() {
  sum_squares_.resize(model_.units.size());
  const int optimizer_states = options_.training ? options_.optimizer.state_count() : 0;
  for (size_t u = 0; u < model_.units.size(); ++u)
    states_.push_back(std::make_unique<UnitState>(ledger_, *model_.units[u], traits_[u], rank(),
                                                  ranks(), optimizer_states));
}

void Engine::allocate_workspace(int64_t arena_bytes) {
  const ModelSpec& spec = model_.spec;
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
}

void Engine::open_channels() {
  const bool lanes = ranks() > 1 && options_.zero.overlap && !dry();
  for (const Lane lane : {Lane::compute, Lane::gather, Lane::reduce}) {
    const auto i = static_cast<size_t>(lane);
    if (const int64_t bytes = communicator_->scratch_bytes(); bytes > 0)
      channel_scratch_[i] = ledger_.allocate(Kind::communication, bytes, "messages");
    channels_[i] = communicator_->open(lane_name(lane), channel_scratch_[i].data());
    if (lanes && lane != Lane::compute) lanes_[i] = std::make_unique<LaneThread>();
  }
}

void Engine::initialise_parameters() {
  for (size_t u = 0; u < states_.size(); ++u) {
    const UnitState& unit = *states_[u];
    const Tensor held = unit.held_parameters();
    kernels_->fill(held, 0);  // padding travels with the rest: let it be defined
    for (const Piece& piece : unit.held_pieces()) {
      if (options_.initial) {
        options_.initial(unit.layout().params()[static_cast<size_t>(piece.param)], piece.first,
                         held.col_range(piece.offset, piece.elems));
        continue;
      }
      const int64_t count = (piece.elems + kInitPiece - 1) / kInitPiece;
      pool_->run(count, [&](int64_t chunk, int) {
        const int64_t begin = chunk * kInitPiece, size = std::min(kInitPiece, piece.elems - begin);
        initialise(unit.layout().params()[static_cast<size_t>(piece.param)], model_.spec,
                   options_.seed, static_cast<int>(u), piece.param, piece.first + begin,
                   held.col_range(piece.offset + begin, size));
      });
    }
    if (!options_.training || unit.frozen()) continue;
    for (int i = 0; i < options_.optimizer.state_count(); ++i)
      kernels_->fill(unit.stepped_state(i), 0);
  }
}

int64_t Engine::measure_arena(const ModelSpec& spec, const EngineOptions& options,
                              const Communicator& communicator) {
  EngineOptions unlimited = options;
  unlimited.memory_limit_bytes = Ledger::kNoLimit;
  Engine dry(spec, unlimited, Ledger::Memory::dry, make_dry_communicator(communicator.ranks()), 0);
  const BatchView batch = dry_batch(options.micro_batch, options.sequence);
  if (options.training) {
    const std::vector<BatchView> micros(static_cast<size_t>(options.micros), batch);
    dry.train_step(micros, 0);
  }
  dry.evaluate(batch);
  return dry.arena_.high_water_bytes();
}

std::unique_ptr<Engine> Engine::plan(const ModelSpec& spec, const EngineOptions& options, int ranks,
                                     int64_t comm_scratch_bytes) {
  std::shared_ptr<Communicator> communicator = make_dry_communicator(ranks, comm_scratch_bytes);
  const int64_t arena_bytes = measure_arena(spec, options, *communicator);
  std::unique_ptr<Engine> dry(
      new Engine(spec, options, Ledger::Memory::dry, communicator, arena_bytes));
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
  double valid = 0;
  for (const BatchView& batch : micros) valid += static_cast<double>(count_valid(batch));
  StepResult result;
  for (const double of_rank : exchange("count targets", {&valid, 1}))
    result.valid_targets += static_cast<int64_t>(of_rank);
  if (result.valid_targets == 0)
    user_error("step {}: no valid target in the whole batch; every token is padding or masked",
               steps_done_ + 1);
  Walk walk(micros, model_.units.size());
  walk.training = true;
  walk.loss_scale = static_cast<float>(1.0 / static_cast<double>(result.valid_targets));
  walk.learning_rate = learning_rate;
  run(training_, walk);
  result.gradient_norm = walk.gradient_norm;
  result.loss = walk.loss_sum / static_cast<double>(result.valid_targets);
  ++steps_done_;
  return result;
}

std::pair<double, int64_t> Engine::evaluate(const BatchView& batch) {
  Walk walk({&batch, 1}, model_.units.size());
  run(evaluation_, walk);
  return {walk.loss_sum, count_valid(batch)};
}

std::vector<double> Engine::exchange(std::string_view what, std::span<const double> mine) {
  std::vector<double> all;  // dry: every rank is like this one
  for (int rank = 0; rank < ranks(); ++rank) all.insert(all.end(), mine.begin(), mine.end());
  if (ranks() == 1) return all;
  const double begin = now_seconds();
  std::vector<double> shard(mine.begin(), mine.end());
  const Part part{dry() ? nullptr : all.data(), dry() ? nullptr : shard.data(),
                  static_cast<int64_t>(mine.size_bytes())};
  channel(Lane::compute).all_gather(fmt::format("{}, step {}", what, steps_done_ + 1), {&part, 1});
  const double seconds = now_seconds() - begin;
  times_.communication += seconds;
  exposed_[static_cast<size_t>(Lane::compute)] += seconds;
  trace_.add(Lane::compute, std::string(what), begin, part.shard_bytes * (ranks() - 1));
  return all;
}

std::vector<std::string> Engine::collect(std::string_view what, const std::string& mine) {
  const auto size = static_cast<double>(mine.size());
  const std::vector<double> sizes = exchange(what, {&size, 1});
  const auto longest = static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end()));
  std::string shard = mine, all(longest * sizes.size(), ' ');
  shard.resize(longest);
  if (ranks() == 1) return {mine};
  const Part part{all.data(), shard.data(), static_cast<int64_t>(longest)};
  channel(Lane::compute).all_gather(what, {&part, 1});
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < sizes.size(); ++rank)
    texts.push_back(all.substr(rank * longest, static_cast<size_t>(sizes[rank])));
  return texts;
}

void Engine::decode(const BatchView& batch, std::span<KvCache> caches, Tensor logits) {
  require(ranks() == 1, "generation on {} ranks", ranks());
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
  std::vector<Tensor> params;
  head_logits(call_for(model_.head(), batch, params), *model_.units[head], last, logits);
  for (KvCache& cache : caches) cache.length += batch.sequence;
}

void Engine::for_each_parameter(const std::function<void(const ParamSpec&, Tensor)>& visit) {
  for (int u = 0; u < static_cast<int>(states_.size()); ++u) {
    UnitState& unit = state(u);
    const bool sharded = unit.residence().shard_parameters;
    if (sharded) {
      unit.begin_gather();
      const Part part = unit.gather_part();
      channel(Lane::gather).all_gather("visit " + unit_name(u), {&part, 1});
    }
    for (size_t p = 0; p < unit.layout().params().size(); ++p)
      visit(unit.layout().params()[p], unit.param(static_cast<int>(p)));
    if (sharded) unit.release_parameters();
  }
}

void Engine::for_each_piece(
    const std::function<void(const ParamSpec&, int64_t first, Tensor dst)>& visit) {
  for (const auto& unit : states_)
    for (const Piece& piece : unit->held_pieces())
      visit(unit->layout().params()[static_cast<size_t>(piece.param)], piece.first,
            unit->held_parameters().col_range(piece.offset, piece.elems));
}

void Engine::for_each_optimizer_piece(
    const std::function<void(const std::string&, const ParamSpec&, int64_t, Tensor)>& visit) {
  for (const auto& unit : states_) {
    if (unit->frozen()) continue;
    for (int i = 0; i < options_.optimizer.state_count(); ++i)
      for (const Piece& piece : unit->stepped_pieces())
        visit(options_.optimizer.state_name(i),
              unit->layout().params()[static_cast<size_t>(piece.param)], piece.first,
              unit->stepped_state(i).col_range(piece.offset, piece.elems));
  }
}

std::vector<std::string> Engine::saved_states(int unit) const {
  std::vector<std::string> names{"parameters"};
  if (traits_[static_cast<size_t>(unit)].frozen) return names;
  for (int i = 0; i < options_.optimizer.state_count(); ++i)
    names.push_back(options_.optimizer.state_name(i));
  return names;
}

std::vector<Engine::SavedPiece> Engine::saved_pieces(int unit) const {
  const UnitState& own = *states_[static_cast<size_t>(unit)];
  const std::vector<std::string> names = saved_states(unit);
  std::vector<SavedPiece> pieces;
  for (size_t s = 0; s < names.size(); ++s)
    for (const Piece& piece : own.layout().shard_pieces(rank())) {
      const Tensor shard =
          s == 0 ? own.parameter_shard() : own.state_shard(static_cast<int>(s) - 1);
      pieces.push_back({&own.layout().params()[static_cast<size_t>(piece.param)], names[s],
                        piece.first, shard.col_range(piece.offset, piece.elems)});
    }
  return pieces;
}

void Engine::for_each_gradient(const std::function<void(const ParamSpec&, Tensor)>& visit) {
  require(options_.keep_gradients, "gradients are asked for, and were not kept");
  for (const auto& unit : states_)
    for (size_t p = 0; p < unit->layout().params().size(); ++p)
      visit(unit->layout().params()[p], unit->grad(static_cast<int>(p)));
}

}  // namespace onefold
