// Context parallelism: ranks that have parts of the same sequences learn what one rank learns that
// has all of them, within rounding; bits repeat, over ZeRO's stages too; and the plan is the run.
#include <algorithm>
#include <mutex>

#include "engine/lines.h"
#include "engine/ranks.h"
#include "error_text.h"

namespace onefold {
namespace {

// Awkward sizes: a vocabulary that nothing divides, heads that are wider together than the model.
ModelSpec long_model(const std::string& preset, int64_t heads = 6, int64_t kv_heads = 0) {
  ModelSpec spec = spec_from_preset(preset, "test");
  spec.vocab_size = 101;
  spec.num_layers = 2;
  spec.num_heads = heads;
  spec.num_kv_heads = kv_heads > 0 ? kv_heads : heads;
  spec.head_dim = preset == "qwen3-tiny" ? 10 : 8;
  spec.hidden_size = 23;
  spec.intermediate_size = 47;
  return spec;
}

EngineOptions parted(int context, int stage, int64_t micro_batch = 2) {
  EngineOptions options{
      .context = context, .threads = 1, .micro_batch = micro_batch, .sequence = 12};
  options.micros = 2;
  options.clipping = 0.5;
  options.zero.stage = stage;
  options.zero.persistence_elems = 0;
  return options;
}

// Keys and values go around, in two runs of tokens for each of up to four ranks.
EngineOptions ringed(int context, int stage, int64_t micro_batch = 2) {
  EngineOptions options = parted(context, stage, micro_batch);
  options.context_method = ContextMethod::ring;
  options.sequence = 24;
  return options;
}

// The same global batch on one rank.
test::RankRun undivided(const ModelSpec& spec, EngineOptions options, int data, int steps) {
  options.context = options.tensor = 1;
  options.zero.stage = 0;
  options.micros *= data;
  return test::train_on_ranks(spec, options, 1, steps);
}

void expect_near(const test::RankRun& run, const test::RankRun& one, double most = 1e-5) {
  EXPECT_LT(test::distance(run.weights, one.weights), most);
  ASSERT_EQ(run.losses.size(), one.losses.size());
  for (size_t step = 0; step < run.losses.size(); ++step) {
    EXPECT_NEAR(run.losses[step], one.losses[step], most * one.losses[step]) << step;
    EXPECT_NEAR(run.norms[step], one.norms[step], most * one.norms[step]) << step;
  }
}

void expect_same(const test::RankRun& run, const test::RankRun& first) {
  EXPECT_EQ(run.losses, first.losses);
  EXPECT_EQ(run.norms, first.norms);
  test::expect_same_bits(run.weights, first.weights);
}

struct ContextCase {
  std::string preset;
  int64_t heads, kv_heads;
  int context, data, stage;
  int64_t micro_batch = 2;
};

std::string context_name(const testing::TestParamInfo<ContextCase>& info) {
  const ContextCase& c = info.param;
  std::string name = fmt::format("{}_{}heads_{}kv_context{}_data{}_stage{}_batch{}", c.preset,
                                 c.heads, c.kv_heads, c.context, c.data, c.stage, c.micro_batch);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class Contexts : public testing::TestWithParam<ContextCase> {};

TEST_P(Contexts, LearnWhatOneRankLearnsAsPlanned) {
  const ContextCase& c = GetParam();
  ModelSpec spec = long_model(c.preset, c.heads, c.kv_heads);
  spec.dropout = c.preset == "gpt2-tiny" ? 0.1f : 0;  // its masks are those of whole sequences
  constexpr int kSteps = 20;
  const int ranks = c.context * c.data;
  const EngineOptions options = parted(c.context, c.stage, c.micro_batch);
  const test::RankRun run = test::train_on_ranks(spec, options, ranks, kSteps);
  expect_near(run, undivided(spec, options, c.data, kSteps));
  EXPECT_GT(test::distance(run.weights, undivided(spec, options, c.data, 0).weights), 0.1);
  test::expect_planned(spec, options, ranks, run, test::this_processor());
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, Contexts,
    testing::Values(
        ContextCase{"gpt2-tiny", 6, 6, 2, 1, 0}, ContextCase{"gpt2-tiny", 6, 6, 3, 2, 2},
        ContextCase{"gpt2-tiny", 4, 4, 4, 1, 3, 1}, ContextCase{"llama-tiny", 6, 2, 2, 2, 1},
        ContextCase{"llama-tiny", 6, 3, 3, 1, 0, 1}, ContextCase{"llama-tiny", 4, 2, 4, 2, 3},
        ContextCase{"llama-tiny", 6, 1, 3, 1, 2, 1}, ContextCase{"qwen3-tiny", 6, 2, 2, 1, 1},
        ContextCase{"qwen3-tiny", 4, 2, 4, 1, 0, 1}, ContextCase{"olmo2-tiny", 6, 6, 3, 1, 0},
        ContextCase{"gemma-tiny", 4, 2, 4, 1, 0}, ContextCase{"neox-tiny", 6, 6, 2, 1, 0, 1},
        ContextCase{"gptj-tiny", 6, 6, 3, 1, 0}),
    context_name);

// On one mesh: every stage, order, recomputation and way of travel, and from run to run.
TEST(Context, BitsRepeatAtEveryStageAndInEveryLayout) {
  ModelSpec spec = long_model("qwen3-tiny", 6, 1);
  spec.dropout = 0.1f;
  const test::RankRun first = test::train_on_ranks(spec, parted(2, 0), 4, 3);
  int compared = 0;
  for (int stage = 0; stage <= 3; ++stage)
    for (const bool unit_first : {false, true})
      for (const bool again : {false, true}) {
        EngineOptions options = parted(2, stage);
        options.order = unit_first ? Order::unit_first : Order::micro_first;
        options.recompute = again;
        options.zero.overlap = !again;
        const test::RankRun run = test::train_on_ranks(spec, options, 4, 3);
        expect_same(run, first);
        test::expect_planned(spec, options, 4, run, test::this_processor());
        ++compared;
      }
  EXPECT_EQ(compared, 16);
}

TEST(Context, BitsOfOtherBlocksRepeatWithRecomputation) {
  for (const std::string preset : {"gemma-tiny", "gptj-tiny"}) {
    const ModelSpec spec = long_model(preset, 6, 6);
    const test::RankRun first = test::train_on_ranks(spec, parted(3, 0, 1), 3, 3);
    EngineOptions options = parted(3, 3, 1);
    options.recompute = true;
    const test::RankRun run = test::train_on_ranks(spec, options, 3, 3);
    expect_same(run, first);
    test::expect_planned(spec, options, 3, run, test::this_processor());
  }
}

// A document may begin in one part and end in another.
TEST(Context, DocumentsAreThoseOfWholeSequences) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"}) {
    const ModelSpec spec = long_model(preset, 6, 3);
    EngineOptions options = parted(3, 0);
    options.documents = true;
    const test::RankRun run = test::train_on_ranks(spec, options, 3, 10);
    expect_near(run, undivided(spec, options, 1, 10));
    test::expect_planned(spec, options, 3, run, test::this_processor());
    options.documents = false;
    EXPECT_NE(undivided(spec, options, 1, 10).losses.back(), run.losses.back());
  }
}

// What follows from a sequence's length or from distances in it follows from the whole one: a part
// is shorter than the original context here, and the whole is not.
TEST(Context, LengthsAndDistancesAreThoseOfWholeSequences) {
  const ModelSpec slopes = long_model("bloom-tiny", 6, 6);
  expect_near(test::train_on_ranks(slopes, parted(3, 1), 3, 5),
              undivided(slopes, parted(3, 1), 1, 5));
  EXPECT_TRUE(contains(obstacle_to_context(slopes, ringed(3, 1)), "(positions alibi) yet"));
  ModelSpec turned = long_model("llama-tiny", 6, 3);
  turned.rope_scaling.type = RopeScaling::Type::longrope;
  turned.rope_scaling.factor = 4;
  turned.rope_scaling.short_factor.assign(4, 1.0);
  turned.rope_scaling.long_factor = {1.0, 1.5, 3.0, 7.0};
  for (const EngineOptions& options : {parted(3, 1), ringed(3, 1)}) {
    turned.rope_scaling.original_max_sequence_length = options.sequence - 1;
    expect_near(test::train_on_ranks(turned, options, 3, 5), undivided(turned, options, 1, 5));
  }
}

TEST(Context, OffloadKeepsTheBits) {
  const ModelSpec spec = long_model("llama-tiny", 6, 2);
  EngineOptions options = parted(2, 3);
  const test::RankRun whole = test::train_on_ranks(spec, options, 4, 3);
  options.offload.optimizer = Tier::host;
  options.offload.parameters = Tier::host;
  options.offload.activations = Tier::host;
  const test::RankRun run = test::train_on_ranks(spec, options, 4, 3);
  expect_same(run, whole);
  test::expect_planned(spec, options, 4, run, test::this_processor());
}

TEST(Context, SixteenBitsAgreeWithOneRankAndRepeat) {
  for (const DType type : {DType::bf16, DType::f16}) {
    const ModelSpec spec = long_model("llama-tiny", 4, 2);
    EngineOptions options = parted(4, 1);
    options.precision.compute = options.precision.gradients = type;
    options.precision.master = true;
    const test::RankRun run = test::train_on_ranks(spec, options, 4, 10);
    const test::RankRun one = undivided(spec, options, 1, 10);
    EXPECT_LT(test::distance(run.weights, one.weights), 0.02);
    EXPECT_NEAR(run.losses.back(), one.losses.back(), 0.02);
    test::expect_planned(spec, options, 4, run, test::this_processor());
    options.zero.overlap = false;
    expect_same(test::train_on_ranks(spec, options, 4, 10), run);
  }
}

// Parameters are whole, so optimizers that step whole tensors and clipping of single ones go with
// it.
TEST(Context, WhatKnowsWholeTensorsAgreesWithOneRank) {
  for (const auto type :
       {OptimizerSpec::Type::lamb, OptimizerSpec::Type::muon, OptimizerSpec::Type::adafactor}) {
    const ModelSpec spec = long_model("llama-tiny", 6, 2);
    EngineOptions options = parted(2, 2);
    options.optimizer.type = type;
    options.clip_rule.of = ClipRule::Of::tensor;
    const test::RankRun run = test::train_on_ranks(spec, options, 4, 3);
    expect_near(run, undivided(spec, options, 2, 3), 1e-4);
    test::expect_planned(spec, options, 4, run, test::this_processor());
  }
}

TEST(Context, AdaptersAgreeWithOneRank) {
  ModelSpec spec = long_model("llama-tiny", 6, 2);
  spec.lora = {.rank = 3, .dropout = 0.1f, .targets = {"q_proj", "v_proj", "o_proj", "up_proj"}};
  const EngineOptions options = parted(2, 3);
  const test::RankRun run = test::train_on_ranks(spec, options, 4, 5);
  expect_near(run, undivided(spec, options, 2, 5));
  EXPECT_GT(run.norms.back(), 0);
  test::expect_planned(spec, options, 4, run, test::this_processor());
}

TEST(Context, GoesWithTheTensorAxis) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"}) {
    ModelSpec spec = long_model(preset, 4, preset == "gpt2-tiny" ? 4 : 2);
    spec.hidden_size = 24;
    spec.dropout = preset == "gpt2-tiny" ? 0.1f : 0;
    EngineOptions options = parted(2, 2);
    options.tensor = 2;
    const test::RankRun run = test::train_on_ranks(spec, options, 8, 10);
    expect_near(run, undivided(spec, options, 2, 10));
    test::expect_planned(spec, options, 8, run, test::this_processor());
  }
}

TEST(Context, APipelineHasTheBitsOfTheSameMeshWithoutOne) {
  ModelSpec spec = long_model("gpt2-tiny", 6, 6);
  spec.dropout = 0.1f;
  for (const auto schedule : {PipelineSchedule::one_f_one_b, PipelineSchedule::gpipe}) {
    EngineOptions options = parted(3, 0, 1);
    const test::RankRun flat = test::train_on_ranks(spec, options, 3, 3);
    options.pipeline.ranks = 2;
    options.pipeline.schedule = schedule;
    const test::RankRun run = test::train_on_ranks(spec, options, 6, 3);
    expect_same(run, flat);
    test::expect_planned(spec, options, 6, run, test::this_processor());
  }
}

// Of each token, on every rank, with the same numbers for any stage of a pipeline.
TEST(Context, EvaluatesTheLossesOfWholeSequences) {
  const ModelSpec spec = long_model("llama-tiny", 6, 2);
  EngineOptions options = parted(2, 3);
  const test::OwnedBatch batch = test::random_rows(5, options, spec.vocab_size);
  options.context = 1;
  Engine one(spec, options);
  const std::vector<float> expected = one.token_losses(batch.view());
  const std::pair whole = one.evaluate(batch.view());  // the sum, and of how many
  options.context = 2;
  for (const int stages : {1, 2}) {
    options.pipeline.ranks = stages;
    std::mutex mutex;
    test::on_ranks(2 * stages, [&](int, std::shared_ptr<Communicator> communicator) {
      Engine engine(spec, options, std::move(communicator));
      const std::vector<float> losses = engine.token_losses(batch.view());
      const auto [all, valid] = engine.evaluate(batch.view());
      const std::lock_guard lock(mutex);
      ASSERT_EQ(losses.size(), expected.size());
      for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-5) << i;
      EXPECT_NEAR(all, whole.first, 1e-5 * whole.first);
      EXPECT_EQ(valid, whole.second);
    });
  }
}

// For each layer and micro-batch four exchanges: queries, keys and values, the result, and the
// gradients of both. A rank keeps one of C blocks. Key heads that are fewer than ranks are copied.
TEST(Context, VolumeIsThatOfTheFormula) {
  for (const bool again : {false, true})
    for (const int context : {2, 4})
      for (const int64_t kv_heads : {1, 2, 4}) {
        const ModelSpec spec = long_model("llama-tiny", 4, kv_heads);
        EngineOptions options = parted(context, 0);
        options.recompute = again;
        const auto run = test::train_on_ranks(spec, options, context, 1);
        const int64_t tokens = options.micro_batch * options.sequence / context,
                      dim = spec.head_dim;
        const int64_t copies = std::max<int64_t>(1, context / kv_heads);
        const int64_t queries = tokens * spec.num_heads * dim,
                      keys = tokens * kv_heads * copies * dim;
        // Forward, and once more if it is computed again; and backward.
        const int64_t elems = (again ? 3 : 2) * (2 * queries + 2 * keys);
        const Traffic sent = run.traffic[static_cast<size_t>(Lane::exchange)]
                                        [static_cast<size_t>(Collective::all_to_all)];
        EXPECT_EQ(sent.bytes_sent,
                  options.micros * spec.num_layers * elems * (context - 1) / context * 4);
        EXPECT_EQ(sent.calls, options.micros * spec.num_layers * (again ? 6 : 4));
        const auto plan = Engine::plan(spec, options, context);
        EXPECT_EQ(
            plan->traffic(Lane::exchange)[static_cast<size_t>(Collective::all_to_all)].bytes_sent,
            sent.bytes_sent);
      }
}

TEST(Context, ActivationsAreDivided) {
  const ModelSpec spec = long_model("llama-tiny", 8, 4);
  const auto activations = [&](int context) {
    EngineOptions options = parted(context, 0, 1);
    options.sequence = 256;
    return static_cast<double>(
        Engine::plan(spec, options, context)->ledger().peak_bytes(Kind::activations));
  };
  // Attention's result is kept twice: of the tokens here, and of the heads.
  const double twice = 1 + 1.0 * static_cast<double>(spec.query_size()) /
                               static_cast<double>(2 * spec.hidden_size + spec.qkv_size() +
                                                   spec.query_size() + 2 * 47);
  for (const int context : {2, 4})
    EXPECT_LT(activations(context), activations(1) / context * twice * 1.02) << context;
}

class Rings : public testing::TestWithParam<ContextCase> {};

TEST_P(Rings, LearnWhatOneRankLearnsAsPlanned) {
  const ContextCase& c = GetParam();
  ModelSpec spec = long_model(c.preset, c.heads, c.kv_heads);
  spec.dropout = 0;
  constexpr int kSteps = 20;
  const int ranks = c.context * c.data;
  const EngineOptions options = ringed(c.context, c.stage, c.micro_batch);
  const test::RankRun run = test::train_on_ranks(spec, options, ranks, kSteps);
  expect_near(run, undivided(spec, options, c.data, kSteps));
  EXPECT_GT(test::distance(run.weights, undivided(spec, options, c.data, 0).weights), 0.1);
  test::expect_planned(spec, options, ranks, run, test::this_processor());
}

// Heads that nothing divides too.
INSTANTIATE_TEST_SUITE_P(Meshes, Rings,
                         testing::Values(ContextCase{"gpt2-tiny", 5, 5, 2, 1, 0, 1},
                                         ContextCase{"gpt2-tiny", 5, 5, 3, 2, 2},
                                         ContextCase{"llama-tiny", 6, 2, 4, 1, 3},
                                         ContextCase{"llama-tiny", 6, 2, 3, 1, 1, 1},
                                         ContextCase{"qwen3-tiny", 5, 1, 4, 2, 0, 1},
                                         ContextCase{"olmo2-tiny", 5, 5, 2, 1, 0},
                                         ContextCase{"gptj-tiny", 5, 5, 3, 1, 0}),
                         context_name);

TEST(Ring, BitsRepeatAtEveryStageAndInEveryLayout) {
  const ModelSpec spec = long_model("qwen3-tiny", 5, 1);
  const test::RankRun first = test::train_on_ranks(spec, ringed(2, 0), 4, 3);
  for (int stage = 0; stage <= 3; ++stage)
    for (const bool again : {false, true}) {
      EngineOptions options = ringed(2, stage);
      options.recompute = again;
      options.order = again ? Order::unit_first : Order::micro_first;
      options.zero.overlap = !again;
      options.offload.activations = stage == 2 ? Tier::host : Tier::device;
      const test::RankRun run = test::train_on_ranks(spec, options, 4, 3);
      expect_same(run, first);
      test::expect_planned(spec, options, 4, run, test::this_processor());
    }
}

TEST(Ring, SixteenBitsAgreeWithOneRankAndRepeat) {
  for (const DType type : {DType::bf16, DType::f16}) {
    const ModelSpec spec = long_model("llama-tiny", 6, 2);
    EngineOptions options = ringed(3, 1);
    options.precision.compute = options.precision.gradients = type;
    options.precision.master = true;
    const test::RankRun run = test::train_on_ranks(spec, options, 3, 10);
    const test::RankRun one = undivided(spec, options, 1, 10);
    EXPECT_LT(test::distance(run.weights, one.weights), 0.02);
    EXPECT_NEAR(run.losses.back(), one.losses.back(), 0.02);
    test::expect_planned(spec, options, 3, run, test::this_processor());
    expect_same(test::train_on_ranks(spec, options, 3, 10), run);
  }
}

TEST(Ring, GoesWithTheTensorAxisAndAPipeline) {
  ModelSpec spec = long_model("llama-tiny", 6, 2);
  spec.hidden_size = 24;
  EngineOptions options = ringed(3, 1, 1);
  options.tensor = 2;
  const test::RankRun run = test::train_on_ranks(spec, options, 6, 5);
  expect_near(run, undivided(spec, options, 1, 5));
  test::expect_planned(spec, options, 6, run, test::this_processor());
  options.tensor = 1;
  const test::RankRun flat = test::train_on_ranks(spec, options, 3, 3);
  options.pipeline.ranks = 2;
  const test::RankRun staged = test::train_on_ranks(spec, options, 6, 3);
  expect_same(staged, flat);
  test::expect_planned(spec, options, 6, staged, test::this_processor());
}

TEST(Ring, EvaluatesTheLossesOfWholeSequences) {
  const ModelSpec spec = long_model("llama-tiny", 5, 1);
  EngineOptions options = ringed(3, 3);
  const test::OwnedBatch batch = test::random_rows(5, options, spec.vocab_size);
  options.context = 1;
  Engine one(spec, options);
  const std::vector<float> expected = one.token_losses(batch.view());
  options.context = 3;
  std::mutex mutex;
  test::on_ranks(3, [&](int, std::shared_ptr<Communicator> communicator) {
    Engine engine(spec, options, std::move(communicator));
    const std::vector<float> losses = engine.token_losses(batch.view());
    const std::lock_guard lock(mutex);
    ASSERT_EQ(losses.size(), expected.size());
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-5) << i;
  });
}

// For each layer and micro-batch, keys and values C - 1 times in forward and as often in backward,
// and their gradients C times.
TEST(Ring, VolumeIsThatOfTheFormula) {
  for (const bool again : {false, true})
    for (const int context : {2, 3}) {
      const ModelSpec spec = long_model("llama-tiny", 4, 2);
      EngineOptions options = ringed(context, 0);
      options.recompute = again;
      const auto run = test::train_on_ranks(spec, options, context, 1);
      const int64_t tokens = options.micro_batch * options.sequence / context;
      const int64_t turns = (again ? 3 : 2) * (context - 1) + context;
      const Traffic sent =
          run.traffic[static_cast<size_t>(Lane::exchange)][static_cast<size_t>(Collective::send)];
      EXPECT_EQ(sent.bytes_sent,
                options.micros * spec.num_layers * turns * tokens * 2 * spec.kv_size() * 4);
      const auto plan = Engine::plan(spec, options, context);
      EXPECT_EQ(plan->traffic(Lane::exchange)[static_cast<size_t>(Collective::send)].bytes_sent,
                sent.bytes_sent);
    }
}

TEST(Ring, WhatItCannotDoIsRefusedWithAllReasons) {
  ModelSpec spec = long_model("llama-tiny", 5, 1);
  EXPECT_EQ(obstacle_to_context(spec, ringed(4, 0)), "");
  EngineOptions options = ringed(4, 0);
  options.sequence = 28;
  options.documents = true;
  spec.dropout = 0.1f;
  spec.sliding_window = 8;
  for (const char* reason :
       {"28 tokens (data.sequence_length) cannot be divided by 8, two runs for each rank",
        "does not keep documents apart", "does not look through windows",
        "does not drop probabilities"})
    EXPECT_TRUE(contains(obstacle_to_context(spec, options), reason)) << reason;
}

TEST(Context, WhatCannotBeDividedIsRefusedWithAllReasons) {
  const auto text = [](const ModelSpec& spec, const EngineOptions& options) {
    return obstacle_to_context(spec, options);
  };
  const ModelSpec spec = long_model("llama-tiny", 6, 2);
  EXPECT_EQ(text(spec, parted(2, 0)), "");
  EngineOptions options = parted(4, 0);
  options.sequence = 13;
  EXPECT_TRUE(contains(text(spec, options), "mesh.context is 4, and sequences cannot be divided"));
  EXPECT_TRUE(contains(text(spec, options), "6 attention heads cannot be divided by 4"));
  EXPECT_TRUE(contains(text(spec, options), "13 tokens (data.sequence_length) cannot be divided"));
  EXPECT_TRUE(contains(text(long_model("llama-tiny", 6, 2), parted(3, 0)),
                       "2 key and value heads can neither be divided by 3"));
  options = parted(3, 0);
  options.tensor = 2;
  ModelSpec even = long_model("llama-tiny", 4, 2);
  even.hidden_size = 24;
  EXPECT_TRUE(
      contains(text(even, options),
               "2 attention heads cannot be divided by 3 (of each of mesh.tensor 2 ranks)"));
  options = parted(2, 0);
  options.local.steps = 4;
  ModelSpec experts = spec;
  experts.experts.count = 4;
  experts.experts.capacity_factor = 1;
  for (const char* reason : {"delay.local_steps does not go", "(capacity_factor)"})
    EXPECT_TRUE(contains(text(experts, options), reason)) << reason;
  EXPECT_ERROR(test::train_on_ranks(spec, parted(4, 0), 4, 1), "mesh.context is 4");
}

}  // namespace
}  // namespace onefold
