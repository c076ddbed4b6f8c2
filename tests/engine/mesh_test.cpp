// Meshes of several axes: mixtures whose experts, inner widths, sequences and units are divided at
// the same time learn what one rank learns, within rounding; bits repeat, over ZeRO's stages too;
// and the plan is the run.
#include <algorithm>

#include "engine/lines.h"
#include "engine/ranks.h"
#include "engine/stages.h"
#include "error_text.h"

namespace onefold {
namespace {

// Awkward sizes: widths of experts that nothing divides, a dense block between two mixtures, fewer
// key heads than ranks.
ModelSpec mixture() {
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
  spec.experts.z_loss = 0.01f;
  return spec;
}

void add_shared(ModelSpec& spec) {
  spec.experts.shared_intermediate_size = 13;
  spec.experts.shared_gate = true;
}

struct Layout {
  int tensor = 1, context = 1, expert = 1, pipeline = 1, data = 1, stage = 0;
  ContextMethod method = ContextMethod::ulysses;
  int interleave = 1;

  int ranks() const { return tensor * context * expert * pipeline * data; }
};

EngineOptions options_of(const Layout& layout) {
  EngineOptions options{.tensor = layout.tensor,
                        .context = layout.context,
                        .context_method = layout.method,
                        .expert = layout.expert,
                        .threads = 1,
                        .micro_batch = 2,
                        .sequence = 12};
  options.pipeline.ranks = layout.pipeline;
  options.pipeline.interleave = layout.interleave;
  options.micros = 2;
  options.clipping = 0.5;
  options.zero.stage = layout.stage;
  options.zero.persistence_elems = 0;
  options.zero.reduce_bucket_elems = options.zero.gather_bucket_elems = 5000;
  return options;
}

// The same global batch on one rank, in the same micro-batches.
test::RankRun alone(const ModelSpec& spec, const Layout& layout, int steps) {
  EngineOptions options = options_of({});
  options.micros *= layout.data * layout.expert;
  return test::train_on_ranks(spec, options, 1, steps);
}

void expect_agrees(const test::RankRun& run, const test::RankRun& one) {
  EXPECT_LT(test::distance(run.weights, one.weights), 1e-5);
  for (size_t step = 0; step < run.losses.size(); ++step) {
    EXPECT_NEAR(run.losses[step], one.losses[step], 1e-5 * one.losses[step]) << step;
    EXPECT_NEAR(run.norms[step], one.norms[step], 1e-5 * one.norms[step]) << step;
  }
}

struct MeshCase {
  std::string name;
  Layout layout;
  void (*change)(ModelSpec&) = [](ModelSpec&) {};
};

class Meshes : public testing::TestWithParam<MeshCase> {};

TEST_P(Meshes, LearnWhatOneRankLearnsAsPlanned) {
  const MeshCase& c = GetParam();
  ModelSpec spec = mixture();
  c.change(spec);
  constexpr int kSteps = 20;
  const EngineOptions options = options_of(c.layout);
  const test::RankRun run = test::train_on_ranks(spec, options, c.layout.ranks(), kSteps);
  expect_agrees(run, alone(spec, c.layout, kSteps));
  EXPECT_GT(test::distance(run.weights, alone(spec, c.layout, 0).weights), 0.1);
  test::expect_planned(spec, options, c.layout.ranks(), run, test::this_processor());
}

constexpr ContextMethod kRing = ContextMethod::ring;

INSTANTIATE_TEST_SUITE_P(
    Experts, Meshes,
    testing::Values(
        // Whole experts beside the other axes.
        MeshCase{"Pipeline", {.pipeline = 2}},
        MeshCase{"Interleaved", {.pipeline = 2, .interleave = 2}},
        MeshCase{"Tensor", {.tensor = 2}},
        MeshCase{"TensorOfFour", {.tensor = 4, .data = 2, .stage = 3}, add_shared},
        MeshCase{"Context", {.context = 2, .stage = 3}},
        MeshCase{"Ring", {.context = 3, .data = 2, .stage = 2, .method = kRing}, add_shared},
        // Divided experts beside one other axis.
        MeshCase{"ExpertPipeline", {.expert = 2, .pipeline = 2}},
        MeshCase{"ExpertInterleaved",
                 {.expert = 2, .pipeline = 2, .data = 2, .stage = 3, .interleave = 2},
                 add_shared},
        MeshCase{"FourExpertsPipeline", {.expert = 4, .pipeline = 2, .stage = 1}},
        MeshCase{"ExpertTensor", {.tensor = 2, .expert = 2, .stage = 1}},
        MeshCase{"ExpertTensorOfFour", {.tensor = 4, .expert = 2, .stage = 2}, add_shared},
        MeshCase{"ExpertTensorData", {.tensor = 2, .expert = 2, .data = 2, .stage = 3}, add_shared},
        MeshCase{"ExpertContext", {.context = 2, .expert = 2, .stage = 2}, add_shared},
        MeshCase{"ExpertRing", {.context = 2, .expert = 4, .stage = 3, .method = kRing}},
        // Three axes and more.
        MeshCase{"TensorContextExpert", {.tensor = 2, .context = 2, .expert = 2, .stage = 2}},
        MeshCase{"TensorExpertPipeline",
                 {.tensor = 2, .expert = 2, .pipeline = 2, .stage = 1},
                 add_shared},
        MeshCase{"ContextExpertPipeline",
                 {.context = 2, .expert = 2, .pipeline = 2, .data = 2, .stage = 3}},
        MeshCase{"AllFive",
                 {.tensor = 2, .context = 2, .expert = 2, .pipeline = 2, .data = 2, .stage = 2},
                 add_shared}),
    [](const auto& info) { return info.param.name; });

// On one mesh: at every stage, with lanes and without, computed again or kept.
TEST(Mesh, BitsRepeatAtEveryStageAndInEveryLayout) {
  ModelSpec spec = mixture();
  add_shared(spec);
  spec.dropout = 0.1f;
  spec.experts.jitter = 0.05f;
  const Layout base{.tensor = 2, .context = 2, .expert = 2, .pipeline = 2};
  const test::RankRun first = test::train_on_ranks(spec, options_of(base), base.ranks(), 3);
  test::Combinations combinations;
  for (int stage = 0; stage <= 3; ++stage)
    for (const bool again : {false, true}) {
      if (!combinations.take()) continue;
      SCOPED_TRACE(fmt::format("stage {} {}", stage, again));
      EngineOptions options = options_of(base);
      options.zero.stage = stage;
      options.recompute = again;
      options.zero.overlap = !again;
      const test::RankRun run = test::train_on_ranks(spec, options, base.ranks(), 3);
      EXPECT_EQ(run.losses, first.losses);
      EXPECT_EQ(run.norms, first.norms);
      test::expect_same_bits(run.weights, first.weights);
      test::expect_planned(spec, options, base.ranks(), run, test::this_processor());
    }
}

// Pipelines have the bits of the same mesh without one.
TEST(Mesh, APipelineOfMixturesHasTheBitsOfNone) {
  const ModelSpec spec = mixture();
  for (const Layout& base :
       {Layout{}, Layout{.tensor = 2}, Layout{.context = 2}, Layout{.context = 2, .method = kRing},
        Layout{.expert = 2}, Layout{.tensor = 2, .context = 2, .expert = 2, .stage = 2}}) {
    const test::RankRun none = test::train_on_ranks(spec, options_of(base), base.ranks(), 3);
    for (const PipelineSchedule schedule : kPipelineSchedules) {
      Layout staged = base;
      staged.pipeline = 2;
      EngineOptions options = options_of(staged);
      options.pipeline.schedule = schedule;
      const test::RankRun run = test::train_on_ranks(spec, options, staged.ranks(), 3);
      EXPECT_EQ(run.losses, none.losses);
      test::expect_same_bits(run.weights, none.weights);
      test::expect_planned(spec, options, staged.ranks(), run, test::this_processor());
    }
  }
}

// Four all-to-alls of each mixture and micro-batch, of each share's own; two sums of the residual's
// size for each half of a layer, as in a dense model; and, once a step, the gradients of what
// several ranks have a part of: the router over shares, and over holders the norm too.
TEST(Mesh, VolumeIsThatOfTheFormula) {
  ModelSpec spec = mixture();
  spec.num_kv_heads = 4;
  for (const bool balance : {false, true}) {
    const Layout layout{.tensor = 2, .context = 2, .expert = 2};
    spec.experts.balance_loss = balance ? 0.02f : 0;
    const EngineOptions options = options_of(layout);
    const int64_t tokens = options.tokens(), hidden = spec.hidden_size, micros = options.micros,
                  mixtures = 2, experts = spec.experts.count;
    const auto bytes_of = [](const TrafficTable& table, Collective collective) {
      return table[static_cast<size_t>(collective)].bytes_sent;
    };
    std::array<TrafficTable, 3> sent;
    test::on_ranks(layout.ranks(), [&](int rank, std::shared_ptr<Communicator> communicator) {
      Engine engine(spec, options, std::move(communicator));
      test::train_step(engine);
      for (size_t i = 0; i < 3 && rank == 0; ++i) sent[i] = engine.exchanged(kExchangeAxes[i]);
    });
    const auto& [tensor, context, expert] = sent;
    const int64_t router = hidden * experts * 4;  // in bytes; halves of it are sent
    EXPECT_EQ(bytes_of(tensor, Collective::all_reduce),
              micros * (4 * spec.num_layers + 2) * tokens * hidden * 4 + mixtures * router);
    const int64_t q = spec.query_size() / 2, k = spec.kv_size() / 2;  // of a share
    const int64_t parts = 4 * tokens * (q + k) / 2 * 4 * micros * spec.num_layers;
    EXPECT_EQ(bytes_of(context, Collective::all_to_all),
              parts + (balance ? micros * mixtures * experts * 4 : 0));
    const int64_t block = tokens * 2;  // two choices of two experts
    EXPECT_EQ(bytes_of(expert, Collective::all_to_all),
              micros * mixtures * 4 * block * (hidden * 4 + 8));
    EXPECT_EQ(bytes_of(expert, Collective::all_reduce), mixtures * (router + hidden * 4));
    const auto plan = Engine::plan(spec, options, layout.ranks());
    for (size_t i = 0; i < 3; ++i)
      for (size_t c = 0; c < kCollectives; ++c)
        EXPECT_EQ(plan->exchanged(kExchangeAxes[i])[c].bytes_sent, sent[i][c].bytes_sent);
  }
}

// Adapters beside attention, with frozen experts that are divided.
TEST(Mesh, AdaptersLearnWhatOneRankLearns) {
  ModelSpec spec = mixture();
  spec.experts.dense_blocks.clear();  // as Mixtral, whose names adapters have
  spec.lora = {.rank = 3, .alpha = 5, .dropout = 0.1f, .targets = {"all-linear"}};
  const auto adapters = [](const test::Weights& all) {
    test::Weights some;
    for (const auto& [name, values] : all)
      if (name.ends_with(".lora_B")) some[name] = values;
    return some;
  };
  for (const Layout& layout :
       {Layout{.expert = 2, .data = 2, .stage = 3}, Layout{.expert = 2, .pipeline = 2, .stage = 2},
        Layout{.context = 2, .expert = 2, .pipeline = 2, .stage = 1}}) {
    const EngineOptions options = options_of(layout);
    const test::RankRun run = test::train_on_ranks(spec, options, layout.ranks(), 20);
    const test::RankRun one = alone(spec, layout, 20);
    ASSERT_EQ(adapters(run.weights).size(), 4u * 3);
    EXPECT_LT(test::distance(adapters(run.weights), adapters(one.weights)), 1e-5);
    EXPECT_NEAR(run.norms.back(), one.norms.back(), 1e-5 * one.norms.back());
    test::expect_planned(spec, options, layout.ranks(), run, test::this_processor());
  }
}

// Losses and load of routers are those of all tokens, counted once, however they are divided.
TEST(Mesh, LoadIsThatOfOneRank) {
  ModelSpec spec = mixture();
  add_shared(spec);
  const auto load_on = [&](const Layout& layout, int micros) {
    StepExperts load;
    test::on_ranks(layout.ranks(), [&](int rank, std::shared_ptr<Communicator> communicator) {
      EngineOptions options = options_of(layout);
      options.micros = micros;
      Engine engine(spec, options, std::move(communicator));
      const StepExperts one = test::train_step(engine).experts;
      if (rank == 0) load = one;
    });
    return load;
  };
  const StepExperts one = load_on({}, 4);
  for (const Layout& layout :
       {Layout{.tensor = 2, .pipeline = 2, .data = 2}, Layout{.context = 2, .expert = 2},
        Layout{.tensor = 2, .context = 2, .expert = 2, .pipeline = 2}}) {
    const StepExperts load = load_on(layout, 2);
    ASSERT_EQ(load.layers.size(), one.layers.size());
    for (size_t layer = 0; layer < one.layers.size(); ++layer) {
      EXPECT_EQ(load.layers[layer].shares, one.layers[layer].shares);
      EXPECT_EQ(load.layers[layer].dropped, 0);
    }
    EXPECT_NEAR(load.balance_loss, one.balance_loss, 1e-7 * one.balance_loss);
    EXPECT_NEAR(load.z_loss, one.z_loss, 1e-5 * one.z_loss);
  }
}

}  // namespace
}  // namespace onefold
