// Moments of 8 bits of parameters that ranks divide. Blocks are of what a rank has: where those are
// blocks of the whole parameter, ranks learn what one learns; elsewhere as much as codes let it.
#include <cmath>
#include <mutex>

#include "base/block8.h"
#include "engine/ranks.h"

namespace onefold {
namespace {

// Every run of a share's elements is blocks of the whole parameter: 256 columns of `out` and of
// `down` on each of two ranks, and rows of all others that have multiples of 256 elements.
ModelSpec of_whole_blocks(int64_t kv_heads) {
  ModelSpec spec = spec_from_preset("llama-tiny", "test");
  spec.vocab_size = 96;
  spec.num_layers = 2;
  spec.num_heads = 4;
  spec.num_kv_heads = kv_heads;
  spec.head_dim = 128;
  spec.hidden_size = 16;
  spec.intermediate_size = 512;
  return spec;
}

// Blocks that begin in one row and end in another, or in keys and in values.
ModelSpec of_awkward_blocks(const std::string& preset, int64_t kv_heads) {
  ModelSpec spec = spec_from_preset(preset, "test");
  spec.vocab_size = 101;
  spec.num_layers = 2;
  spec.num_heads = 8;
  spec.num_kv_heads = kv_heads;
  spec.head_dim = 8;
  spec.hidden_size = preset == "llama-tiny" ? 24 : 64;
  spec.intermediate_size = 47;
  return spec;
}

ModelSpec of_experts() {
  ModelSpec spec = of_awkward_blocks("llama-tiny", 8);
  spec.experts = {.count = 4, .intermediate_size = 13, .shared_intermediate_size = 5, .every = 2};
  return spec;
}

struct Layout {
  int data = 1, tensor = 1, expert = 1, stage = 0;
  int ranks() const { return data * tensor * expert; }
};

EngineOptions options_of(const Layout& layout, DType moments = DType::u8,
                         DType compute = DType::f32) {
  EngineOptions options{.device = test::test_device_name(),
                        .tensor = layout.tensor,
                        .expert = layout.expert,
                        .threads = 1,
                        .micro_batch = 1,
                        .sequence = 13};
  options.micros = 4 / (layout.data * layout.expert);
  options.zero.stage = layout.stage;
  options.zero.persistence_elems = 0;
  options.precision.moments = moments;
  options.precision.compute = compute;
  options.optimizer.eps = 1e-5;  // far from gradients that are nothing but rounding
  return options;
}

// The second step is the first to read codes, of which a gradient that differs in its last bits has
// drawn another one here and there, as it does with moments of bf16: from then on weights differ by
// a fraction of what codes themselves make of them. Codes of other blocks would differ by all of
// it.
TEST(CodedShares, OfWholeBlocksLearnWhatOneRankLearnsAsPlanned) {
  for (const int64_t kv_heads : {4, 1}) {
    const ModelSpec spec = of_whole_blocks(kv_heads);
    for (const int steps : {1, 2, 20}) {
      const test::RankRun one = test::train_on_ranks(spec, options_of({}), 1, steps);
      const double noise = test::distance(
          one.weights, test::train_on_ranks(spec, options_of({}, DType::f32), 1, steps).weights);
      if (steps > 1) {
        EXPECT_GT(noise, steps == 2 ? 1e-4 : 1e-3);
      }
      for (const Layout& layout : {Layout{1, 2}, Layout{2, 2, 1, 3}}) {
        const test::RankRun run =
            test::train_on_ranks(spec, options_of(layout), layout.ranks(), steps);
        EXPECT_LT(test::distance(run.weights, one.weights), steps == 1 ? 1e-5 : noise / 4)
            << kv_heads;
        test::expect_planned(spec, options_of(layout), layout.ranks(), run, test::test_hardware());
      }
    }
  }
}

// As near to moments of fp32 as one rank's codes are: other blocks have other scales, and so a
// little more or less noise.
void expect_noise_of_codes(const ModelSpec& spec, const Layout& layout) {
  constexpr int kSteps = 20;
  const test::RankRun exact = test::train_on_ranks(spec, options_of({}, DType::f32), 1, kSteps),
                      coded = test::train_on_ranks(spec, options_of({}), 1, kSteps),
                      run = test::train_on_ranks(spec, options_of(layout), layout.ranks(), kSteps);
  const double noise = test::distance(coded.weights, exact.weights);
  EXPECT_LT(noise, 0.02);
  EXPECT_LT(test::distance(run.weights, exact.weights), 1.5 * noise);
  EXPECT_NEAR(run.losses.back(), coded.losses.back(), 0.01 * coded.losses.back());
  test::expect_planned(spec, options_of(layout), layout.ranks(), run, test::test_hardware());
}

TEST(CodedShares, OfOtherBlocksAreAsNearAsThoseOfOneRank) {
  expect_noise_of_codes(of_awkward_blocks("llama-tiny", 8), {1, 2});
  expect_noise_of_codes(of_awkward_blocks("llama-tiny", 1), {2, 2, 1, 2});
  expect_noise_of_codes(of_awkward_blocks("gpt2-tiny", 8), {1, 4});
  expect_noise_of_codes(of_experts(), {1, 1, 2, 1});
  expect_noise_of_codes(of_experts(), {1, 2, 2, 3});
}

TEST(CodedShares, HaveTheSameBitsAtEveryStageAndTier) {
  struct Mesh {
    ModelSpec spec;
    int tensor, expert;
  };
  for (const Mesh& mesh : {Mesh{of_awkward_blocks("gpt2-tiny", 8), 2, 1},
                           Mesh{of_awkward_blocks("llama-tiny", 1), 2, 1}, Mesh{of_experts(), 2, 2},
                           Mesh{of_whole_blocks(4), 2, 1}})
    for (const DType compute : {DType::f32, DType::bf16}) {
      const Layout first{2, mesh.tensor, mesh.expert, 0};
      const auto train = [&](const Layout& layout) {
        return test::train_on_ranks(mesh.spec, options_of(layout, DType::u8, compute),
                                    layout.ranks(), 3);
      };
      const test::RankRun reference = train(first);
      EngineOptions away = options_of(first, DType::u8, compute);
      away.offload.optimizer = Tier::host;
      const test::RankRun offloaded = test::train_on_ranks(mesh.spec, away, first.ranks(), 3);
      test::expect_same_bits(offloaded.weights, reference.weights);
      test::expect_planned(mesh.spec, away, first.ranks(), offloaded, test::test_hardware());
      for (int stage = 0; stage <= 3; ++stage) {
        Layout layout = first;
        layout.stage = stage;
        const test::RankRun run = train(layout);
        EXPECT_EQ(run.losses, reference.losses) << stage;
        test::expect_same_bits(run.weights, reference.weights);
        test::expect_planned(mesh.spec, options_of(layout, DType::u8, compute), layout.ranks(), run,
                             test::test_hardware());
      }
    }
}

// Heads that two ranks hold have the same codes on both, whatever queries are beside them.
TEST(CodedShares, OfCopiedHeadsStayAlike) {
  if (test::test_device_name() != "cpu") GTEST_SKIP() << "it reads the device's memory";
  for (const ModelSpec& spec : {of_whole_blocks(1), of_awkward_blocks("llama-tiny", 1)}) {
    std::mutex mutex;
    std::vector<std::vector<float>> copies;
    test::on_ranks(2, [&](int, std::shared_ptr<Communicator> communicator) {
      Engine engine(spec, options_of({1, 2}), std::move(communicator));
      for (int step = 0; step < 5; ++step) test::train_step(engine);
      std::vector<float> values;
      const Unit& attention = *engine.model().units[1];
      for (size_t p = 0; p < attention.params().size(); ++p) {
        const ParamSpec& param = attention.params()[p];
        if (!param.summed_over.replicas) continue;
        const Tensor all = engine.state().unit(1).param(static_cast<int>(p)).flat();
        values.insert(values.end(), all.f32() + param.summed_from, all.f32() + param.elems());
      }
      const std::lock_guard lock(mutex);
      copies.push_back(std::move(values));
    });
    EXPECT_EQ(copies[0].size(), 2u * static_cast<size_t>(spec.head_dim * spec.hidden_size));
    EXPECT_EQ(copies[0], copies[1]);
  }
}

}  // namespace
}  // namespace onefold
