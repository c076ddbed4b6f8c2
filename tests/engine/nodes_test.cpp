// Stage 3 with nodes that keep what was gathered: the bits, the plan and what is sent.
#include "engine/lines.h"
#include "engine/ranks.h"
#include "error_text.h"
#include "program/verify.h"

namespace onefold {
namespace {

ModelSpec shape() {
  ModelSpec spec = spec_from_preset("llama-tiny", "test");
  spec.vocab_size = 101;
  spec.num_heads = 4;
  spec.num_kv_heads = 2;
  return spec;
}

EngineOptions options_of(int node_ranks) {
  EngineOptions options{.threads = 1, .micro_batch = 1, .sequence = 12};
  options.micros = 2;
  options.clipping = 0.5;
  options.zero.stage = 3;
  options.zero.persistence_elems = 300;  // norms of the head stay whole
  options.zero.node_ranks = node_ranks;
  return options;
}

// Lanes or not, computed again or not, in both orders, in 16 bits, with other axes.
TEST(Nodes, HaveTheBitsOfNoneAsPlanned) {
  const ModelSpec spec = shape();
  struct Way {
    bool overlap, again, unit_first, half;
    int tensor, context, pipeline, node_ranks, ranks;
  };
  for (const Way& way :
       {Way{true, false, false, false, 1, 1, 1, 2, 4},
        Way{false, true, false, false, 1, 1, 1, 3, 6}, Way{true, true, true, true, 1, 1, 1, 2, 6},
        Way{true, false, false, false, 2, 2, 1, 2, 8},
        Way{true, false, false, true, 1, 1, 2, 2, 8}}) {
    EngineOptions options = options_of(1);
    options.zero.overlap = way.overlap;
    options.recompute = way.again;
    options.order = way.unit_first ? Order::unit_first : Order::micro_first;
    if (way.half) options.precision.compute = DType::bf16;
    options.tensor = way.tensor;
    options.context = way.context;
    options.pipeline.ranks = way.pipeline;
    const test::RankRun none = test::train_on_ranks(spec, options, way.ranks, 3);
    options.zero.node_ranks = way.node_ranks;
    const test::RankRun run = test::train_on_ranks(spec, options, way.ranks, 3);
    EXPECT_EQ(run.losses, none.losses);
    EXPECT_EQ(run.norms, none.norms);
    test::expect_same_bits(run.weights, none.weights);
    test::expect_planned(spec, options, way.ranks, run, test::this_processor());
  }
}

// Experts that are divided beside a node, within one, and over parts of sequences: those that a
// node has once are gathered as ever.
TEST(Nodes, OfDividedExpertsHaveTheBitsOfNoneAsPlanned) {
  ModelSpec spec = shape();
  spec.num_layers = 2;
  spec.experts = {.count = 4, .intermediate_size = 24, .shared_intermediate_size = 8, .every = 2};
  struct Way {
    int expert, context, node_ranks, ranks, kept;  // by how many of a node experts are kept
  };
  for (const Way& way : {Way{2, 1, 2, 8, 0}, Way{2, 1, 4, 8, 2}, Way{4, 1, 2, 8, 0},
                         Way{2, 2, 2, 8, 2}, Way{2, 2, 4, 16, 2}, Way{2, 1, 6, 12, 3}}) {
    SCOPED_TRACE(fmt::format("expert {} x context {}, nodes of {}", way.expert, way.context,
                             way.node_ranks));
    EngineOptions options = options_of(1);
    options.expert = way.expert;
    options.context = way.context;
    const test::RankRun none = test::train_on_ranks(spec, options, way.ranks, 3);
    options.zero.node_ranks = way.node_ranks;
    EXPECT_EQ(expert_node_ranks(options, way.ranks), way.kept);
    const test::RankRun run = test::train_on_ranks(spec, options, way.ranks, 3);
    EXPECT_EQ(run.losses, none.losses);
    EXPECT_EQ(run.norms, none.norms);
    test::expect_same_bits(run.weights, none.weights);
    test::expect_planned(spec, options, way.ranks, run, test::this_processor());
    const auto plan = Engine::plan(spec, options, way.ranks);
    for (const Collective collective : {Collective::all_gather, Collective::reduce_scatter})
      EXPECT_EQ(plan->traffic(Lane::gather)[static_cast<size_t>(collective)].bytes_sent,
                run.traffic[static_cast<size_t>(Lane::gather)][static_cast<size_t>(collective)]
                        .bytes_sent /
                    3);
  }
}

// The first gather of a step is among all N ranks, later ones among the H of a node. Each rank
// holds an H-th of what is sharded, besides its N-th.
TEST(Nodes, MemoryAndVolumeAreThoseOfTheFormulas) {
  constexpr int kRanks = 6, kInside = 3;
  const ModelSpec spec = shape();
  const auto none = Engine::plan(spec, options_of(1), kRanks);
  const auto plan = Engine::plan(spec, options_of(kInside), kRanks);
  int64_t bytes = 0, kept = 0, inside = 0;
  std::vector<bool> seen(static_cast<size_t>(none->program().units));
  for (const Action& action : none->program().actions) {
    if (action.verb != Verb::gather || action.state != State::parameters) continue;
    const int64_t elems = none->state().unit(action.unit).layout().elems();
    const auto u = static_cast<size_t>(action.unit);
    if (!seen[u]) kept += elems / kInside * 4;
    inside += seen[u];
    bytes += (seen[u] ? elems / kInside * (kInside - 1) : elems / kRanks * (kRanks - 1)) * 4;
    seen[u] = true;
  }
  EXPECT_GT(inside, 10);
  const auto gathered = [](const TrafficTable& table) {
    return table[static_cast<size_t>(Collective::all_gather)];
  };
  const test::RankRun run = test::train_on_ranks(spec, options_of(kInside), kRanks, 1);
  const Traffic sent = gathered(run.traffic[static_cast<size_t>(Lane::gather)]);
  // Of units that stay whole, what the step has changed is gathered beside it.
  int64_t stepped = 0;
  for (const Action& action : none->program().actions)
    if (action.verb == Verb::gather && action.state == State::stepped)
      for (const int unit : units_of(action))
        stepped += none->state().unit(unit).layout().elems() / kRanks * (kRanks - 1) * 4;
  EXPECT_EQ(sent.bytes_sent, bytes + stepped);
  EXPECT_EQ(gathered(plan->traffic(Lane::gather)).bytes_sent, sent.bytes_sent);
  EXPECT_EQ(sent.calls, gathered(none->traffic(Lane::gather)).calls);
  const auto state = [&](const Engine& engine, const EngineOptions& options) {
    return state_bytes(unit_traits(engine.model(), options, kRanks), options, kRanks).parameters;
  };
  EXPECT_EQ(state(*plan, options_of(kInside)), state(*none, options_of(1)) + kept);
}

TEST(Nodes, AGatherInsideANodeThatKeepsNothingIsFound) {
  const EngineOptions options = options_of(2);
  const std::vector<UnitTraits> units = unit_traits(Model(shape()), options, 4);
  Program program = training_program(options, units, 4);
  verify(program, units, 4);
  for (Action& action : program.actions)
    if (action.verb == Verb::gather) action.inside = true;
  try {
    verify(program, units, 4);
    FAIL() << "nothing was found";
  } catch (const InternalError& error) {
    EXPECT_TRUE(contains(error.what(), "gathered inside a node that does not keep it"));
  }
}

TEST(Nodes, WhatCannotBeIsRefusedWithAllReasons) {
  EXPECT_EQ(obstacle_to_nodes(options_of(1), 4), "");
  EXPECT_EQ(obstacle_to_nodes(options_of(2), 4), "");
  EngineOptions options = options_of(4);
  options.zero.stage = 2;
  options.expert = 3;
  options.offload.parameters = Tier::host;
  options.compression.weights = {.type = WireFormat::Type::int8};
  for (const char* reason :
       {"zero_hpz_partition_size is 4", "whole on each rank at stage 2", "the 6 ranks that share",
        "some experts of mesh.expert 3 more often than others", "offload_param",
        "(compression.weights)"})
    EXPECT_TRUE(contains(obstacle_to_nodes(options, 6), reason)) << reason;
  EXPECT_ERROR(Engine::plan(shape(), options_of(4), 4), "it must divide their number, and be less");
}

}  // namespace
}  // namespace onefold
