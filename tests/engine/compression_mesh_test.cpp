// Gradients and weights in wire formats beside the other axes of the mesh: bits repeat, over ZeRO's
// stages too; what several ranks hold alike stays alike; the plan is the run.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>
#include <set>

#include "engine/compressions.h"
#include "engine/copies.h"
#include "engine/lines.h"
#include "engine/ranks.h"
#include "error_text.h"

namespace onefold {
namespace {

using test::NamedCompression;
using test::RankRun;
using Type = WireFormat::Type;

struct PackedMesh {
  const char* name;
  int tensor = 1, context = 1, expert = 1, pipeline = 1, data = 2;
  bool sequence_parallel = false;
  int ranks() const { return tensor * context * expert * pipeline * data; }
};
void PrintTo(const PackedMesh& one, std::ostream* out) { *out << one.name; }

const PackedMesh kPackedTensor{.name = "Tensor", .tensor = 2};
const PackedMesh kPackedPipeline{.name = "Pipeline", .pipeline = 2};
const PackedMesh kPackedExpertTensor{.name = "ExpertTensor", .tensor = 2, .expert = 2};

std::vector<PackedMesh> packed_meshes() {
  if (test::test_device_name() != "cpu")
    return {{.name = "Context", .context = 2}, kPackedPipeline};
  return {kPackedTensor,
          {.name = "TensorOfFour", .tensor = 4},  // of two key heads
          {.name = "SequenceParallel", .tensor = 2, .sequence_parallel = true},
          {.name = "Context", .context = 2},
          {.name = "ContextTensor", .tensor = 2, .context = 2},
          {.name = "Expert", .expert = 2},
          {.name = "ExpertAlone", .expert = 4, .data = 1},  // experts that nobody else has
          kPackedExpertTensor,
          kPackedPipeline,
          {.name = "PipelineTensor", .tensor = 2, .pipeline = 2},
          {.name = "PipelineExpert", .expert = 2, .pipeline = 2}};
}

// Awkward sizes: shares of unequal widths, a vocabulary that nothing divides, and in the pipeline a
// table of two stages.
ModelSpec mesh_model(const PackedMesh& mesh) {
  ModelSpec spec = spec_from_preset(mesh.expert > 1     ? "mixtral-tiny"
                                    : mesh.pipeline > 1 ? "gpt2-tiny"
                                                        : "llama-tiny",
                                    "test");
  spec.vocab_size = 101;
  spec.num_layers = 2;
  spec.num_heads = 4;
  spec.num_kv_heads = mesh.pipeline > 1 && mesh.expert == 1 ? 4 : 2;
  spec.head_dim = 6;
  spec.hidden_size = 24;
  spec.intermediate_size = 47;
  if (mesh.expert == 1) return spec;
  spec.experts = {.count = 4, .intermediate_size = 17, .shared_intermediate_size = 13};
  spec.experts.per_token = 2;
  spec.experts.dense_blocks = {0};
  return spec;
}

EngineOptions mesh_options(const PackedMesh& mesh, const CompressionOptions& compression,
                           int stage) {
  EngineOptions options{.device = test::test_device_name(),
                        .tensor = mesh.tensor,
                        .sequence_parallel = mesh.sequence_parallel,
                        .context = mesh.context,
                        .expert = mesh.expert,
                        .threads = 1,
                        .micro_batch = 1,
                        .sequence = 12};
  options.pipeline.ranks = mesh.pipeline;
  options.micros = 2;
  options.clipping = 1.0;
  options.zero.stage = stage;
  options.zero.persistence_elems = 0;
  options.compression = compression;
  if (compression.corrects_momentum && compression.whole_steps == 0)
    options.optimizer = {.type = OptimizerSpec::Type::sgd};
  return options;
}

CompressionOptions only_gradients_in(const WireFormat& format) {
  CompressionOptions compression;
  compression.gradients = format;
  return compression;
}

// By element of a whole parameter, the bits that ranks have of it.
using Held = std::map<std::pair<std::string, int64_t>, std::set<uint32_t>>;

// Trains, and looks at all that every rank has of parameters that are whole on the data axis.
Held held_after(const PackedMesh& mesh, const ModelSpec& spec, const EngineOptions& options,
                int steps) {
  Held held;
  std::mutex mutex;
  test::on_ranks(mesh.ranks(), [&](int, std::shared_ptr<Communicator> communicator) {
    Engine engine(spec, options, std::move(communicator));
    for (int step = 0; step < steps; ++step) test::train_step(engine);
    const std::lock_guard lock(mutex);
    const RankState& state = std::as_const(engine).state();
    for (int u = 0; u < state.units(); ++u) {
      const UnitState& own = state.unit(u);
      for (size_t p = 0; p < own.layout().params().size(); ++p) {
        const ParamSpec &here = own.layout().params()[p], &whole = state.whole_params(u)[p];
        const Tensor parameter = own.param(static_cast<int>(p));
        std::vector<float> values(static_cast<size_t>(parameter.elems()));
        download(engine.device(), parameter.flat(), std::span(values));
        for_each_run(here, whole.cols, 0, here.elems(), [&](int64_t at, int64_t to, int64_t elems) {
          for (int64_t i = 0; i < elems; ++i)
            held[{whole.name, to + i}].insert(
                std::bit_cast<uint32_t>(values[static_cast<size_t>(at + i)]));
        });
      }
    }
  });
  return held;
}

void expect_one_value(const Held& held) {
  std::map<std::string, int> different;
  for (const auto& [place, values] : held) different[place.first] += values.size() > 1;
  for (const auto& [name, count] : different) EXPECT_EQ(count, 0) << name;
}

class CompressedMeshes : public testing::TestWithParam<PackedMesh> {};

// Formats whose packets follow from one element, from a block, from all of a shard, and from draws;
// momentum of ranks' own; densities by unit.
std::vector<NamedCompression> some_compressions(const PackedMesh& mesh) {
  std::vector<NamedCompression> some;
  for (NamedCompression one : test::all_compressions()) {
    const std::string name = one.name;
    if (test::test_device_name() != "cpu" && name == "rows") continue;
    if (name == "dgc") one.options.correction.limit = 0;
    if (one.options.corrects_momentum && mesh.expert > 1 && mesh.data == 1) continue;
    if (name == "int8" || name == "int4_drawn_lost" || name == "rows" || name == "randomk" ||
        name == "adaptive" || name == "dgc" || name == "one_bit")
      some.push_back(one);
  }
  return some;
}

TEST_P(CompressedMeshes, HaveTheSameBitsAtEveryStageAsPlannedAndCopiesStayAlike) {
  const PackedMesh& mesh = GetParam();
  for (const NamedCompression& named : some_compressions(mesh)) {
    SCOPED_TRACE(named.name);
    constexpr int kSteps = 4;
    const EngineOptions first = mesh_options(mesh, named.options, 0);
    const RankRun reference = test::train_on_ranks(mesh_model(mesh), first, mesh.ranks(), kSteps);
    expect_one_value(held_after(mesh, mesh_model(mesh), first, kSteps));
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(stage);
      EngineOptions options = mesh_options(mesh, named.options, stage);
      options.zero.reduce_bucket_elems = stage == 1 ? 0 : stage == 2 ? 5000 : 1 << 30;
      options.zero.overlap = stage != 2;
      const RankRun run = test::train_on_ranks(mesh_model(mesh), options, mesh.ranks(), kSteps);
      EXPECT_EQ(run.losses, reference.losses);
      EXPECT_EQ(run.norms, reference.norms);
      test::expect_same_bits(run.weights, reference.weights);
      test::expect_planned(mesh_model(mesh), options, mesh.ranks(), run, test::test_hardware());
    }
  }
}

// What it learns is what it learns without, but for what packets lack.
TEST_P(CompressedMeshes, LearnAboutWhatTheyLearnWithoutPackets) {
  const PackedMesh& mesh = GetParam();
  const auto run_with = [&](const CompressionOptions& compression) {
    return test::train_on_ranks(mesh_model(mesh), mesh_options(mesh, compression, 1), mesh.ranks(),
                                20);
  };
  const RankRun whole = run_with({}), packed = run_with(only_gradients_in({.type = Type::int8}));
  EXPECT_NE(whole.losses, packed.losses);
  EXPECT_LT(test::distance(packed.weights, whole.weights), 0.1);
  for (size_t i = 0; i < whole.losses.size(); ++i)
    EXPECT_NEAR(packed.losses[i], whole.losses[i], 0.01 * whole.losses[i]) << i;
}

// A packet of everything loses nothing, and nor do copies beside it.
TEST_P(CompressedMeshes, SendingEverythingHasTheBitsOfNoPackets) {
  const PackedMesh& mesh = GetParam();
  for (const int stage : {0, 3})
    test::expect_same_bits(
        test::train_on_ranks(
            mesh_model(mesh),
            mesh_options(mesh, only_gradients_in({.type = Type::topk, .density = 1}), stage),
            mesh.ranks(), 3)
            .weights,
        test::train_on_ranks(mesh_model(mesh), mesh_options(mesh, {}, stage), mesh.ranks(), 3)
            .weights);
}

// Every rank computes with the same decoded weights of what several have.
TEST_P(CompressedMeshes, GatherWeightsThatStayAlike) {
  const PackedMesh& mesh = GetParam();
  CompressionOptions int8 = only_gradients_in({.type = Type::int4});
  int8.weights = {.type = Type::int8};
  EngineOptions options = mesh_options(mesh, int8, 3);
  const RankRun first = test::train_on_ranks(mesh_model(mesh), options, mesh.ranks(), 4);
  options.zero.prefetch_elems = 1 << 30;
  options.zero.overlap = false;
  const RankRun run = test::train_on_ranks(mesh_model(mesh), options, mesh.ranks(), 4);
  test::expect_same_bits(run.weights, first.weights);
  test::expect_planned(mesh_model(mesh), options, mesh.ranks(), run, test::test_hardware());
  const RankRun whole =
      test::train_on_ranks(mesh_model(mesh), mesh_options(mesh, {}, 3), mesh.ranks(), 4);
  EXPECT_NE(whole.losses, run.losses);
  for (size_t i = 0; i < whole.losses.size(); ++i)
    EXPECT_NEAR(run.losses[i], whole.losses[i], 0.02 * whole.losses[i]) << i;
}

INSTANTIATE_TEST_SUITE_P(Axes, CompressedMeshes, testing::ValuesIn(packed_meshes()),
                         [](const auto& info) { return std::string(info.param.name); });

class CompressedTensors : public testing::TestWithParam<NamedCompression> {};

TEST_P(CompressedTensors, KeepCopiesAlikeAndBitsAtEveryStage) {
  CompressionOptions compression = GetParam().options;
  compression.correction.limit = 0;
  const EngineOptions first = mesh_options(kPackedTensor, compression, 0);
  expect_one_value(held_after(kPackedTensor, mesh_model(kPackedTensor), first, 6));
  const RankRun reference = test::train_on_ranks(mesh_model(kPackedTensor), first, 4, 3);
  for (const int stage : {1, 3}) {
    const EngineOptions options = mesh_options(kPackedTensor, compression, stage);
    const RankRun run = test::train_on_ranks(mesh_model(kPackedTensor), options, 4, 3);
    EXPECT_EQ(run.losses, reference.losses);
    test::expect_same_bits(run.weights, reference.weights);
    test::expect_planned(mesh_model(kPackedTensor), options, 4, run, test::test_hardware());
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, CompressedTensors, testing::ValuesIn(test::all_compressions()),
                         [](const auto& info) { return std::string(info.param.name); });

// A unit's packets are the same, whichever stage it is of; but densities by unit are of a rank's.
TEST(CompressedPipelines, HaveTheBitsOfTheSameMeshWithoutStages) {
  for (PackedMesh mesh : {kPackedPipeline, PackedMesh{.name = "", .tensor = 2, .pipeline = 2}}) {
    const ModelSpec spec = mesh_model(mesh);
    for (const NamedCompression& named : some_compressions(mesh)) {
      if (named.options.adaptive) continue;
      SCOPED_TRACE(named.name);
      mesh.pipeline = 2;
      const RankRun run =
          test::train_on_ranks(spec, mesh_options(mesh, named.options, 1), mesh.ranks(), 3);
      mesh.pipeline = 1;
      const RankRun one =
          test::train_on_ranks(spec, mesh_options(mesh, named.options, 1), mesh.ranks(), 3);
      EXPECT_EQ(run.losses, one.losses);
      test::expect_same_bits(run.weights, one.weights);
    }
  }
}

// Long enough for anything that differs to grow.
TEST(CompressedCopies, AreAlikeAfterFiftySteps) {
  for (const PackedMesh& mesh : packed_meshes()) {
    SCOPED_TRACE(mesh.name);
    for (const Type type : {Type::int8, Type::sign})
      expect_one_value(held_after(mesh, mesh_model(mesh),
                                  mesh_options(mesh, only_gradients_in({.type = type}), 2), 50));
  }
}

// One of an adapter's two matrices is divided, and the other is not.
TEST(CompressedCopies, OfAdaptersAreAlike) {
  ModelSpec spec = mesh_model(kPackedTensor);
  spec.lora = {.rank = 3, .alpha = 6, .targets = {"all-linear"}};
  for (const Type type : {Type::int8, Type::topk}) {
    const EngineOptions first =
        mesh_options(kPackedTensor, only_gradients_in({.type = type, .density = 0.1}), 0);
    expect_one_value(held_after(kPackedTensor, spec, first, 10));
    const RankRun reference = test::train_on_ranks(spec, first, 4, 3);
    for (const int stage : {1, 3}) {
      EngineOptions options = first;
      options.zero.stage = stage;
      const RankRun run = test::train_on_ranks(spec, options, 4, 3);
      test::expect_same_bits(run.weights, reference.weights);
      test::expect_planned(spec, options, 4, run, test::test_hardware());
    }
  }
}

// However a step is computed, and wherever state lives.
TEST(CompressedCopies, DoNotDependOnHowAStepIsComputed) {
  const ModelSpec spec = mesh_model(kPackedTensor);
  const EngineOptions first =
      mesh_options(kPackedTensor, only_gradients_in({.type = Type::int4}), 2);
  const RankRun reference = test::train_on_ranks(spec, first, 4, 3);
  std::vector<EngineOptions> others(4, first);
  others[0].offload.optimizer = Tier::host;
  others[1].order = Order::unit_first;
  others[2].recompute = true;
  others[3].overlap_chunks = 2;
  for (const EngineOptions& options : others) {
    const RankRun run = test::train_on_ranks(spec, options, 4, 3);
    test::expect_same_bits(run.weights, reference.weights);
    test::expect_planned(spec, options, 4, run, test::test_hardware());
  }
  const ModelSpec staged = mesh_model(kPackedPipeline);
  const RankRun turns =
      test::train_on_ranks(staged, mesh_options(kPackedPipeline, first.compression, 2), 4, 3);
  for (const PipelineSchedule schedule : kPipelineSchedules) {
    EngineOptions options = mesh_options(kPackedPipeline, first.compression, 2);
    options.pipeline.schedule = schedule;
    test::expect_same_bits(test::train_on_ranks(staged, options, 4, 3).weights, turns.weights);
  }
}

// Steps whose gradients are too large change nothing on any rank, and what is kept stays alike.
TEST(CompressedCopies, StayAlikeWhereStepsAreSkipped) {
  for (const PackedMesh& mesh : packed_meshes()) {
    SCOPED_TRACE(mesh.name);
    for (const bool momentum : {false, true}) {
      CompressionOptions compression = only_gradients_in({.type = Type::topk, .density = 0.1});
      compression.corrects_momentum = momentum && mesh.data > 1;
      compression.correction = {.momentum = 0.9f, .share = 1.0f, .masks = true};
      EngineOptions options = mesh_options(mesh, compression, 1);
      options.skip_overflow = true;
      options.loss_scale = {.fixed = 0, .initial_power = 136, .window = 3};
      expect_one_value(held_after(mesh, mesh_model(mesh), options, 30));
      if (mesh.tensor == 1 || momentum) continue;
      const std::vector<double> norms =
          test::train_on_ranks(mesh_model(mesh), options, mesh.ranks(), 30).norms;
      const auto skipped = std::count_if(norms.begin(), norms.end(),
                                         [](double norm) { return !std::isfinite(norm); });
      EXPECT_TRUE(skipped > 3 && skipped < 25) << skipped;
    }
  }
}

TEST(CompressedCopies, OfSixteenBitsAreAlike) {
  for (const int stage : {0, 2}) {
    EngineOptions options =
        mesh_options(kPackedTensor, only_gradients_in({.type = Type::int8}), stage);
    options.precision = {.compute = DType::bf16, .gradients = DType::bf16};
    const RankRun first = test::train_on_ranks(mesh_model(kPackedTensor), options, 4, 3);
    options.zero.stage = 3;
    test::expect_same_bits(test::train_on_ranks(mesh_model(kPackedTensor), options, 4, 3).weights,
                           first.weights);
  }
}

TEST(CompressedCopies, AreWhatNoOtherPartHas) {
  const PackedMesh four{.name = "", .tensor = 4};
  const EngineOptions options = mesh_options(four, {}, 0);
  const Model model = model_of(mesh_model(four), options);
  const auto elems = [&](size_t unit) {
    int64_t sum = 0;
    for (const SlabRun& run : copies_of(SlabLayout(model.units[unit]->params(), 2), true))
      sum += run.end - run.begin;
    return sum;
  };
  EXPECT_EQ(elems(0), 0);                // a table is divided
  EXPECT_EQ(elems(1), 24 + 2 * 6 * 24);  // a norm; a key and a value head, which two shares have
  EXPECT_EQ(elems(2), 24);               // a norm
}

int64_t bytes_of_reductions(const TrafficTable& table) {
  int64_t bytes = 0;
  for (const Traffic& traffic : table) bytes += traffic.bytes_sent;
  return bytes;
}

// By a formula that knows nothing of packets: int8 is a byte for each element and two for each
// block of 256 of each shard; a copy is 4 bytes, twice.
TEST(CompressedMeshVolume, IsThatOfTheFormula) {
  const EngineOptions options =
      mesh_options(kPackedTensor, only_gradients_in({.type = Type::int8}), 2);
  const Model share = model_of(mesh_model(kPackedTensor), options);
  int64_t expected = 0;
  for (const auto& unit : share.units) {
    const SlabLayout layout(unit->params(), 2);
    const int64_t shard = layout.shard_elems();
    expected += (shard + 2 * ((shard + 255) / 256) + 3) / 4 * 4;
    int64_t copies = 0;
    for (const SlabRun& run : copies_of(layout, true)) copies += run.end - run.begin;
    expected += 2 * 4 * ((copies + 1) / 2);
  }
  EngineOptions alone = options;
  alone.zero.reduce_bucket_elems = 0;  // of a bucket, copies are divided together
  const RankRun run = test::train_on_ranks(mesh_model(kPackedTensor), alone, 4, 1);
  EXPECT_EQ(bytes_of_reductions(run.traffic[static_cast<size_t>(Lane::reduce)]), expected);
  const auto plan = Engine::plan(mesh_model(kPackedTensor), alone, 4);
  EXPECT_EQ(bytes_of_reductions(plan->traffic(Lane::reduce)), expected);
}

// Tensor groups inside hosts: each share has a host's other ranks of it to sum with first.
TEST(CompressedHosts, BesideSharesHaveTheSameBitsAtEveryStageAsPlanned) {
  for (const PackedMesh& mesh : {PackedMesh{.name = "tensor", .tensor = 2, .data = 4},
                                 PackedMesh{.name = "pipeline", .pipeline = 2, .data = 4},
                                 PackedMesh{.name = "context", .context = 2, .data = 2}}) {
    SCOPED_TRACE(mesh.name);
    for (const Type type : {Type::int8, Type::topk}) {
      CompressionOptions compression = only_gradients_in({.type = type, .density = 0.05});
      compression.host_ranks = 2 * mesh.tensor;
      const EngineOptions first = mesh_options(mesh, compression, 0);
      expect_one_value(held_after(mesh, mesh_model(mesh), first, 4));
      const RankRun reference = test::train_on_ranks(mesh_model(mesh), first, mesh.ranks(), 3);
      for (const int stage : {1, 3}) {
        const EngineOptions options = mesh_options(mesh, compression, stage);
        const RankRun run = test::train_on_ranks(mesh_model(mesh), options, mesh.ranks(), 3);
        EXPECT_EQ(run.losses, reference.losses);
        test::expect_same_bits(run.weights, reference.weights);
        test::expect_planned(mesh_model(mesh), options, mesh.ranks(), run, test::test_hardware());
      }
    }
  }
}

// With a share of each host packets are all there are, as without hosts.
TEST(CompressedHosts, OfOneTensorGroupEachAreNone) {
  CompressionOptions without = only_gradients_in({.type = Type::int8}), with = without;
  with.host_ranks = 2;
  test::expect_same_bits(
      test::train_on_ranks(mesh_model(kPackedTensor), mesh_options(kPackedTensor, with, 1), 4, 3)
          .weights,
      test::train_on_ranks(mesh_model(kPackedTensor), mesh_options(kPackedTensor, without, 1), 4, 3)
          .weights);
}

TEST(CompressedMeshObstacles, SayWhatStandsInTheWay) {
  CompressionOptions clipped = only_gradients_in({.type = Type::topk});
  clipped.corrects_momentum = true;
  clipped.correction.limit = 1;
  for (const PackedMesh& mesh : {kPackedTensor, kPackedExpertTensor})
    EXPECT_ERROR(Engine::plan(mesh_model(mesh), mesh_options(mesh, clipped, 1), mesh.ranks()),
                 "no rank has all of a unit's gradient", "local_clipping");
  CompressionOptions momentum = clipped;
  momentum.correction.limit = 0;
  const PackedMesh alone{.name = "", .expert = 4, .data = 1};
  EXPECT_ERROR(Engine::plan(mesh_model(alone), mesh_options(alone, momentum, 1), 4),
               "gradients of experts do not travel");
  EngineOptions lamb = mesh_options(kPackedPipeline, momentum, 1);
  lamb.optimizer = {
      .type = OptimizerSpec::Type::lamb, .freeze_step = 1, .frozen_trust = FrozenTrust{}};
  EXPECT_ERROR(Engine::plan(mesh_model(kPackedPipeline), lamb, 4), "1-bit LAMB");
  CompressionOptions hosts = only_gradients_in({.type = Type::int8});
  hosts.host_ranks = 3;
  const PackedMesh six{.name = "", .tensor = 2, .data = 3};
  EXPECT_ERROR(Engine::plan(mesh_model(six), mesh_options(six, hosts, 1), 6), "ranks_per_host is 3",
               "a multiple of mesh.tensor, 2");
  hosts.host_ranks = 2;
  EXPECT_ERROR(
      Engine::plan(mesh_model(kPackedPipeline), mesh_options(kPackedPipeline, hosts, 1), 4),
      "of the 2 ranks of each stage");
  EXPECT_ERROR(
      Engine::plan(mesh_model(kPackedExpertTensor), mesh_options(kPackedExpertTensor, hosts, 1), 8),
      "with mesh.expert");
}

}  // namespace
}  // namespace onefold
