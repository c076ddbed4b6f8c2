// Every optimizer: its rule against the same in double, the same bits at every stage, tier and on
// any way of travel, as planned. ONEFOLD_TEST_DEVICE=cuda:0 runs them on a card.
#include <gtest/gtest.h>

#include "data/scratch.h"
#include "engine/optimizers.h"
#include "engine/ranks.h"

namespace onefold {
namespace {

using test::expect_same_bits;
using test::NamedOptimizer;
using test::RankRun;
using test::Reference;
using test::train_on_ranks;

ModelSpec tiny_model(const std::string& preset) {
  ModelSpec spec = spec_from_preset(preset, "test");
  if (spec.vocab_size == 0) spec.vocab_size = 101;
  return spec;
}

EngineOptions optimizer_options(const NamedOptimizer& optimizer, int stage = 0) {
  EngineOptions options{.device = test::test_device_name(),
                        .threads = 1,
                        .micro_batch = 1,
                        .sequence = 11,
                        .clipping = 1.0};
  options.zero.stage = stage;
  options.zero.persistence_elems = 0;
  options.optimizer = optimizer.spec;
  return options;
}

class Optimizers : public testing::TestWithParam<NamedOptimizer> {};

// The rule in double, by the gradients that the engine has computed: what differs is the step's
// arithmetic alone.
void follow(const ModelSpec& spec, const NamedOptimizer& optimizer) {
  constexpr int kSteps = 20;
  constexpr double kRate = 1e-3, kTolerance = 1e-6;
  EngineOptions options = optimizer_options(optimizer);
  options.keep_gradients = true;
  Engine engine(spec, options);
  std::map<std::string, Reference> reference;
  test::for_each_parameter(engine, [&](const ParamSpec& param, std::span<const float> values) {
    reference[param.name] = {shape_of(param), {values.begin(), values.end()}, {}, {}};
  });
  for (int step = 1; step <= kSteps; ++step) {
    test::OwnedBatch batch =
        test::random_batch(1, options.sequence, spec.vocab_size, static_cast<uint64_t>(step));
    const BatchView view = batch.view();
    engine.train_step({&view, 1}, kRate);
    std::map<std::string, std::vector<double>> gradients;
    double squares = 0;
    test::for_each_gradient(engine, [&](const ParamSpec& param, std::span<const float> values) {
      gradients[param.name].assign(values.begin(), values.end());
      for (const double value : values) squares += value * value;
    });
    const double factor = std::min(1.0, 1.0 / (std::sqrt(squares) + 1e-6));
    test::Weights weights = test::weights_of(engine);
    for (auto& [name, gradient] : gradients) {
      for (double& value : gradient) value *= factor;
      test::reference_step(options.optimizer, step, kRate, reference.at(name), gradient,
                           weights.at(name));
    }
  }
  const test::Weights weights = test::weights_of(engine);
  for (const auto& [name, expected] : reference) {
    double largest = 0, worst = 0;
    for (size_t i = 0; i < expected.values.size(); ++i) {
      largest = std::max(largest, std::abs(expected.values[i]));
      worst = std::max(worst, std::abs(expected.values[i] - weights.at(name)[i]));
    }
    EXPECT_LE(worst, kTolerance * std::max(largest, 1.0))
        << spec.num_layers << " layers, " << name << ", largest " << largest;
  }
}

TEST_P(Optimizers, FollowTheirRuleInDoubleForTwentySteps) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"})
    follow(tiny_model(preset), GetParam());
  ModelSpec narrow = tiny_model("llama-tiny");  // matrices that are tall, wide and square
  narrow.num_layers = 3;
  narrow.tie_embeddings = false;
  narrow.intermediate_size = 29;
  follow(narrow, GetParam());
}

TEST_P(Optimizers, EveryStageHasTheBitsOfStageZeroAsPlanned) {
  test::Combinations combinations;
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"})
    for (const int ranks : {2, 3}) {
      const ModelSpec spec = tiny_model(preset);
      const RankRun reference = train_on_ranks(spec, optimizer_options(GetParam()), ranks, 4);
      for (const int stage : {0, 1, 2, 3})
        for (const bool overlap : {true, false}) {
          if (!combinations.take()) continue;
          SCOPED_TRACE(
              fmt::format("{}, {} ranks, stage {}, overlap {}", preset, ranks, stage, overlap));
          EngineOptions options = optimizer_options(GetParam(), stage);
          options.zero.overlap = overlap;
          const RankRun run = train_on_ranks(spec, options, ranks, 4);
          EXPECT_EQ(run.losses, reference.losses);
          expect_same_bits(run.weights, reference.weights);
          test::expect_planned(spec, options, ranks, run, test::test_hardware());
          const StateBytes bytes =
              state_bytes(unit_traits(Model(spec), options, ranks), options, ranks);
          // A card books larger blocks; there the plan says what is held.
          if (test::test_device_name() == "cpu") {
            EXPECT_EQ(run.kinds[0][static_cast<size_t>(Kind::optimizer)], bytes.optimizer);
          }
        }
    }
}

TEST_P(Optimizers, EveryPrecisionHasTheBitsOfStageZero) {
  const ModelSpec spec = tiny_model("llama-tiny");
  std::vector<Precision> precisions = {{.compute = DType::bf16},
                                       {DType::bf16, DType::bf16, true, DType::bf16},
                                       {DType::bf16, DType::bf16, false},
                                       {DType::bf16, DType::bf16, false, DType::bf16},
                                       {.compute = DType::f16}};
  if (GetParam().spec.takes_codes())
    precisions.push_back({DType::bf16, DType::bf16, false, DType::u8});
  for (size_t p = 0; p < precisions.size(); ++p) {
    EngineOptions options = optimizer_options(GetParam());
    options.precision = precisions[p];
    const RankRun reference = train_on_ranks(spec, options, 2, 3);
    for (const int stage : {1, 3}) {
      SCOPED_TRACE(fmt::format("precision {}, stage {}", p, stage));
      options.zero.stage = stage;
      const RankRun run = train_on_ranks(spec, options, 2, 3);
      EXPECT_EQ(run.losses, reference.losses);
      expect_same_bits(run.weights, reference.weights);
      test::expect_planned(spec, options, 2, run, test::test_hardware());
    }
  }
}

TEST_P(Optimizers, EveryTierHasTheBitsOfTheDevice) {
  const ScratchFolder folder;
  const bool cpu = test::test_device_name() == "cpu";
  const ModelSpec spec = tiny_model("gpt2-tiny");
  test::Combinations combinations;
  for (const int ranks : {1, 2}) {
    const RankRun reference = train_on_ranks(spec, optimizer_options(GetParam()), ranks, 3);
    for (const auto& [parameters, optimizer] :
         {std::pair{Tier::device, Tier::host}, {Tier::host, Tier::host}, {Tier::disk, Tier::disk}})
      for (const int stage : {0, 3}) {
        if ((!cpu && parameters == Tier::disk) || !combinations.take()) continue;
        SCOPED_TRACE(fmt::format("{} ranks, stage {}, optimizer on tier {}", ranks, stage,
                                 static_cast<int>(optimizer)));
        EngineOptions options = optimizer_options(GetParam(), stage);
        options.offload = {
            .parameters = parameters, .optimizer = optimizer, .folder = folder.path("disk")};
        const RankRun run = train_on_ranks(spec, options, ranks, 3);
        expect_same_bits(run.weights, reference.weights);
        test::expect_planned(spec, options, ranks, run, test::test_hardware());
      }
  }
}

// Adapters are matrices that are trained in the place of others.
TEST_P(Optimizers, TrainAdapters) {
  ModelSpec spec = tiny_model("llama-tiny");
  spec.lora.rank = 2;
  spec.lora.targets = {"q_proj", "down_proj"};
  const RankRun reference = train_on_ranks(spec, optimizer_options(GetParam()), 2, 3);
  const RankRun untouched = train_on_ranks(spec, optimizer_options(GetParam()), 2, 0);
  int changed = 0;
  for (const auto& [name, values] : reference.weights) {
    const bool same = values == untouched.weights.at(name);
    changed += !same;
    EXPECT_TRUE(same || name.find("lora") != std::string::npos) << name;
  }
  EXPECT_GT(changed, 0);
  for (const int stage : {1, 2, 3}) {
    const EngineOptions options = optimizer_options(GetParam(), stage);
    const RankRun run = train_on_ranks(spec, options, 2, 3);
    expect_same_bits(run.weights, reference.weights);
    test::expect_planned(spec, options, 2, run, test::test_hardware());
  }
}

// What is skipped leaves weights and state as they were.
TEST_P(Optimizers, AStepThatIsNotFiniteChangesNothing) {
  const ModelSpec spec = tiny_model("llama-tiny");
  EngineOptions options = optimizer_options(GetParam());
  options.skip_overflow = true;
  options.precision.compute = DType::f16;
  options.loss_scale = {.fixed = 0, .initial_power = 40};
  Engine engine(spec, options);
  const test::Weights before = test::weights_of(engine);
  test::OwnedBatch batch = test::random_batch(1, options.sequence, spec.vocab_size, 1);
  const BatchView view = batch.view();
  EXPECT_TRUE(engine.train_step({&view, 1}, 1e-3).skipped);
  expect_same_bits(test::weights_of(engine), before);
}

INSTANTIATE_TEST_SUITE_P(All, Optimizers, testing::ValuesIn(test::all_optimizers()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace onefold
