// Expert parallelism: ranks that divide the experts of each mixture learn what one rank learns,
// within rounding; bits repeat, over ZeRO's stages too; and the plan is the run.
#include <algorithm>
#include <cmath>

#include "data/scratch.h"
#include "engine/lines.h"
#include "engine/ranks.h"
#include "error_text.h"

namespace onefold {
namespace {

// Awkward sizes: an odd width of experts, a dense block between two mixtures.
ModelSpec mixture(int64_t experts = 4) {
  ModelSpec spec = spec_from_preset("mixtral-tiny", "test");
  spec.vocab_size = 101;
  spec.num_layers = 3;
  spec.hidden_size = 18;
  spec.num_heads = 3;
  spec.num_kv_heads = 3;
  spec.head_dim = 6;
  spec.intermediate_size = 23;
  spec.experts.count = experts;
  spec.experts.per_token = 2;
  spec.experts.intermediate_size = 17;
  spec.experts.dense_blocks = {1};
  spec.experts.balance_loss = 0.02f;
  spec.experts.z_loss = 0.01f;
  return spec;
}

void add_shared(ModelSpec& spec, bool gate) {
  spec.experts.shared_intermediate_size = 13;
  spec.experts.shared_gate = gate;
}

EngineOptions options_of(int expert, int stage) {
  EngineOptions options{.expert = expert, .threads = 1, .micro_batch = 2, .sequence = 11};
  options.micros = 2;
  options.clipping = 0.5;
  options.zero.stage = stage;
  options.zero.persistence_elems = 0;
  options.zero.reduce_bucket_elems = options.zero.gather_bucket_elems = 5000;
  return options;
}

// The same global batch on one rank, in the same micro-batches.
test::RankRun alone(const ModelSpec& spec, EngineOptions options, int ranks, int steps) {
  options.expert = 1;
  options.zero.stage = 0;
  options.micros *= ranks;
  return test::train_on_ranks(spec, options, 1, steps);
}

// |a - b| against |b|, of all weights but those of norms, whose size would hide the others'.
double distance(const test::Weights& a, const test::Weights& b) {
  double difference = 0, size = 0;
  for (const auto& [name, values] : b) {
    if (name.ends_with("norm.weight")) continue;
    for (size_t i = 0; i < values.size(); ++i) {
      const double one = a.at(name)[i] - values[i];
      difference += one * one;
      size += double{values[i]} * values[i];
    }
  }
  return std::sqrt(difference / size);
}

struct ExpertCase {
  std::string name;
  int expert, data, stage;
  void (*change)(ModelSpec&) = [](ModelSpec&) {};
};

class ExpertRanks : public testing::TestWithParam<ExpertCase> {};

TEST_P(ExpertRanks, LearnWhatOneRankLearnsAsPlanned) {
  const ExpertCase& c = GetParam();
  ModelSpec spec = mixture();
  c.change(spec);
  constexpr int kSteps = 20;
  const int ranks = c.expert * c.data;
  const EngineOptions options = options_of(c.expert, c.stage);
  const test::RankRun run = test::train_on_ranks(spec, options, ranks, kSteps);
  const test::RankRun one = alone(spec, options, ranks, kSteps);
  EXPECT_LT(distance(run.weights, one.weights), 1e-5);
  for (size_t step = 0; step < run.losses.size(); ++step) {
    EXPECT_NEAR(run.losses[step], one.losses[step], 1e-5 * one.losses[step]) << step;
    EXPECT_NEAR(run.norms[step], one.norms[step], 1e-5 * one.norms[step]) << step;
  }
  EXPECT_GT(distance(run.weights, alone(spec, options, ranks, 0).weights), 0.1);
  test::expect_planned(spec, options, ranks, run, test::this_processor());
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, ExpertRanks,
    testing::Values(
        ExpertCase{"Two", 2, 1, 0}, ExpertCase{"TwoByTwo", 2, 2, 2}, ExpertCase{"Four", 4, 1, 1},
        ExpertCase{"FourByTwo", 4, 2, 3},
        ExpertCase{"Capacity", 2, 1, 3, [](ModelSpec& spec) { spec.experts.capacity_factor = 1; }},
        ExpertCase{"CapacityOfFour", 4, 2, 2,
                   [](ModelSpec& spec) { spec.experts.capacity_factor = 0.7f; }},
        ExpertCase{"Shared", 2, 2, 1, [](ModelSpec& spec) { add_shared(spec, false); }},
        ExpertCase{"GatedShared", 4, 1, 0, [](ModelSpec& spec) { add_shared(spec, true); }},
        ExpertCase{"Sigmoid", 2, 1, 2,
                   [](ModelSpec& spec) {
                     spec.experts.scores = RouterScores::sigmoid;
                     spec.experts.normalised = false;
                   }},
        ExpertCase{"ThreeOfEight", 4, 1, 3,
                   [](ModelSpec& spec) {
                     spec.experts.count = 8;
                     spec.experts.per_token = 3;
                   }},
        ExpertCase{"NoisyAndDropped", 2, 2, 0,
                   [](ModelSpec& spec) {
                     spec.dropout = 0.1f;
                     spec.experts.jitter = 0.05f;
                     add_shared(spec, true);
                   }}),
    [](const auto& info) { return info.param.name; });

TEST(Experts, StartFromTheWeightsOfTheWholeModel) {
  ModelSpec spec = mixture();
  add_shared(spec, true);
  const test::Weights one = test::train_on_ranks(spec, options_of(1, 0), 1, 0).weights;
  for (const int expert : {2, 4})
    for (const int stage : {0, 3})
      test::expect_same_bits(
          test::train_on_ranks(spec, options_of(expert, stage), 2 * expert, 0).weights, one);
}

// On one mesh: every stage, order, recomputation and way of travel, and from run to run.
TEST(Experts, BitsRepeatAtEveryStageAndInEveryLayout) {
  ModelSpec spec = mixture();
  add_shared(spec, true);
  spec.experts.capacity_factor = 1;
  spec.dropout = 0.1f;
  const test::RankRun first = test::train_on_ranks(spec, options_of(2, 0), 4, 3);
  for (int stage = 0; stage <= 3; ++stage)
    for (const bool unit_first : {false, true})
      for (const bool again : {false, true}) {
        SCOPED_TRACE(fmt::format("stage {} {} {}", stage, unit_first, again));
        EngineOptions options = options_of(2, stage);
        options.order = unit_first ? Order::unit_first : Order::micro_first;
        options.recompute = again;
        options.zero.overlap = !again;
        const test::RankRun run = test::train_on_ranks(spec, options, 4, 3);
        EXPECT_EQ(run.losses, first.losses);
        EXPECT_EQ(run.norms, first.norms);
        test::expect_same_bits(run.weights, first.weights);
        test::expect_planned(spec, options, 4, run, test::this_processor());
      }
}

TEST(Experts, OffloadKeepsTheBits) {
  const ModelSpec spec = mixture();
  const ScratchFolder folder;
  for (const int data : {1, 2}) {
    EngineOptions options = options_of(2, data == 1 ? 0 : 3);
    const test::RankRun whole = test::train_on_ranks(spec, options, 2 * data, 3);
    options.offload = {.parameters = data == 1 ? Tier::host : Tier::disk,
                       .optimizer = Tier::host,
                       .activations = Tier::host,
                       .folder = folder.path("")};
    const test::RankRun run = test::train_on_ranks(spec, options, 2 * data, 3);
    EXPECT_EQ(run.losses, whole.losses);
    test::expect_same_bits(run.weights, whole.weights);
    test::expect_planned(spec, options, 2 * data, run, test::this_processor());
  }
}

TEST(Experts, SixteenBitsAgreeWithOneRankAndRepeat) {
  for (const DType type : {DType::bf16, DType::f16}) {
    ModelSpec spec = mixture();
    spec.hidden_size = 15;  // rows of an odd number of elements
    EngineOptions options = options_of(2, 2);
    options.precision.compute = type;
    options.precision.gradients = type == DType::bf16 ? DType::bf16 : DType::f32;
    const test::RankRun run = test::train_on_ranks(spec, options, 4, 6);
    const test::RankRun one = alone(spec, options, 4, 6);
    EXPECT_LT(distance(run.weights, one.weights), 0.02);
    EXPECT_NEAR(run.losses.back(), one.losses.back(), 0.02);
    test::expect_planned(spec, options, 4, run, test::this_processor());
    options.zero.overlap = false;
    test::expect_same_bits(test::train_on_ranks(spec, options, 4, 6).weights, run.weights);
  }
}

TEST(Experts, OtherOptimizersAndFrozenUnitsAgreeWithOneRank) {
  for (const auto type : {OptimizerSpec::Type::sgd, OptimizerSpec::Type::lion}) {
    const ModelSpec spec = mixture();
    EngineOptions options = options_of(2, 2);
    options.optimizer.type = type;
    options.frozen = {"block.2.mlp"};
    const test::RankRun run = test::train_on_ranks(spec, options, 4, 5);
    const test::RankRun one = alone(spec, options, 4, 5);
    // Lion steps by signs, of which a few may differ where a gradient is nearly 0.
    EXPECT_LT(distance(run.weights, one.weights), type == OptimizerSpec::Type::lion ? 1e-3 : 1e-6);
    EXPECT_NEAR(run.norms.back(), one.norms.back(), 1e-4 * one.norms.back());
  }
}

// Four all-to-alls of each mixture and micro-batch; and, once a step, the gradients of what all
// have of a mixture: its norm and its router.
TEST(Experts, VolumeIsThatOfTheFormula) {
  for (const int expert : {2, 4})
    for (const float capacity : {0.0f, 1.0f})
      for (const bool again : {false, true}) {
        ModelSpec spec = mixture(8);
        spec.experts.capacity_factor = capacity;
        EngineOptions options = options_of(expert, 0);
        options.recompute = again;
        const auto run = test::train_on_ranks(spec, options, expert, 1);
        const TrafficTable& sent = run.traffic[static_cast<size_t>(Lane::exchange)];
        const int64_t tokens = options.micro_batch * options.sequence, here = 8 / expert;
        int64_t block = tokens * std::min<int64_t>(spec.experts.per_token, here);
        if (capacity > 0) block = std::min(block, spec.experts.capacity(tokens) * here);
        const int64_t mixtures = 2, calls = mixtures * options.micros * (again ? 5 : 4);
        const Traffic& exchanged = sent[static_cast<size_t>(Collective::all_to_all)];
        EXPECT_EQ(exchanged.calls, calls);
        EXPECT_EQ(exchanged.bytes_sent, calls * (expert - 1) * block * (spec.hidden_size * 4 + 8));
        const int64_t dense = spec.hidden_size * (1 + spec.experts.count);
        EXPECT_EQ(sent[static_cast<size_t>(Collective::all_reduce)].bytes_sent,
                  mixtures * 2 * (expert - 1) * ((dense + expert - 1) / expert) * 4);
        const TrafficTable planned = Engine::plan(spec, options, expert)->traffic(Lane::exchange);
        for (size_t c = 0; c < planned.size(); ++c) {
          EXPECT_EQ(planned[c].calls, sent[c].calls);
          EXPECT_EQ(planned[c].bytes_sent, sent[c].bytes_sent);
        }
      }
}

// Each rank has its share of the experts, and ZeRO shards that along the data axis alone; the rest
// is sharded along both.
TEST(Experts, StateIsDividedAlongBothAxes) {
  const ModelSpec spec = mixture();
  for (const int data : {1, 2}) {
    const EngineOptions options = options_of(2, 3);
    const auto plan = Engine::plan(spec, options, 2 * data);
    for (int u = 0; u < plan->state().units(); ++u) {
      const UnitState& own = plan->state().unit(u);
      const bool experts = plan->model().units[static_cast<size_t>(u)]->experts() > 0;
      EXPECT_EQ(own.layout().ranks(), experts ? data : 2 * data) << u;
      for (size_t p = 0; p < own.layout().params().size(); ++p) {
        const ParamSpec &here = own.layout().params()[p], &whole = plan->state().whole_params(u)[p];
        EXPECT_EQ(here.rows, here.boxes.empty() ? whole.rows : whole.rows / 2) << here.name;
        EXPECT_EQ(here.boxes.empty(), here.name.find(".experts.") == std::string::npos);
      }
    }
  }
}

TEST(Experts, LoadIsThatOfAllRanks) {
  const ModelSpec spec = mixture();
  EngineOptions options = options_of(2, 1);
  std::vector<StepExperts> loads;
  for (const int ranks : {4, 1}) {
    if (ranks == 1) {
      options.expert = 1;
      options.micros *= 4;
    }
    test::on_ranks(ranks, [&](int rank, std::shared_ptr<Communicator> communicator) {
      Engine engine(spec, options, std::move(communicator));
      const StepExperts load = test::train_step(engine).experts;
      if (rank == 0) loads.push_back(load);
    });
  }
  ASSERT_EQ(loads.size(), 2u);
  ASSERT_EQ(loads[0].layers.size(), 2u);
  for (size_t layer = 0; layer < 2; ++layer)
    EXPECT_EQ(loads[0].layers[layer].shares, loads[1].layers[layer].shares);
  EXPECT_NEAR(loads[0].balance_loss, loads[1].balance_loss, 1e-9);
}

// An evaluation drops nothing, whatever the capacity of training.
TEST(Experts, EvaluateAsOneRankDoes) {
  for (const float capacity : {0.0f, 0.5f}) {
    ModelSpec spec = mixture();
    spec.experts.capacity_factor = capacity;
    std::vector<double> losses(4);
    std::vector<double> expected;
    Engine one(spec, options_of(1, 0));
    for (int64_t rank = 0; rank < 4; ++rank)
      expected.push_back(
          one.evaluate(test::random_rows(rank, one.options(), spec.vocab_size).view()).first);
    test::on_ranks(4, [&](int rank, std::shared_ptr<Communicator> communicator) {
      Engine engine(spec, options_of(2, 3), std::move(communicator));
      losses[static_cast<size_t>(rank)] =
          engine.evaluate(test::random_rows(rank, engine.options(), spec.vocab_size).view()).first;
    });
    for (size_t rank = 0; rank < 4; ++rank)
      EXPECT_NEAR(losses[rank], expected[rank], 1e-5 * expected[rank]);
  }
}

// Rows for which there is no room end the step before it has changed anything; a bound that is
// never reached changes memory and messages alone.
TEST(Experts, ABoundSavesMemoryAndIsNeverExceededSilently) {
  const ModelSpec spec = mixture();
  EngineOptions options = options_of(4, 2);
  const test::RankRun unbounded = test::train_on_ranks(spec, options, 4, 3);
  options.expert_bound = 3;
  const test::RankRun run = test::train_on_ranks(spec, options, 4, 3);
  EXPECT_EQ(run.losses, unbounded.losses);
  test::expect_same_bits(run.weights, unbounded.weights);
  test::expect_planned(spec, options, 4, run, test::this_processor());
  const auto sent = [](const test::RankRun& of) {
    return of
        .traffic[static_cast<size_t>(Lane::exchange)][static_cast<size_t>(Collective::all_to_all)]
        .bytes_sent;
  };
  // 22 tokens with two choices of four ranks: 33 rows would be three times the even share.
  EXPECT_EQ(sent(run), sent(unbounded));
  options.expert_bound = 1.9;
  EXPECT_EQ(Engine::plan(spec, options, 4)
                    ->traffic(Lane::exchange)[static_cast<size_t>(Collective::all_to_all)]
                    .bytes_sent *
                22,
            sent(unbounded) / 3 * 21);
  EXPECT_LT(Engine::plan(spec, options, 4)->ledger().peak_bytes(), unbounded.peaks[0]);
  options.expert_bound = 1;
  // That is no step to leave out: the next would have no more room.
  for (const bool skip : {false, true}) {
    options.skip_overflow = skip;
    EXPECT_ERROR(test::train_on_ranks(spec, options, 4, 3), "step 1, block.0.mlp",
                 "rows are for one holder of experts, and there is room for 11",
                 "mesh.expert_bound is 1 times an even share");
  }
  EXPECT_ERROR(
      test::on_ranks(4,
                     [&](int rank, std::shared_ptr<Communicator> communicator) {
                       Engine engine(spec, options, std::move(communicator));
                       engine.evaluate(
                           test::random_rows(rank, engine.options(), spec.vocab_size).view());
                     }),
      "step 1, block.0.mlp", "there is room for 11");
}

TEST(Experts, WhatCannotBeDividedIsRefusedWithAllReasons) {
  const auto text = [](const ModelSpec& spec, const EngineOptions& options) {
    return obstacle_to_expert_ranks(spec, options);
  };
  EXPECT_EQ(text(mixture(), options_of(2, 0)), "");
  EXPECT_EQ(text(spec_from_preset("llama-tiny", "test"), options_of(1, 0)), "");
  EXPECT_TRUE(contains(text(spec_from_preset("llama-tiny", "test"), options_of(2, 0)),
                       "mesh.expert is 2, and the experts of the model cannot be divided so: it "
                       "has none (model.experts)"));
  EXPECT_TRUE(contains(text(mixture(), options_of(3, 0)), "there are 4 experts in each"));
  EngineOptions options = options_of(2, 0);
  options.optimizer.type = OptimizerSpec::Type::lamb;
  options.clip_rule.value = 1;
  options.local.steps = 4;
  for (const char* reason : {"steps whole tensors", "single tensors", "delay.local_steps"})
    EXPECT_TRUE(contains(text(mixture(), options), reason)) << reason;
  EXPECT_ERROR(Engine::plan(mixture(), options_of(3, 0), 3), "mesh.expert is 3",
               "there are 4 experts in each");
}

}  // namespace
}  // namespace onefold
