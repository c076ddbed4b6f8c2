// Pipelines: units that are divided into stages learn what one rank learns, to the bit, in every
// schedule and with every other axis and technique; and the plan of each rank is its run.
#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "base/clock.h"
#include "engine/ranks.h"
#include "engine/stages.h"
#include "error_text.h"

namespace onefold {
namespace {

// Awkward sizes. GPT-2's head is tied, Llama's is not, and shares two key heads among six.
ModelSpec staged_model(const std::string& preset) {
  ModelSpec spec = spec_from_preset(preset, "test");
  spec.vocab_size = 101;
  spec.num_layers = 3;
  spec.num_heads = 6;
  spec.num_kv_heads = preset == "llama-tiny" ? 2 : 6;
  spec.head_dim = 4;
  spec.hidden_size = 24;
  spec.intermediate_size = 47;
  spec.tie_embeddings = preset == "gpt2-tiny";
  return spec;
}

EngineOptions staged_options(int stages, int micros = 3,
                             PipelineSchedule schedule = PipelineSchedule::one_f_one_b) {
  EngineOptions options{.threads = 1, .micro_batch = 2, .sequence = 11};
  options.pipeline.ranks = stages;
  options.pipeline.schedule = schedule;
  options.micros = micros;
  options.clipping = 0.5;
  options.zero.persistence_elems = 0;
  return options;
}

// The same without a pipeline.
test::RankRun unstaged(const ModelSpec& spec, EngineOptions options, int ranks, int steps) {
  options.pipeline = {};
  return test::train_on_ranks(spec, options, ranks, steps);
}

void expect_same_run(const test::RankRun& run, const test::RankRun& one) {
  EXPECT_EQ(run.losses, one.losses);
  EXPECT_EQ(run.norms, one.norms);
  test::expect_same_bits(run.weights, one.weights);
}

// A pipeline of these options on each of so many ranks beside it, against the same without stages.
void expect_bits_of_one_stage(const ModelSpec& spec, const EngineOptions& options, int ranks = 1,
                              int steps = 3) {
  const int all = ranks * options.pipeline.ranks;
  const test::RankRun run = test::train_on_ranks(spec, options, all, steps);
  expect_same_run(run, unstaged(spec, options, ranks, steps));
  test::expect_planned(spec, options, all, run, test::this_processor());
}

struct StageCase {
  std::string preset;
  int stages, micros;
  PipelineSchedule schedule;
};

class Stages : public testing::TestWithParam<StageCase> {};

TEST_P(Stages, HaveTheBitsOfOneRankAsPlanned) {
  const StageCase& c = GetParam();
  ModelSpec spec = staged_model(c.preset);
  spec.dropout = c.preset == "gpt2-tiny" && c.micros != 2 ? 0.1f : 0;
  const EngineOptions options = staged_options(c.stages, c.micros, c.schedule);
  const test::RankRun run = test::train_on_ranks(spec, options, c.stages, 4);
  expect_same_run(run, unstaged(spec, options, 1, 4));
  EXPECT_NE(run.losses.front(), run.losses.back());
  test::expect_planned(spec, options, c.stages, run, test::this_processor());
}

std::vector<StageCase> stage_cases() {
  std::vector<StageCase> cases;
  for (const char* preset : {"gpt2-tiny", "llama-tiny"})
    for (const int stages : {2, 3, 4, 8})
      for (const int micros : {1, 2, 5})
        for (const PipelineSchedule schedule : kPipelineSchedules)
          cases.push_back({preset, stages, micros, schedule});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Pipelines, Stages, testing::ValuesIn(stage_cases()),
                         [](const testing::TestParamInfo<StageCase>& info) {
                           const StageCase& c = info.param;
                           std::string name =
                               fmt::format("{}_{}stages_{}micros_{}", c.preset, c.stages, c.micros,
                                           schedule_name(c.schedule));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Pipelines, OfInterleavedStagesHaveTheBitsOfOneRank) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"})
    for (const auto& [ranks, interleave, micros] :
         {std::array{2, 2, 2}, {2, 4, 6}, {3, 2, 3}, {4, 2, 8}}) {
      EngineOptions options = staged_options(ranks, micros);
      options.pipeline.interleave = interleave;
      expect_bits_of_one_stage(staged_model(preset), options);
    }
  EngineOptions options = staged_options(2, 4);
  options.pipeline.interleave = 3;
  options.recompute = true;
  options.zero.stage = 3;
  expect_bits_of_one_stage(staged_model("gpt2-tiny"), options, 2);
}

// Gradients of weights that come later. Without dropout, biases' come with the norms' and so
// before.
TEST(Pipelines, WithoutABubbleHaveTheBitsOfOneRankWithEveryTechnique) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"}) {
    ModelSpec spec = staged_model(preset);
    const EngineOptions plain = staged_options(3, 4, PipelineSchedule::zero_bubble);
    for (int stage = 0; stage <= 3; ++stage) {
      spec.dropout = stage < 2 ? 0 : 0.1f;
      EngineOptions options = plain;
      options.zero.stage = stage;
      options.recompute = stage % 2 == 1;
      expect_bits_of_one_stage(spec, options, 2);
    }
    for (const bool master : {true, false}) {
      spec.dropout = master ? 0 : 0.1f;
      EngineOptions options = plain;
      options.precision.compute = options.precision.gradients = DType::bf16;
      options.precision.master = master;
      expect_bits_of_one_stage(spec, options);
    }
    for (const std::vector<std::string>& frozen :
         {std::vector<std::string>{"embedding"}, {"embedding", "block.0"}, {"block.1", "head"}}) {
      EngineOptions options = plain;
      options.frozen = frozen;
      expect_bits_of_one_stage(spec, options);
    }
    spec.lora = {.rank = 3, .alpha = 5, .dropout = 0.1f, .targets = {"all-linear"}};
    expect_bits_of_one_stage(spec, plain);
  }
}

// Units that ranks divide: what travels between their phases does so in the first part.
TEST(Pipelines, WithoutABubbleHaveTheBitsOfTheSameDividedUnits) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny", "gemma-tiny", "gptj-tiny"}) {
    ModelSpec spec = staged_model(preset);
    spec.num_heads = spec.num_kv_heads = 4;
    spec.head_dim = 8;
    spec.hidden_size = 32;
    for (const bool parts : {false, true})
      for (int stage = 0; stage <= 3; stage += 3) {
        EngineOptions options = staged_options(2, 4, PipelineSchedule::zero_bubble);
        (parts ? options.context : options.tensor) = 2;
        options.sequence = 12;
        options.zero.stage = stage;
        options.recompute = stage == 3;
        spec.dropout = stage == 0 ? 0.1f : 0;
        expect_bits_of_one_stage(spec, options, stage == 3 ? 4 : 2);
      }
  }
}

// Of what passes between units a run is kept, and gathered once more for gradients of weights: two
// gathers more for each half of a layer, of its input and of its output's gradient.
TEST(Pipelines, WithoutABubbleGatherRunsOfTokensOnceMore) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny", "mixtral-tiny"})
    for (int stage = 0; stage <= 3; stage += 3) {
      SCOPED_TRACE(preset);
      ModelSpec spec = staged_model(preset);
      spec.num_heads = spec.num_kv_heads = 4;
      spec.head_dim = 8;
      spec.hidden_size = 32;
      spec.dropout = stage == 0 && preset == "gpt2-tiny" ? 0.1f : 0;
      EngineOptions options = staged_options(2, 4, PipelineSchedule::zero_bubble);
      options.tensor = 2;
      options.sequence_parallel = true;
      options.sequence = 12;
      options.zero.stage = stage;
      options.recompute = stage == 3;
      expect_bits_of_one_stage(spec, options, stage == 3 ? 4 : 2);
    }
  ModelSpec spec = staged_model("llama-tiny");
  const auto gathers = [&](PipelineSchedule schedule, int place) {
    EngineOptions options = staged_options(2, 4, schedule);
    options.tensor = 2;
    options.sequence_parallel = true;
    options.sequence = 12;
    options.pipeline.units = {3, static_cast<int>(2 * spec.num_layers - 1)};
    return Engine::plan(spec, options, 4, 0, test::this_processor(), 2 * place)
        ->traffic(Lane::exchange)[static_cast<size_t>(Collective::all_gather)]
        .calls;
  };
  const auto later = PipelineSchedule::zero_bubble, at_once = PipelineSchedule::one_f_one_b;
  EXPECT_EQ(gathers(later, 0) - gathers(at_once, 0), 2 * 2 * 4);  // an attention and an MLP
}

TEST(Pipelines, HaveTheBitsOfTheSameDataAxisAtEveryStageOfZero) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"})
    for (int stage = 0; stage <= 3; ++stage)
      for (const bool overlap : {true, false}) {
        EngineOptions options = staged_options(2 + stage % 2);
        options.zero.stage = stage;
        options.zero.overlap = overlap;
        options.zero.reduce_bucket_elems = overlap ? 500000 : 0;
        expect_bits_of_one_stage(staged_model(preset), options, 2);
      }
}

TEST(Pipelines, HaveTheBitsOfTheSameTensorAxis) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"})
    for (const int data : {1, 2}) {
      EngineOptions options = staged_options(3);
      options.tensor = 2;
      options.zero.stage = data == 2 ? 3 : 0;
      expect_bits_of_one_stage(staged_model(preset), options, 2 * data);
    }
}

TEST(Pipelines, ComputeAgainWithTheSameBits) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"})
    for (const Recompute& again : {Recompute(true), Recompute(1, 3)}) {
      EngineOptions options = staged_options(3, 4);
      options.recompute = again;
      expect_bits_of_one_stage(staged_model(preset), options);
    }
}

TEST(Pipelines, HaveTheBitsInEveryPrecision) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"})
    for (const bool master : {true, false}) {
      EngineOptions options = staged_options(3);
      options.precision.compute = options.precision.gradients = DType::bf16;
      options.precision.master = master;
      expect_bits_of_one_stage(staged_model(preset), options);
      options.zero.stage = 2;
      options.precision.gradients = DType::f32;
      options.precision.moments = DType::u8;
      expect_bits_of_one_stage(staged_model(preset), options, 2);
    }
}

TEST(Pipelines, FollowTheLossScaleOfOneRank) {
  EngineOptions options = staged_options(2);
  options.precision.compute = options.precision.gradients = DType::f16;
  options.loss_scale.initial_power = 24;  // overflows at first
  options.skip_overflow = true;
  expect_bits_of_one_stage(staged_model("gpt2-tiny"), options, 1, 8);
}

TEST(Pipelines, ClipByEveryRule) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"})
    for (int rule = 0; rule < 4; ++rule) {
      EngineOptions options = staged_options(3);
      options.clipping = 0.05;
      if (rule == 0) options.clip_rule.of = ClipRule::Of::unit;
      if (rule == 1) options.clip_rule.of = ClipRule::Of::tensor;
      if (rule == 2) options.clip_rule.adaptive = true;
      if (rule == 3) options.clip_rule.value = 1e-4;
      expect_bits_of_one_stage(staged_model(preset), options);
    }
}

TEST(Pipelines, StepWithEveryKindOfOptimizer) {
  using Type = OptimizerSpec::Type;
  for (const Type type : {Type::sgd, Type::lamb, Type::adafactor, Type::muon})
    for (const int data : {1, 2}) {
      EngineOptions options = staged_options(3, 2);
      options.optimizer.type = type;
      options.zero.stage = data == 1 ? 0 : 1;
      expect_bits_of_one_stage(staged_model("gpt2-tiny"), options, data);
    }
}

TEST(Pipelines, LeaveFrozenUnitsAlone) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"})
    for (const std::vector<std::string>& frozen : {std::vector<std::string>{"embedding"},
                                                   {"embedding", "block.0", "block.1"},
                                                   {"block.2", "head"},
                                                   {"block.*", "head"}}) {
      EngineOptions options = staged_options(4);
      options.frozen = frozen;
      expect_bits_of_one_stage(staged_model(preset), options);
    }
}

TEST(Pipelines, TrainAdapters) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"}) {
    ModelSpec spec = staged_model(preset);
    spec.lora = {.rank = 3, .alpha = 5, .dropout = 0.1f, .targets = {"all-linear"}};
    EngineOptions options = staged_options(3);
    options.zero.stage = 3;
    expect_bits_of_one_stage(spec, options, 2);
  }
}

TEST(Pipelines, KeepStateOnOtherTiers) {
  EngineOptions options = staged_options(3);
  options.offload.optimizer = options.offload.parameters = options.offload.activations = Tier::host;
  expect_bits_of_one_stage(staged_model("llama-tiny"), options);
  options.zero.stage = 3;
  expect_bits_of_one_stage(staged_model("llama-tiny"), options, 2);
  options.offload.optimizer = Tier::device;  // a tied table's gradient stays
  expect_bits_of_one_stage(staged_model("gpt2-tiny"), options, 2);
}

TEST(Pipelines, EvaluateWithTheBitsOfOneRankOnEveryStage) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"}) {
    const ModelSpec spec = staged_model(preset);
    const EngineOptions options = staged_options(3);
    const test::OwnedBatch batch = test::random_batch(2, 11, 101, 7);
    EngineOptions alone = options;
    alone.pipeline = {};
    Engine one(spec, alone);
    const std::vector<float> losses = one.token_losses(batch.view());
    const auto sum = one.evaluate(batch.view());
    test::on_ranks(3, [&](int, std::shared_ptr<Communicator> communicator) {
      Engine engine(spec, options, std::move(communicator));
      EXPECT_EQ(engine.token_losses(batch.view()), losses);
      EXPECT_EQ(engine.evaluate(batch.view()), sum);
    });
  }
}

TEST(Pipelines, KeepTheGradientsOfOneRank) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"}) {
    const ModelSpec spec = staged_model(preset);
    EngineOptions options = staged_options(4);
    options.keep_gradients = true;
    const auto gradients_of = [&](const EngineOptions& of, int ranks) {
      test::Weights gradients;
      std::mutex mutex;
      test::on_ranks(ranks, [&](int rank, std::shared_ptr<Communicator> communicator) {
        Engine engine(spec, of, std::move(communicator));
        test::train_step(engine);
        test::Weights mine;
        test::for_each_gradient(engine, [&](const ParamSpec& param, std::span<const float> values) {
          mine[param.name].assign(values.begin(), values.end());
        });
        const std::lock_guard lock(mutex);
        if (rank == ranks - 1) gradients = mine;
      });
      return gradients;
    };
    EngineOptions alone = options;
    alone.pipeline = {};
    test::expect_same_bits(gradients_of(options, 4), gradients_of(alone, 1));
  }
}

// The table of a tied head is on the first and the last stage, and stays the same.
TEST(Pipelines, CopiesOfATiedTableStayTheSame) {
  const ModelSpec spec = staged_model("gpt2-tiny");
  EngineOptions options = staged_options(3);
  options.precision.compute = options.precision.gradients = DType::bf16;
  options.precision.master = false;  // rounded by random numbers
  std::vector<std::vector<uint16_t>> tables(3);
  test::on_ranks(3, [&](int rank, std::shared_ptr<Communicator> communicator) {
    Engine engine(spec, options, std::move(communicator));
    for (int step = 0; step < 5; ++step) test::train_step(engine);
    const UnitState& own = engine.state().unit(0);
    if (own.layout().params().empty()) return;
    const Tensor table = own.param(0);
    const auto* bits = static_cast<const uint16_t*>(table.data);
    tables[static_cast<size_t>(rank)].assign(bits, bits + table.elems());
  });
  EXPECT_FALSE(tables[0].empty());
  EXPECT_TRUE(tables[1].empty());
  EXPECT_EQ(tables[0], tables[2]);
}

// Each stage holds its own units' state, and the last a copy of a tied table.
TEST(Pipelines, DivideTheState) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"}) {
    const ModelSpec spec = staged_model(preset);
    const EngineOptions options = staged_options(4);
    const Model model(spec);
    StateBytes sum;
    for (int place = 0; place < 4; ++place) {
      const StateBytes one = state_bytes(
          unit_traits(model, options, 4, pipeline_of(spec, options, place)), options, 4);
      sum.parameters += one.parameters;
      sum.gradients += one.gradients;
      sum.optimizer += one.optimizer;
    }
    EngineOptions alone = options;
    alone.pipeline = {};
    const std::vector<UnitTraits> units = unit_traits(model, alone, 1);
    const StateBytes whole = state_bytes(units, alone, 1);
    EXPECT_EQ(sum.total(),
              whole.total() + (spec.tie_embeddings ? units[0].elems * int64_t{16} : 0));
  }
}

// Of equal stages: one forward's inputs and what it saves, for as many micro-batches as the
// schedule has under way.
TEST(Pipelines, HoldTheActivationsOfTheirSchedule) {
  ModelSpec spec = staged_model("llama-tiny");
  spec.num_layers = 8;
  constexpr int kStages = 4;
  const auto held = [&](PipelineSchedule schedule, int micros, int place) {
    EngineOptions options = staged_options(kStages, micros, schedule);
    options.pipeline.units = {5, 4, 4, 5};
    return Engine::plan(spec, options, kStages, 0, {}, place)
        ->ledger()
        .peak_bytes(Kind::activations);
  };
  for (int place = 0; place < kStages; ++place) {
    // GPipe's grow with the micro-batches, by the same for each.
    const int64_t each =
        held(PipelineSchedule::gpipe, 9, place) - held(PipelineSchedule::gpipe, 8, place);
    EXPECT_GT(each, 0);
    EXPECT_EQ(held(PipelineSchedule::gpipe, 16, place),
              held(PipelineSchedule::gpipe, 8, place) + 8 * each);
    // 1F1B's do not, and are those of as many as there are stages from here on.
    const auto one_f_one_b = PipelineSchedule::one_f_one_b;
    EXPECT_EQ(held(one_f_one_b, 16, place), held(one_f_one_b, kStages, place)) << place;
    const auto zero_bubble = PipelineSchedule::zero_bubble;
    EXPECT_EQ(held(zero_bubble, 16, place), held(zero_bubble, 2 * kStages, place)) << place;
    EXPECT_LE(held(one_f_one_b, 16, place),
              held(PipelineSchedule::gpipe, kStages - place, place) + 2 * spec.hidden_size * 22 * 4)
        << place;
  }
}

TEST(Pipelines, AreDividedByCost) {
  EXPECT_EQ(divided({1, 1, 1, 1}, 2), (std::vector<int>{0, 2, 4}));
  EXPECT_EQ(divided({0, 1, 1, 1, 1, 4}, 2), (std::vector<int>{0, 5, 6}));
  EXPECT_EQ(divided({5, 1, 1, 1}, 4), (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(divided({9, 1, 1, 1, 1, 9}, 3), (std::vector<int>{0, 1, 5, 6}));
  const ModelSpec spec = staged_model("gpt2-tiny");
  EngineOptions options = staged_options(2);
  const Model model(spec);
  // A table that is looked up costs nothing, the same one in the head does.
  EXPECT_EQ(unit_costs(model, options)[0], 0);
  EXPECT_GE(unit_costs(model, options).back(), 2.0 * 101 * 24);
  options.pipeline.by = PipelineOptions::By::parameters;
  EXPECT_GE(unit_costs(model, options)[0], 101.0 * 24);
  options.pipeline.units = {3, 5};
  EXPECT_EQ(pipeline_of(spec, options, 0).first, (std::vector<int>{0, 3, 8}));
}

TEST(Pipelines, ThatCannotBeAreRefusedWithAllReasons) {
  const ModelSpec spec = staged_model("gpt2-tiny");
  EXPECT_EQ(obstacle_to_pipeline(spec, staged_options(8)), "");
  EngineOptions options = staged_options(9);
  options.order = Order::unit_first;
  options.offload.optimizer = Tier::host;
  options.pipeline.units = {4, 4};
  const std::string why = obstacle_to_pipeline(spec, options);
  for (const char* part : {"mesh.pipeline is 9", "8 units", "2 numbers that add up to 8",
                           "run.accumulate is unit_first", "zero_optimization.offload_optimizer"})
    EXPECT_TRUE(contains(why, part)) << part << " in " << why;
  EXPECT_ERROR(test::train_on_ranks(spec, staged_options(9), 9, 1), "mesh.pipeline is 9");
  options = staged_options(3, 4, PipelineSchedule::zero_bubble);
  options.tensor = 2;
  options.offload.parameters = Tier::host;
  options.sequence_parallel = true;
  EXPECT_TRUE(
      contains(obstacle_to_pipeline(spec, options), "zb-h1 keeps everything on the device"));
  options = staged_options(3, 4, PipelineSchedule::gpipe);
  options.pipeline.interleave = 3;
  for (const char* part :
       {"8 units", "9 stages (pipeline.interleave 3)", "1f1b (pipeline.schedule)", "groups of 3",
        "gradient_accumulation_steps is 4"})
    EXPECT_TRUE(contains(obstacle_to_pipeline(spec, options), part)) << part;
}

// What is not finite is named with the unit that it began in, by every rank.
TEST(Pipelines, NameWhatIsNotFinite) {
  const ModelSpec spec = staged_model("llama-tiny");
  EngineOptions options = staged_options(4);
  options.initial = [&](const ParamSpec& param, int64_t first, std::span<float> dst) {
    initialise(param, spec, 1, first, dst);
    if (param.name == "block.1.mlp.down.weight" && first == 0) dst[0] = 1e38f;
    if (param.name == "block.1.mlp.up.weight" && first == 0) dst[0] = 1e30f;
  };
  for (const int stages : {2, 4}) {
    options.pipeline.ranks = stages;
    const std::string text = error_text([&] { test::train_on_ranks(spec, options, stages, 1); });
    EXPECT_TRUE(contains(text, "step 1, micro-batch 0")) << text;
    EXPECT_TRUE(contains(text, "unit block.1.mlp")) << text;
  }
}

// Whatever one rank is doing when it fails, leaves or hangs, all end in time and say who it was; of
// one that hangs, or of one that waits for it.
TEST(PipelineFaults, EndAllRanksWithTheName) {
  const ModelSpec spec = staged_model("gpt2-tiny");
  std::mt19937 random(1);
  const auto below = [&](size_t count) {
    return static_cast<int>(random() % static_cast<unsigned>(count));
  };
  constexpr int kFaults = 24;
  for (int fault = 0; fault < kFaults; ++fault) {
    const int kind = fault % 3 == 2 && fault > 9 ? 0 : fault % 3;  // few hang: each takes its time
    const int data = 1 + fault % 2, ranks = data * (2 + below(2)), failing = below(size_t(ranks));
    EngineOptions options = staged_options(ranks / data, 4, kPipelineSchedules[below(2)]);
    options.zero.stage = below(4);
    const int at = below(120);
    std::vector<std::string> errors(static_cast<size_t>(ranks));
    std::atomic<int> ended{0};
    const double begin = now_seconds();
    struct Leaves {};
    LocalGroup group(ranks, {.timeout_seconds = kind == 2 ? 0.3 : 30.0});
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        EngineOptions own = options;
        if (rank == failing)
          own.before_action = [&, seen = 0](const Action&) mutable {
            if (seen++ != at) return;
            if (kind == 0) throw std::runtime_error("as the test asks");
            if (kind == 1) throw Leaves();
            while (ended < ranks - 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          };
        try {
          Engine engine(spec, own, group.join(rank));
          for (int step = 0; step < 8; ++step) test::train_step(engine);
          errors[static_cast<size_t>(rank)] = "nothing";
        } catch (const Leaves&) {
          errors[static_cast<size_t>(rank)] = "left";
        } catch (const std::exception& error) {
          errors[static_cast<size_t>(rank)] = error.what();
        }
        ++ended;
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_LT(now_seconds() - begin, 10);
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == failing) continue;
      const std::string& error = errors[static_cast<size_t>(rank)];
      SCOPED_TRACE(fmt::format("fault {} of kind {}: rank {} of {}, action {}", fault, kind,
                               failing, ranks, at));
      EXPECT_TRUE(contains(error, kind == 0   ? fmt::format("rank {} failed: as the test", failing)
                                  : kind == 1 ? fmt::format("rank {} left before", failing)
                                              : std::string("did not reach")))
          << "rank " << rank << ": " << error;
    }
  }
}

}  // namespace
}  // namespace onefold
