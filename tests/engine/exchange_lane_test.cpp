// What travels while something is computed that does not read it: rows to the holders of their
// experts, and back, keys and values around a ring, and gradients by heads back to their tokens.
// The bits are those of the same mesh with exchanges in the order of computation, in every layout;
// as much is sent; and the plan is the run.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "engine/late_channels.h"
#include "engine/lines.h"
#include "engine/programs.h"
#include "engine/ranks.h"
#include "error_text.h"

namespace onefold {
namespace {

// Awkward sizes: odd widths of experts, a dense block between two mixtures.
ModelSpec awkward_mixture(bool shared, float capacity = 0) {
  ModelSpec spec = spec_from_preset("mixtral-tiny", "test");
  spec.vocab_size = 101;
  spec.num_layers = 3;
  spec.hidden_size = 24;
  spec.num_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim = 6;
  spec.intermediate_size = 23;
  spec.experts.count = 4;
  spec.experts.per_token = 2;
  spec.experts.intermediate_size = 17;
  spec.experts.dense_blocks = {1};
  spec.experts.balance_loss = 0.02f;
  spec.experts.capacity_factor = capacity;
  if (!shared) return spec;
  spec.experts.shared_intermediate_size = 13;
  spec.experts.shared_gate = true;
  return spec;
}

EngineOptions beside(int expert, int stage = 0) {
  EngineOptions options{.expert = expert, .threads = 1, .micro_batch = 2, .sequence = 12};
  options.micros = 2;
  options.clipping = 0.5;
  options.zero.stage = stage;
  options.zero.persistence_elems = 0;
  options.zero.overlap = true;
  return options;
}

EngineOptions in_order(EngineOptions options) {
  options.zero.overlap = false;
  return options;
}

constexpr auto kExchange = static_cast<size_t>(Lane::exchange);

// A run against the same without overlap.
void expect_bits_in_order(const ModelSpec& spec, const EngineOptions& options, int ranks,
                          int steps = 3) {
  const test::RankRun run = test::train_on_ranks(spec, options, ranks, steps);
  const test::RankRun plain = test::train_on_ranks(spec, in_order(options), ranks, steps);
  EXPECT_EQ(run.losses, plain.losses);
  EXPECT_EQ(run.norms, plain.norms);
  test::expect_same_bits(run.weights, plain.weights);
  test::expect_planned(spec, options, ranks, run, test::this_processor());
  test::expect_planned(spec, in_order(options), ranks, plain, test::this_processor());
  const TrafficTable planned =
      Engine::plan(spec, options, ranks, 0, test::this_processor())->traffic(Lane::exchange);
  for (size_t c = 0; c < planned.size(); ++c) {
    EXPECT_EQ(run.traffic[kExchange][c].calls, plain.traffic[kExchange][c].calls);
    EXPECT_EQ(run.traffic[kExchange][c].bytes_sent, plain.traffic[kExchange][c].bytes_sent);
    EXPECT_EQ(run.traffic[kExchange][c].calls, steps * planned[c].calls);
    EXPECT_EQ(run.traffic[kExchange][c].bytes_sent, steps * planned[c].bytes_sent);
  }
}

TEST(OverlappedDispatch, HasTheBitsOfThatInOrderAtEveryStageInEveryLayout) {
  for (int stage = 0; stage <= 3; ++stage)
    for (const bool again : {false, true})
      for (const float capacity : {0.0f, 1.0f}) {
        SCOPED_TRACE(
            fmt::format("stage {}{}, capacity {}", stage, again ? ", again" : "", capacity));
        EngineOptions options = beside(2, stage);
        options.recompute = again;
        options.order = stage == 2 ? Order::unit_first : Order::micro_first;
        expect_bits_in_order(awkward_mixture(true, capacity), options, 4);
      }
}

TEST(OverlappedDispatch, HasThemWithoutASharedExpertAndWithFourHolders) {
  expect_bits_in_order(awkward_mixture(false), beside(2), 2);
  expect_bits_in_order(awkward_mixture(false, 1), beside(4, 1), 4);
  expect_bits_in_order(awkward_mixture(true), beside(4, 3), 4);
}

TEST(OverlappedDispatch, HasThemBesideOtherAxesAndInPipelines) {
  for (const bool scattered : {false, true}) {
    EngineOptions options = beside(2, 2);
    options.tensor = 2;
    options.sequence_parallel = scattered;
    expect_bits_in_order(awkward_mixture(true), options, 4, 2);
  }
  // Sums of attention are on the same lane.
  EngineOptions options = beside(2);
  options.tensor = 2;
  options.overlap_chunks = 2;
  options.sequence = 134;
  expect_bits_in_order(awkward_mixture(true), options, 4, 2);
  options = beside(2, 1);
  options.context = 2;
  for (const ContextMethod method : {ContextMethod::ulysses, ContextMethod::ring}) {
    options.context_method = method;
    expect_bits_in_order(awkward_mixture(true), options, 4, 2);
  }
  for (const PipelineSchedule schedule : kPipelineSchedules) {
    options = beside(2);
    options.pipeline.ranks = 2;
    options.pipeline.schedule = schedule;
    options.micros = 4;
    expect_bits_in_order(awkward_mixture(true), options, 4, 2);
  }
}

TEST(OverlappedDispatch, HasThemInSixteenBitsWithDropoutOnThreads) {
  ModelSpec spec = awkward_mixture(true);
  spec.dropout = 0.1f;
  spec.experts.jitter = 0.05f;
  EngineOptions options = beside(2, 2);
  options.precision.compute = options.precision.gradients = DType::bf16;
  options.threads = 2;
  expect_bits_in_order(spec, options, 4);
}

// An evaluation keeps nothing, and may have more rows than a training's capacity lets through.
TEST(OverlappedDispatch, EvaluatesWithTheBitsOfThatInOrder) {
  const ModelSpec spec = awkward_mixture(true, 0.5f);
  std::array<std::vector<double>, 2> losses;
  for (const bool overlap : {false, true}) {
    std::vector<double>& of = losses[overlap ? 1 : 0];
    of.resize(4);
    test::on_ranks(4, [&](int rank, std::shared_ptr<Communicator> communicator) {
      const EngineOptions options = overlap ? beside(2, 3) : in_order(beside(2, 3));
      Engine engine(spec, options, std::move(communicator));
      of[static_cast<size_t>(rank)] =
          engine.evaluate(test::random_rows(rank, engine.options(), spec.vocab_size).view()).first;
    });
  }
  EXPECT_EQ(losses[0], losses[1]);
}

// What is computed between an exchange of a unit and the first that waits for it.
using Names = std::vector<std::string>;
Names beside_of(const ModelSpec& spec, const EngineOptions& options, int unit) {
  const int ranks = options.expert * options.context;
  const Model model = model_of(spec, options);
  const std::vector<UnitTraits> units = unit_traits(model, options, ranks);
  const Program program = training_program(options, units, ranks);
  Names found;
  for (size_t i = 0; i < program.actions.size(); ++i) {
    const Action& exchange = program.actions[i];
    if (exchange.lane != Lane::exchange || exchange.micro > 0 || exchange.unit != unit) continue;
    for (size_t j = i + 1; j < program.actions.size(); ++j) {
      const Action& action = program.actions[j];
      if (!computes(action)) continue;
      const std::vector<int>& waits = action.waits;
      if (std::find(waits.begin(), waits.end(), exchange.ticket) != waits.end()) break;
      const bool backward = action.verb == Verb::backward;
      found.emplace_back(model.units[static_cast<size_t>(unit)]
                             ->phase(backward, action.phase, options.tokens())
                             .name);
    }
  }
  return found;
}

TEST(OverlappedDispatch, TravelsBesideTheSharedExpertAndGradientsOfTheExpertsWeights) {
  const EngineOptions options = beside(2);
  EXPECT_EQ(beside_of(awkward_mixture(true), options, 2),
            (Names{"shared up", "shared down", "shared", "expert weights"}));
  EXPECT_EQ(beside_of(awkward_mixture(false), options, 2), Names{"expert weights"});
  EXPECT_EQ(beside_of(awkward_mixture(true), in_order(options), 2), Names{});
}

// ---- Rings

ModelSpec dense(const std::string& preset) {
  ModelSpec spec = spec_from_preset(preset, "test");
  spec.vocab_size = 101;
  spec.num_layers = 3;
  spec.hidden_size = 24;
  spec.num_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim = 6;
  spec.intermediate_size = 23;
  return spec;
}

EngineOptions ring(int context, int stage = 0) {
  EngineOptions options = beside(1, stage);
  options.context = context;
  options.context_method = ContextMethod::ring;
  options.sequence = 24;
  return options;
}

TEST(OverlappedRing, HasTheBitsOfThatInOrderAtEveryStageInEveryLayout) {
  for (int stage = 0; stage <= 3; ++stage)
    for (const int context : {2, 3, 4})
      for (const bool again : {false, true}) {
        SCOPED_TRACE(fmt::format("stage {} of {}{}", stage, context, again ? ", again" : ""));
        EngineOptions options = ring(context, stage);
        options.recompute = again;
        options.order = stage == 2 ? Order::unit_first : Order::micro_first;
        expect_bits_in_order(dense(again ? "qwen3-tiny" : "llama-tiny"), options,
                             context * (stage > 1 ? 2 : 1), 2);
      }
}

TEST(OverlappedRing, HasThemBesideOtherAxesAndInPipelines) {
  EngineOptions options = ring(2, 2);
  options.tensor = 2;
  expect_bits_in_order(dense("llama-tiny"), options, 4, 2);
  options.overlap_chunks = 2;
  options.sequence = 264;
  ModelSpec spec = dense("llama-tiny");
  spec.max_sequence_length = 264;
  expect_bits_in_order(spec, options, 4, 2);
  for (const PipelineSchedule schedule : kPipelineSchedules)
    for (const std::string preset : {"llama-tiny", "gptj-tiny"}) {
      SCOPED_TRACE(preset);
      options = ring(2);
      options.pipeline.ranks = 2;
      options.pipeline.schedule = schedule;
      options.micros = 4;
      spec = dense(preset);
      if (preset == "gptj-tiny") spec.num_kv_heads = 4;
      expect_bits_in_order(spec, options, 4, 2);
    }
}

TEST(OverlappedRing, HasThemInSixteenBitsOnThreads) {
  EngineOptions options = ring(3, 1);
  options.precision.compute = options.precision.gradients = DType::bf16;
  options.threads = 2;
  expect_bits_in_order(dense("llama-tiny"), options, 3);
}

// ---- Tokens for heads

EngineOptions ulysses(int context, int stage = 0) {
  EngineOptions options = ring(context, stage);
  options.context_method = ContextMethod::ulysses;
  return options;
}

TEST(OverlappedHeads, HaveTheBitsOfThoseInOrderInEveryLayout) {
  for (int stage = 0; stage <= 3; ++stage)
    for (const std::string preset : {"llama-tiny", "gpt2-tiny", "gptj-tiny"}) {
      SCOPED_TRACE(fmt::format("stage {} {}", stage, preset));
      ModelSpec spec = dense(preset);
      if (preset != "llama-tiny") spec.num_kv_heads = 4;
      if (preset == "gpt2-tiny") spec.dropout = 0.1f;
      EngineOptions options = ulysses(stage % 2 == 0 ? 2 : 4, stage);
      options.recompute = stage > 1;
      if (stage == 3) options.micro_batch = 1;
      expect_bits_in_order(spec, options, 4, 2);
    }
  for (const PipelineSchedule schedule : kPipelineSchedules) {
    EngineOptions options = ulysses(2);
    options.tensor = 2;
    options.pipeline.ranks = 2;
    options.pipeline.schedule = schedule;
    options.micros = 4;
    expect_bits_in_order(dense("llama-tiny"), options, 8, 2);
  }
}

TEST(OverlappedHeads, GradientsTravelBackBesideThoseOfOutsWeights) {
  EXPECT_EQ(beside_of(dense("llama-tiny"), ulysses(2), 1), Names{"out weights"});
  EXPECT_EQ(beside_of(dense("llama-tiny"), in_order(ulysses(2)), 1), Names{});
}

// Every turn but the last one travels beside a step.
TEST(OverlappedRing, TurnsTravelBesideTheStepsOfAttention) {
  for (const int context : {2, 3, 4}) {
    const Names steps(static_cast<size_t>(2 * context - 1), "attend");
    EXPECT_EQ(beside_of(dense("llama-tiny"), ring(context), 1), steps);
    EXPECT_EQ(beside_of(dense("llama-tiny"), in_order(ring(context)), 1), Names{});
  }
}

// ---- However long an exchange is under way

// Whatever is computed beside an exchange has the bits it had, though the exchange begins when that
// is done: it reads nothing of what arrives, and leaves what is sent as it is.
TEST(LateExchanges, ChangeNoBit) {
  const auto late = [](std::shared_ptr<Communicator> communicator) {
    return std::make_shared<test::LateCommunicator>(
        std::move(communicator),
        test::Late{{"dispatch", "ring", "context beside"},
                   [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }});
  };
  std::vector<std::pair<ModelSpec, EngineOptions>> cases = {
      {awkward_mixture(true), beside(2)},
      {awkward_mixture(false, 0.7f), beside(2)},
      {dense("qwen3-tiny"), ring(3)},
      {dense("llama-tiny"), ulysses(2)}};
  for (const ContextMethod method : {ContextMethod::ring, ContextMethod::ulysses}) {
    EngineOptions options = ulysses(2);
    options.context_method = method;
    options.pipeline.ranks = 2;
    options.pipeline.schedule = PipelineSchedule::zero_bubble;
    cases.emplace_back(dense("llama-tiny"), options);
    options = ulysses(2);
    options.context_method = method;
    options.expert = 2;
    options.recompute = true;
    cases.emplace_back(awkward_mixture(true), options);
  }
  for (const auto& [spec, options] : cases) {
    const int ranks = options.expert * options.context * options.pipeline.ranks;
    SCOPED_TRACE(
        fmt::format("expert {}, context {}, {} ranks", options.expert, options.context, ranks));
    const test::RankRun run = test::train_on_ranks(spec, options, ranks, 2, late);
    const test::RankRun plain = test::train_on_ranks(spec, in_order(options), ranks, 2);
    EXPECT_EQ(run.losses, plain.losses);
    EXPECT_EQ(run.norms, plain.norms);
    test::expect_same_bits(run.weights, plain.weights);
  }
}

// A rank fails when its third exchange beside computation has just been posted. That is under way
// until after: another rank may read what is sent, and what comes is written where it goes.
void expect_all_held_to_the_end(const ModelSpec& spec, const EngineOptions& options,
                                const std::vector<std::string>& channels) {
  std::atomic<bool> posted{false}, failed{false};
  std::thread::id computes;
  Ledger* ledger = nullptr;
  int64_t held = 0;
  std::vector<int64_t> held_in_exchange;
  const auto before_call = [&] {
    if (!posted || std::this_thread::get_id() == computes || !held_in_exchange.empty()) return;
    while (!failed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the rank is at its end
    held_in_exchange.push_back(ledger->held_bytes());
  };
  const auto before_action = [&, exchanges = 0](const Action& action) mutable {
    if (posted) {
      held = ledger->held_bytes();
      failed = true;
      user_error("as the test asks");
    }
    exchanges += action.lane == Lane::exchange ? 1 : 0;
    posted = exchanges == 3;
  };
  const auto body = [&](int rank, std::shared_ptr<Communicator> communicator) {
    EngineOptions own = options;
    if (rank == 0) {
      computes = std::this_thread::get_id();
      communicator = std::make_shared<test::LateCommunicator>(std::move(communicator),
                                                              test::Late{channels, before_call});
      own.before_action = before_action;
    }
    Engine engine(spec, own, std::move(communicator));
    if (rank == 0) ledger = &engine.ledger();
    test::train_step(engine);
  };
  EXPECT_EQ(error_text([&] { test::on_ranks(2, body); }), "as the test asks");
  EXPECT_EQ(held_in_exchange, std::vector<int64_t>{held});
}

TEST(LateExchanges, HaveTheirMemoryWhenTheirRankFails) {
  expect_all_held_to_the_end(awkward_mixture(true), beside(2), {"dispatch"});
  expect_all_held_to_the_end(dense("llama-tiny"), ring(2), {"ring"});
  expect_all_held_to_the_end(dense("llama-tiny"), ulysses(2), {"context beside"});
  EngineOptions options = beside(1);
  options.tensor = 2;
  options.overlap_chunks = 2;
  options.sequence = 134;
  ModelSpec spec = dense("llama-tiny");
  spec.max_sequence_length = 134;
  expect_all_held_to_the_end(spec, options, {lane_name(Lane::exchange)});
}

}  // namespace
}  // namespace onefold
