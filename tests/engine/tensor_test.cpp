// Tensor parallelism: units that are divided among neighbouring ranks learn what one rank learns,
// within rounding; bits repeat, over ZeRO's stages too; and the plan is the run.
#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <set>

#include "engine/lines.h"
#include "engine/ranks.h"
#include "error_text.h"

namespace onefold {
namespace {

// Awkward sizes: a vocabulary that nothing divides, six heads over two key heads.
ModelSpec shape(const std::string& preset, int64_t heads = 6, int64_t kv_heads = 0) {
  ModelSpec spec = spec_from_preset(preset, "test");
  spec.vocab_size = 101;
  spec.num_layers = 2;
  spec.num_heads = heads;
  spec.num_kv_heads = kv_heads > 0 ? kv_heads : heads;
  spec.head_dim = preset == "qwen3-tiny" ? 10 : 8;
  spec.hidden_size = 24;
  spec.intermediate_size = 47;
  return spec;
}

EngineOptions options_of(int tensor, int stage) {
  EngineOptions options{.tensor = tensor, .threads = 1, .micro_batch = 2, .sequence = 13};
  options.micros = 2;
  options.clipping = 0.5;
  options.zero.stage = stage;
  options.zero.persistence_elems = 0;
  return options;
}

// The same global batch on one rank.
test::RankRun alone(const ModelSpec& spec, EngineOptions options, int data, int steps) {
  options.tensor = 1;
  options.zero.stage = 0;
  options.micros *= data;
  return test::train_on_ranks(spec, options, 1, steps);
}

using test::distance;

struct TensorCase {
  std::string preset;
  int64_t heads, kv_heads;
  int tensor, data;
};

std::string name_of(const testing::TestParamInfo<TensorCase>& info) {
  const TensorCase& c = info.param;
  std::string name = fmt::format("{}_{}heads_{}kv_tensor{}_data{}", c.preset, c.heads, c.kv_heads,
                                 c.tensor, c.data);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class Tensors : public testing::TestWithParam<TensorCase> {};

TEST_P(Tensors, LearnWhatOneRankLearnsAsPlanned) {
  const TensorCase& c = GetParam();
  ModelSpec spec = shape(c.preset, c.heads, c.kv_heads);
  spec.dropout = c.preset == "gpt2-tiny" ? 0.1f : 0;  // its masks are those of the whole model
  constexpr int kSteps = 20;
  const int ranks = c.tensor * c.data;
  const EngineOptions options = options_of(c.tensor, c.data > 1 ? 2 : 0);
  const test::RankRun run = test::train_on_ranks(spec, options, ranks, kSteps);
  const test::RankRun one = alone(spec, options, c.data, kSteps);
  EXPECT_LT(distance(run.weights, one.weights), 1e-5);
  for (size_t step = 0; step < run.losses.size(); ++step) {
    EXPECT_NEAR(run.losses[step], one.losses[step], 1e-5 * one.losses[step]) << step;
    EXPECT_NEAR(run.norms[step], one.norms[step], 1e-5 * one.norms[step]) << step;
  }
  EXPECT_GT(distance(run.weights, alone(spec, options, c.data, 0).weights), 0.1);
  test::expect_planned(spec, options, ranks, run, test::this_processor());
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, Tensors,
    testing::Values(TensorCase{"gpt2-tiny", 6, 6, 2, 1}, TensorCase{"gpt2-tiny", 6, 6, 3, 2},
                    TensorCase{"gpt2-tiny", 6, 6, 6, 1}, TensorCase{"gpt2-tiny", 4, 4, 4, 2},
                    TensorCase{"llama-tiny", 6, 2, 2, 1}, TensorCase{"llama-tiny", 6, 2, 2, 2},
                    TensorCase{"llama-tiny", 6, 2, 6, 1}, TensorCase{"llama-tiny", 4, 2, 4, 1},
                    TensorCase{"llama-tiny", 4, 1, 2, 3}, TensorCase{"llama-tiny", 8, 2, 8, 1},
                    TensorCase{"qwen3-tiny", 6, 2, 2, 1}, TensorCase{"qwen3-tiny", 6, 2, 6, 1},
                    TensorCase{"qwen3-tiny", 4, 2, 4, 2}, TensorCase{"gemma-tiny", 6, 2, 2, 1},
                    TensorCase{"gemma-tiny", 4, 2, 4, 2}, TensorCase{"neox-tiny", 6, 6, 2, 2},
                    TensorCase{"gptj-tiny", 6, 6, 3, 1}, TensorCase{"gptj-tiny", 6, 2, 6, 1},
                    TensorCase{"bloom-tiny", 6, 6, 3, 2}),
    name_of);

// AdamW divides a gradient by its own size, down to eps: one that is next to nothing, and so mostly
// rounding, makes a step as large as any other. With a larger eps nothing but rounding is left, of
// some 2e-8 of a weight in each of 20 steps.
TEST(Tensor, BesideDataDiffersByRoundingAlone) {
  const ModelSpec spec = shape("qwen3-tiny", 4, 4);
  for (const uint64_t seed : {0, 1, 2})
    for (const int tensor : {2, 4}) {
      EngineOptions options = options_of(tensor, 2);
      options.seed = seed;
      options.optimizer.eps = 1e-4;
      const test::RankRun run = test::train_on_ranks(spec, options, 2 * tensor, 20);
      EXPECT_LT(distance(run.weights, alone(spec, options, 2, 20).weights), 20 * 2e-8) << seed;
    }
}

TEST(Tensor, StartsFromTheWeightsOfTheWholeModel) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"}) {
    const ModelSpec spec = shape(preset, 6, preset == "llama-tiny" ? 2 : 6);
    const test::Weights one = test::train_on_ranks(spec, options_of(1, 0), 1, 0).weights;
    for (const int tensor : {2, 6})
      test::expect_same_bits(test::train_on_ranks(spec, options_of(tensor, 0), tensor, 0).weights,
                             one);
  }
}

// Of norms after branches, windows, and branches beside each other.
TEST(Tensor, BitsOfOtherBlocksRepeatWithRecomputation) {
  for (const std::string preset : {"gemma-tiny", "neox-tiny", "gptj-tiny"}) {
    const ModelSpec spec = shape(preset, 6, 6);
    const test::RankRun first = test::train_on_ranks(spec, options_of(2, 0), 4, 3);
    for (const int stage : {0, 3})
      for (const bool again : {false, true}) {
        SCOPED_TRACE(fmt::format("{} stage {} {}", preset, stage, again));
        EngineOptions options = options_of(2, stage);
        options.recompute = again;
        const test::RankRun run = test::train_on_ranks(spec, options, 4, 3);
        EXPECT_EQ(run.losses, first.losses);
        test::expect_same_bits(run.weights, first.weights);
        test::expect_planned(spec, options, 4, run, test::this_processor());
      }
  }
}

// On one mesh: every stage, order, recomputation and way of travel, and from run to run.
TEST(Tensor, BitsRepeatAtEveryStageAndInEveryLayout) {
  const ModelSpec spec = shape("llama-tiny", 6, 2);
  const test::RankRun first = test::train_on_ranks(spec, options_of(2, 0), 4, 5);
  int compared = 0;
  for (int stage = 0; stage <= 3; ++stage)
    for (const bool unit_first : {false, true})
      for (const bool again : {false, true}) {
        EngineOptions options = options_of(2, stage);
        options.order = unit_first ? Order::unit_first : Order::micro_first;
        options.recompute = again;
        options.zero.overlap = !again;
        const test::RankRun run = test::train_on_ranks(spec, options, 4, 5);
        EXPECT_EQ(run.losses, first.losses);
        EXPECT_EQ(run.norms, first.norms);
        test::expect_same_bits(run.weights, first.weights);
        test::expect_planned(spec, options, 4, run, test::this_processor());
        ++compared;
      }
  EXPECT_EQ(compared, 16);
}

TEST(Tensor, OffloadKeepsTheBits) {
  const ModelSpec spec = shape("qwen3-tiny", 6, 2);
  for (const int data : {1, 2}) {
    EngineOptions options = options_of(6, data == 1 ? 0 : 3);
    const test::RankRun whole = test::train_on_ranks(spec, options, 6 * data, 3);
    options.offload.optimizer = Tier::host;
    options.offload.parameters = Tier::host;
    options.offload.activations = Tier::host;
    const test::RankRun run = test::train_on_ranks(spec, options, 6 * data, 3);
    EXPECT_EQ(run.losses, whole.losses);
    test::expect_same_bits(run.weights, whole.weights);
    test::expect_planned(spec, options, 6 * data, run, test::this_processor());
  }
}

// The host steps, and what comes back from it has rows that no step writes.
TEST(Tensor, SteppingOnTheHostKeepsTheBits) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"}) {
    const ModelSpec spec = shape(preset, 6, 6);
    for (const int stage : {0, 1, 3}) {
      EngineOptions options = options_of(2, stage);
      options.precision.compute = DType::bf16;
      const test::RankRun whole = test::train_on_ranks(spec, options, 4, 3);
      options.offload.optimizer = Tier::host;
      const test::RankRun run = test::train_on_ranks(spec, options, 4, 3);
      EXPECT_EQ(run.losses, whole.losses) << stage;
      test::expect_same_bits(run.weights, whole.weights);
      test::expect_planned(spec, options, 4, run, test::this_processor());
    }
  }
}

TEST(Tensor, SixteenBitsAgreeWithOneRankAndRepeat) {
  for (const bool master : {true, false}) {
    const ModelSpec spec = shape("llama-tiny", 6, 2);
    EngineOptions options = options_of(6, 0);
    options.precision.compute = options.precision.gradients = DType::bf16;
    options.precision.master = master;
    const test::RankRun run = test::train_on_ranks(spec, options, 6, 10);
    const test::RankRun one = alone(spec, options, 1, 10);
    EXPECT_LT(distance(run.weights, one.weights), 0.02);
    EXPECT_NEAR(run.losses.back(), one.losses.back(), 0.02);
    test::expect_planned(spec, options, 6, run, test::this_processor());
    options.zero.overlap = false;
    test::expect_same_bits(test::train_on_ranks(spec, options, 6, 10).weights, run.weights);
  }
}

// What several ranks hold (norms, positions, key heads) is stepped alike by all of them.
TEST(Tensor, CopiesOfAParameterStayTheSame) {
  const ModelSpec spec = shape("qwen3-tiny", 6, 2);
  EngineOptions options = options_of(6, 0);
  options.precision.compute = options.precision.gradients = DType::bf16;
  options.precision.master = false;  // rounded by random numbers
  std::mutex mutex;
  std::map<std::string, std::map<int64_t, std::set<uint16_t>>> values;
  int64_t held = 0;
  test::on_ranks(6, [&](int, std::shared_ptr<Communicator> communicator) {
    Engine engine(spec, options, std::move(communicator));
    for (int step = 0; step < 5; ++step) test::train_step(engine);
    const std::lock_guard lock(mutex);
    for (int u = 0; u < engine.state().units(); ++u)
      for (size_t p = 0; p < engine.state().whole_params(u).size(); ++p) {
        const ParamSpec& here = engine.state().unit(u).layout().params()[p];
        const Tensor tensor = engine.state().unit(u).param(static_cast<int>(p));
        const auto* bits = static_cast<const uint16_t*>(tensor.data);
        held += here.elems();
        for_each_run(here, engine.state().whole_params(u)[p].cols, 0, here.elems(),
                     [&](int64_t at, int64_t first, int64_t elems) {
                       for (int64_t i = 0; i < elems; ++i)
                         values[here.name][first + i].insert(bits[at + i]);
                     });
      }
  });
  int64_t distinct = 0;
  for (const auto& [name, elements] : values)
    for (const auto& [at, seen] : elements) {
      ASSERT_EQ(seen.size(), 1u) << name << " element " << at;
      ++distinct;
    }
  EXPECT_EQ(distinct, spec.parameter_count());
  EXPECT_GT(held, distinct + spec.num_layers * 4 * spec.kv_size() * spec.hidden_size);
}

// Four all-reduces of the residual's size for each layer and micro-batch, one of the embedding and
// one of the head; three numbers of each token for the cross-entropy; and, once a step, the
// gradients of what several ranks hold.
TEST(Tensor, VolumeIsThatOfTheFormula) {
  for (const int tensor : {2, 4}) {
    ModelSpec spec = shape("llama-tiny", 4, 2);
    EngineOptions options = options_of(tensor, 0);
    const auto run = test::train_on_ranks(spec, options, tensor, 1);
    const TrafficTable& sent = run.traffic[static_cast<size_t>(Lane::exchange)];
    const int64_t tokens = options.micro_batch * options.sequence, hidden = spec.hidden_size;
    const int64_t replicas = tensor / 2;  // two key heads
    const int64_t sums = (4 * spec.num_layers + 2) * options.micros;
    int64_t bytes = sums * 2 * (tensor - 1) * (tokens * hidden / tensor) * 4;
    if (replicas > 1)
      bytes += spec.num_layers * 2 * (replicas - 1) * (2 * spec.head_dim * hidden / replicas) * 4;
    EXPECT_EQ(sent[static_cast<size_t>(Collective::all_reduce)].bytes_sent, bytes);
    EXPECT_EQ(sent[static_cast<size_t>(Collective::all_gather)].bytes_sent,
              options.micros * (tensor - 1) * 3 * tokens * 4);
    const auto plan = Engine::plan(spec, options, tensor);
    EXPECT_EQ(plan->traffic(Lane::exchange)[static_cast<size_t>(Collective::all_reduce)].bytes_sent,
              bytes);
  }
}

TEST(Tensor, ModelsThatCannotBeDividedAreRefusedWithAllReasons) {
  const auto text = [](const ModelSpec& spec, int tensor) {
    return obstacle_to_tensor(spec, options_of(tensor, 0));
  };
  ModelSpec spec = shape("llama-tiny", 6, 2);
  EXPECT_EQ(text(spec, 2), "");
  EXPECT_TRUE(contains(text(spec, 4), "mesh.tensor is 4"));
  EXPECT_TRUE(contains(text(spec, 4), "6 attention heads cannot be divided by 4"));
  spec.num_heads = 12;
  spec.num_kv_heads = 3;
  EXPECT_TRUE(contains(text(spec, 2), "3 key and value heads can neither be divided by 2"));
  spec = shape("llama-tiny", 4, 2);
  spec.intermediate_size = 3;
  spec.hidden_size = 30;
  EXPECT_TRUE(contains(text(spec, 4), "intermediate_size of 3 leaves nothing to some"));
  EXPECT_TRUE(contains(text(spec, 4), "30 columns of hidden_size"));
  EXPECT_TRUE(contains(text(shape("olmo2-tiny", 6, 6), 2), "go over all heads (qk_norm_whole)"));
  spec = shape("llama-tiny", 6, 2);
  spec.vocab_size = 7;
  EXPECT_TRUE(contains(text(spec, 6), "vocabulary of 7 leaves nothing to some"));
  EngineOptions options = options_of(2, 0);
  options.precision.moments = DType::u8;
  EXPECT_EQ(obstacle_to_tensor(shape("llama-tiny", 6, 2), options), "");
  EXPECT_TRUE(contains(obstacle_to_tensor(shape("llama-tiny", 6, 1), options),
                       "key and value heads that several ranks hold share blocks of 256 moments of "
                       "8 bits (data_types) with queries"));
  options = options_of(2, 0);
  options.optimizer.type = OptimizerSpec::Type::muon;
  EXPECT_TRUE(
      contains(obstacle_to_tensor(shape("llama-tiny", 6, 2), options), "steps whole tensors"));
  options = options_of(2, 0);
  options.clip_rule.value = 1;
  EXPECT_TRUE(contains(obstacle_to_tensor(shape("llama-tiny", 6, 2), options), "single tensors"));
}

}  // namespace
}  // namespace onefold
