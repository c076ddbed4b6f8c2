// Adapters beside projections that ranks divide: they learn what one rank learns, within rounding,
// with the masks of the undivided model; bits repeat, over ZeRO's stages too; and the plan is the
// run.
#include <algorithm>
#include <cmath>

#include "engine/ranks.h"

namespace onefold {
namespace {

struct SharesCase {
  std::string preset;
  int64_t heads, kv_heads;
  int tensor, data;
  bool scattered = false;
  std::vector<std::string> targets = {"all-linear"};
};

ModelSpec adapted(const SharesCase& c) {
  ModelSpec spec = spec_from_preset(c.preset, "test");
  spec.vocab_size = 101;
  spec.num_layers = 2;
  spec.num_heads = c.heads;
  spec.num_kv_heads = c.kv_heads;
  spec.head_dim = c.preset == "qwen3-tiny" ? 10 : 8;
  spec.hidden_size = spec.num_heads * spec.head_dim;
  if (c.preset == "qwen3-tiny") spec.hidden_size = 24;
  if (c.preset == "gemma-tiny") {  // as Hugging Face's Gemma 3, whose names adapters have
    spec.embedding_scale = std::sqrt(static_cast<float>(spec.hidden_size));
    spec.attention_soft_cap = 0;
  }
  spec.intermediate_size = 47;  // which nothing divides
  spec.lora = {.rank = 3, .alpha = 5, .dropout = 0.1f, .targets = c.targets};
  return spec;
}

EngineOptions options_of(const SharesCase& c, int stage) {
  EngineOptions options{.device = test::test_device_name(),
                        .tensor = c.tensor,
                        .threads = 1,
                        .micro_batch = 2,
                        .sequence = 12};
  options.sequence_parallel = c.scattered;
  options.micros = 2;
  options.clipping = 0.5;
  options.zero.stage = stage;
  options.zero.persistence_elems = 0;
  return options;
}

test::RankRun alone(const SharesCase& c, int steps) {
  SharesCase one = c;
  one.tensor = 1;
  one.scattered = false;
  EngineOptions options = options_of(one, 0);
  options.micros *= c.data;
  return test::train_on_ranks(adapted(c), options, 1, steps);
}

// The base stays as it is, and would hide what adapters do.
test::Weights adapters(const test::Weights& all, const std::string& suffix) {
  test::Weights some;
  for (const auto& [name, values] : all)
    if (name.ends_with(suffix)) some[name] = values;
  return some;
}

class AdapterShares : public testing::TestWithParam<SharesCase> {};

TEST_P(AdapterShares, LearnWhatOneRankLearnsAsPlanned) {
  const SharesCase& c = GetParam();
  constexpr int kSteps = 20;
  const int ranks = c.tensor * c.data;
  const EngineOptions options = options_of(c, c.data > 1 ? 2 : 0);
  const test::RankRun run = test::train_on_ranks(adapted(c), options, ranks, kSteps);
  const test::RankRun one = alone(c, kSteps), before = alone(c, 0);
  // B begins with zeros, and so has nothing but what was learnt.
  for (const std::string matrix : {".lora_A", ".lora_B"})
    EXPECT_LT(test::distance(adapters(run.weights, matrix), adapters(one.weights, matrix)), 1e-5)
        << matrix;
  EXPECT_GT(test::distance(adapters(before.weights, ".lora_A"), adapters(one.weights, ".lora_A")),
            0.01);
  for (const auto& [name, values] : run.weights)
    if (!name.ends_with(".lora_A") && !name.ends_with(".lora_B")) {
      EXPECT_EQ(values, before.weights.at(name)) << name;
    }
  for (size_t step = 0; step < run.losses.size(); ++step) {
    EXPECT_NEAR(run.losses[step], one.losses[step], 1e-5 * one.losses[step]) << step;
    EXPECT_NEAR(run.norms[step], one.norms[step], 1e-5 * one.norms[step]) << step;
  }
  test::expect_planned(adapted(c), options, ranks, run, test::test_hardware());
}

TEST_P(AdapterShares, HaveTheSameBitsAtEveryStageAndRecomputed) {
  const SharesCase& c = GetParam();
  const int ranks = 2 * c.tensor;
  const test::RankRun first = test::train_on_ranks(adapted(c), options_of(c, 0), ranks, 3);
  test::Combinations combinations;
  for (int stage = 0; stage <= 3; ++stage)
    for (const bool again : {false, true}) {
      if (!combinations.take()) continue;
      SCOPED_TRACE(fmt::format("stage {}{}", stage, again ? " recomputed" : ""));
      EngineOptions options = options_of(c, stage);
      options.recompute = again;
      options.zero.overlap = !again;
      const test::RankRun run = test::train_on_ranks(adapted(c), options, ranks, 3);
      EXPECT_EQ(run.losses, first.losses);
      EXPECT_EQ(run.norms, first.norms);
      test::expect_same_bits(run.weights, first.weights);
      test::expect_planned(adapted(c), options, ranks, run, test::test_hardware());
    }
}

std::string name_of(const testing::TestParamInfo<SharesCase>& info) {
  const SharesCase& c = info.param;
  std::string name =
      fmt::format("{}_{}heads_{}kv_tensor{}_data{}{}{}", c.preset, c.heads, c.kv_heads, c.tensor,
                  c.data, c.scattered ? "_scattered" : "", c.targets.size() > 1 ? "_some" : "");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// Modules of all three of queries, keys and values, and of each; of gate and up; of heads that
// several ranks hold; beside each other; and behind norms.
INSTANTIATE_TEST_SUITE_P(
    Meshes, AdapterShares,
    testing::Values(SharesCase{"gpt2-tiny", 6, 6, 2, 1}, SharesCase{"gpt2-tiny", 6, 6, 3, 2},
                    SharesCase{"gpt2-tiny", 6, 6, 2, 1, true}, SharesCase{"llama-tiny", 6, 2, 2, 2},
                    SharesCase{"llama-tiny", 6, 2, 6, 1},
                    SharesCase{"llama-tiny", 6, 2, 6, 1, true},
                    SharesCase{"llama-tiny", 6, 2, 6, 1, false, {"k_proj", "layers.1.mlp.*"}},
                    SharesCase{"qwen3-tiny", 6, 2, 2, 1}, SharesCase{"gemma-tiny", 6, 2, 2, 1},
                    SharesCase{"neox-tiny", 6, 6, 2, 1}, SharesCase{"gptj-tiny", 6, 6, 3, 1}),
    name_of);

}  // namespace
}  // namespace onefold
