// Sequence parallelism: ranks that divide units also divide what passes between them. They learn
// what one rank learns, within rounding; bits repeat; the plan is the run; what is kept and sent
// follows the formulas.
#include <algorithm>

#include "engine/lines.h"
#include "engine/ranks.h"
#include "error_text.h"

namespace onefold {
namespace {

// Awkward sizes: a vocabulary and widths that nothing divides.
ModelSpec shape(const std::string& preset, int64_t kv_heads = 4) {
  ModelSpec spec = spec_from_preset(preset, "test");
  spec.vocab_size = 101;
  spec.num_layers = 2;
  spec.num_heads = 4;
  spec.num_kv_heads = kv_heads;
  spec.head_dim = preset == "qwen3-tiny" ? 10 : 8;
  spec.hidden_size = 24;
  spec.intermediate_size = 47;
  if (!spec.experts.enabled()) return spec;
  spec.experts.count = 4;
  spec.experts.intermediate_size = 17;
  spec.experts.shared_intermediate_size = 13;
  spec.experts.shared_gate = true;
  spec.experts.balance_loss = 0.02f;
  return spec;
}

struct Layout {
  int tensor = 2, context = 1, expert = 1, pipeline = 1, data = 1, stage = 0;
  ContextMethod method = ContextMethod::ulysses;

  int ranks() const { return tensor * context * expert * pipeline * data; }
};

EngineOptions options_of(const Layout& layout) {
  EngineOptions options{.tensor = layout.tensor,
                        .sequence_parallel = layout.tensor > 1,
                        .context = layout.context,
                        .context_method = layout.method,
                        .expert = layout.expert,
                        .threads = 1,
                        .micro_batch = 3,
                        .sequence = 16};
  options.pipeline.ranks = layout.pipeline;
  options.micros = 2;
  options.clipping = 0.5;
  options.zero.stage = layout.stage;
  options.zero.persistence_elems = 0;
  return options;
}

test::RankRun alone(const ModelSpec& spec, const Layout& layout, int steps) {
  EngineOptions options = options_of({.tensor = 1});
  options.micros *= layout.data * layout.expert;
  return test::train_on_ranks(spec, options, 1, steps);
}

struct ScatteredCase {
  std::string name, preset;
  Layout layout;
  int64_t kv_heads = 4;
};

class SequenceParallel : public testing::TestWithParam<ScatteredCase> {};

TEST_P(SequenceParallel, LearnsWhatOneRankLearnsAsPlanned) {
  const ScatteredCase& c = GetParam();
  ModelSpec spec = shape(c.preset, c.kv_heads);
  // Masks are those of the whole model.
  if (c.layout.method == ContextMethod::ulysses) spec.dropout = 0.1f;
  constexpr int kSteps = 20;
  const EngineOptions options = options_of(c.layout);
  const test::RankRun run = test::train_on_ranks(spec, options, c.layout.ranks(), kSteps);
  const test::RankRun one = alone(spec, c.layout, kSteps);
  EXPECT_LT(test::distance(run.weights, one.weights), 1e-5);
  for (size_t step = 0; step < run.losses.size(); ++step) {
    EXPECT_NEAR(run.losses[step], one.losses[step], 1e-5 * one.losses[step]) << step;
    EXPECT_NEAR(run.norms[step], one.norms[step], 1e-5 * one.norms[step]) << step;
  }
  EXPECT_GT(test::distance(run.weights, alone(spec, c.layout, 0).weights), 0.1);
  test::expect_planned(spec, options, c.layout.ranks(), run, test::this_processor());
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, SequenceParallel,
    testing::Values(
        ScatteredCase{"Gpt2", "gpt2-tiny", {}},
        ScatteredCase{"Gpt2OfFour", "gpt2-tiny", {.tensor = 4, .data = 2, .stage = 2}},
        ScatteredCase{"Llama", "llama-tiny", {.tensor = 4, .stage = 0}, 2},
        ScatteredCase{"LlamaRing",
                      "llama-tiny",
                      {.context = 2, .data = 2, .stage = 3, .method = ContextMethod::ring},
                      2},
        ScatteredCase{"LlamaUlysses", "llama-tiny", {.context = 2, .stage = 2}, 2},
        ScatteredCase{"LlamaPipeline", "llama-tiny", {.pipeline = 2, .data = 2, .stage = 1}},
        ScatteredCase{"Qwen3", "qwen3-tiny", {.tensor = 4}, 2},
        ScatteredCase{"Neox", "neox-tiny", {.data = 2}}, ScatteredCase{"Gptj", "gptj-tiny", {}},
        ScatteredCase{"Mixtral", "mixtral-tiny", {.stage = 1}},
        ScatteredCase{"MixtralExperts",
                      "mixtral-tiny",
                      {.context = 2, .expert = 2, .pipeline = 2, .stage = 2}}),
    [](const auto& info) { return info.param.name; });

TEST(Sequences, BitsRepeatAtEveryStageAndInEveryLayout) {
  const ModelSpec spec = shape("llama-tiny", 2);
  const Layout layout{.tensor = 2, .data = 2};
  const test::RankRun first = test::train_on_ranks(spec, options_of(layout), 4, 3);
  test::Combinations combinations;
  for (int stage = 0; stage <= 3; ++stage)
    for (const bool unit_first : {false, true})
      for (const bool again : {false, true}) {
        if (!combinations.take()) continue;
        EngineOptions options = options_of(layout);
        options.zero.stage = stage;
        options.order = unit_first ? Order::unit_first : Order::micro_first;
        options.recompute = again;
        options.zero.overlap = !again;
        if (again) options.offload.activations = Tier::host;
        const test::RankRun run = test::train_on_ranks(spec, options, 4, 3);
        EXPECT_EQ(run.losses, first.losses);
        EXPECT_EQ(run.norms, first.norms);
        test::expect_same_bits(run.weights, first.weights);
        test::expect_planned(spec, options, 4, run, test::this_processor());
      }
}

TEST(Sequences, SixteenBitsAgreeWithOneRank) {
  const ModelSpec spec = shape("llama-tiny", 2);
  EngineOptions options = options_of({});
  options.precision.compute = options.precision.gradients = DType::bf16;
  const test::RankRun run = test::train_on_ranks(spec, options, 2, 10);
  options.tensor = 1;
  const test::RankRun one = test::train_on_ranks(spec, options, 1, 10);
  EXPECT_LT(test::distance(run.weights, one.weights), 0.02);
  EXPECT_NEAR(run.losses.back(), one.losses.back(), 0.02);
}

// Every sum over shares is a sum of which each has a run, and a gather of such runs: as much as
// before. Beside it, in backward, the inputs of layers are gathered once more, of which a run was
// kept.
TEST(Sequences, VolumeIsThatOfTheFormula) {
  for (const int tensor : {2, 4}) {
    const ModelSpec spec = shape("llama-tiny");
    const EngineOptions options = options_of({.tensor = tensor});
    const auto run = test::train_on_ranks(spec, options, tensor, 1);
    const TrafficTable& sent = run.traffic[static_cast<size_t>(Lane::exchange)];
    const int64_t tokens = options.tokens(), layers = spec.num_layers;
    const int64_t half = (tensor - 1) * (tokens * spec.hidden_size / tensor) * 4;
    const int64_t sums = 4 * layers + 2;
    EXPECT_EQ(sent[static_cast<size_t>(Collective::reduce_scatter)].bytes_sent,
              options.micros * sums * half);
    const int64_t loss = (tensor - 1) * 3 * tokens * 4;
    EXPECT_EQ(sent[static_cast<size_t>(Collective::all_gather)].bytes_sent,
              options.micros * ((sums + 2 * layers) * half + loss));
    // Once a step: the gradients of norms.
    EXPECT_EQ(sent[static_cast<size_t>(Collective::all_reduce)].bytes_sent,
              (2 * layers + 1) * 2 * (tensor - 1) * (spec.hidden_size / tensor) * 4);
    const TrafficTable planned = Engine::plan(spec, options, tensor)->traffic(Lane::exchange);
    for (size_t c = 0; c < planned.size(); ++c)
      EXPECT_EQ(planned[c].bytes_sent, sent[c].bytes_sent);
  }
}

// Korthikanti et al., section 4: with tensor parallelism alone what each layer's two halves read
// stays whole; with sequence parallelism all of it is divided.
TEST(Sequences, ALayerKeepsWhatTheFormulaSays) {
  ModelSpec spec = shape("llama-tiny");
  spec.intermediate_size = 48;
  const auto kept = [&](int tensor, bool scattered, int64_t layers) {
    ModelSpec deeper = spec;
    deeper.num_layers = layers;
    EngineOptions options = options_of({.tensor = tensor});
    options.sequence_parallel = scattered;
    options.micros = 1;
    options.micro_batch = 4;
    return Engine::plan(deeper, options, tensor)->ledger().peak_bytes(Kind::activations);
  };
  const int64_t tokens = 4 * 16, h = spec.hidden_size, q = spec.query_size(), k = spec.kv_size();
  for (const int t : {1, 2, 4})
    for (const bool scattered : {false, true}) {
      // Inputs of attention and MLP; queries, keys, values and result; log-sum-exps; up and gate.
      const int64_t inputs = 2 * h / (scattered ? t : 1),
                    inside = (q + 2 * k + q + spec.num_heads + 2 * spec.intermediate_size) / t;
      EXPECT_EQ(kept(t, scattered, 7) - kept(t, scattered, 6), tokens * (inputs + inside) * 4)
          << t << (scattered ? " scattered" : "");
    }
}

TEST(Sequences, WhatIsNotLinearIsRefused) {
  EngineOptions options = options_of({.tensor = 4});
  EXPECT_EQ(obstacle_to_tensor(shape("llama-tiny"), options), "");
  options.micro_batch = 1;
  options.sequence = 15;
  EXPECT_TRUE(
      contains(obstacle_to_tensor(shape("llama-tiny"), options), "the 15 tokens of a micro-batch"));
  EXPECT_TRUE(contains(obstacle_to_tensor(shape("gemma-tiny"), options), "norms behind branches"));
  EXPECT_TRUE(
      contains(obstacle_to_tensor(shape("bloom-tiny"), options), "a norm behind the embedding"));
}

}  // namespace
}  // namespace onefold
