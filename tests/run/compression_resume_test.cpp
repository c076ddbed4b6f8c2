// Checkpoints of what ranks keep back: a run that was stopped has the bits of one that was not, and
// on other ranks nothing of it is lost.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "data/scratch.h"
#include "engine/compressions.h"
#include "error_text.h"
#include "run/saved_state.h"

namespace onefold {
namespace {

using test::all_compressions;
using test::expect_same_state;
using test::NamedCompression;
using test::on_ranks;
using test::State;
using test::StateCollector;

EngineOptions compressed_options(const CompressionOptions& compression, int stage) {
  EngineOptions options = test::options_of(stage);
  options.compression = compression;
  if (compression.corrects_momentum && compression.whole_steps == 0)
    options.optimizer = {.type = OptimizerSpec::Type::sgd};
  return options;
}

void compressed_step(Engine& engine) {
  test::OwnedBatch batch = test::random_rows(engine.steps_done() * engine.ranks() + engine.rank(),
                                             engine.options(), engine.model().spec.vocab_size);
  const BatchView view = batch.view();
  engine.train_step({&view, 1}, 1e-2);
}

// Steps, a checkpoint, and steps again: while it is written, as in a training.
State train_and_save(const EngineOptions& options, int ranks, int before,
                     const CheckpointFolder& folder, int after) {
  StateCollector collector;
  const ModelSpec spec = test::small_model();
  on_ranks(ranks, [&](int, std::shared_ptr<Communicator> communicator) {
    std::optional<CheckpointWriter> writer;
    EngineOptions own = options;
    own.before_action = [&writer](const Action& action) {
      if (writer) writer->before(action);
    };
    Engine engine(spec, own, std::move(communicator));
    for (int i = 0; i < before; ++i) compressed_step(engine);
    writer.emplace(engine, folder);
    writer->begin();
    for (int i = 0; i < after; ++i) compressed_step(engine);
    writer->wait();
    EXPECT_EQ(writer->finish({{"position", before}, {"model", spec.to_json()}}),
              std::vector<std::string>());
    collector.add(engine);
  });
  return collector.state();
}

State load_and_train(const EngineOptions& options, int ranks, const CheckpointFolder& folder,
                     int after) {
  StateCollector collector;
  on_ranks(ranks, [&](int, std::shared_ptr<Communicator> communicator) {
    Engine engine(test::small_model(), options, std::move(communicator));
    resume(engine, folder.list());
    for (int i = 0; i < after; ++i) compressed_step(engine);
    collector.add(engine);
  });
  return collector.state();
}

class CompressionResume : public testing::TestWithParam<NamedCompression> {};

TEST_P(CompressionResume, HasTheBitsOfARunThatWasNotStopped) {
  for (const int stage : {0, 2}) {
    const ScratchFolder scratch;
    const CheckpointFolder folder(scratch.path("checkpoints"));
    const EngineOptions options = compressed_options(GetParam().options, stage);
    const State whole = train_and_save(options, 2, 3, folder, 3);
    expect_same_state(load_and_train(options, 2, folder, 3), whole);
    // Another stage has the same bits too.
    EngineOptions other = options;
    other.zero.stage = 3;
    expect_same_state(load_and_train(other, 2, folder, 3), whole);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CompressionResume, testing::ValuesIn(all_compressions()),
                         [](const auto& info) { return std::string(info.param.name); });

EngineOptions one_bit_lamb(int stage) {
  CompressionOptions sign;
  sign.gradients = {.type = WireFormat::Type::sign};
  sign.whole_steps = 3;
  sign.corrects_momentum = true;
  sign.correction = {.momentum = 0.9f, .share = 0.1f, .masks = false};
  EngineOptions options = compressed_options(sign, stage);
  options.optimizer = {.type = OptimizerSpec::Type::lamb,
                       .eps = 1e-6,
                       .weight_decay = 0.1,
                       .bias_correction = false,
                       .freeze_step = 3,
                       .frozen_trust = FrozenTrust{}};
  return options;
}

// Before ratios stay, at that point, and after it.
TEST(OneBitLambResume, HasTheBitsOfARunThatWasNotStopped) {
  for (const int before : {2, 3, 4, 5})
    for (const int stage : {0, 2}) {
      const ScratchFolder scratch;
      const CheckpointFolder folder(scratch.path("checkpoints"));
      const State whole = train_and_save(one_bit_lamb(stage), 2, before, folder, 4);
      expect_same_state(load_and_train(one_bit_lamb(stage), 2, folder, 4), whole);
      expect_same_state(load_and_train(one_bit_lamb(3 - stage), 2, folder, 4), whole);
    }
}

// One rank has sent nothing, and has no momentum of its own: those that go on begin with equal
// parts of the optimizer's, as they do at the end of a warm-up. With packets that lack nothing they
// step as a run without compression does.
TEST(OneBitLambResume, FromOneRankGoesOnWithTheOptimizersMomentum) {
  CompressionOptions all = one_bit_lamb(1).compression;
  all.gradients = {.type = WireFormat::Type::topk, .density = 1};
  for (const bool lamb : {true, false}) {
    EngineOptions plain = one_bit_lamb(1), packed = plain;
    if (!lamb) plain.optimizer = packed.optimizer = {.eps = 1e-6, .freeze_step = 3};
    plain.compression = {};
    packed.compression = all;
    const ScratchFolder scratch;
    const CheckpointFolder folder(scratch.path("checkpoints"));
    train_and_save(plain, 1, 6, folder, 0);
    const State expected = load_and_train(plain, 2, folder, 2),
                found = load_and_train(packed, 2, folder, 2);
    for (const auto& [name, values] : expected)
      for (size_t i = 0; name.starts_with("moment1/") && i < values.size(); ++i)
        ASSERT_NEAR(found.at(name)[i], values[i], 1e-6) << name;
  }
}

// The mean of all tensors' root mean squares over a tensor's own, of the momentum at the end of the
// warm-up.
TEST(OneBitLambResume, MomentumIsBroughtToOneSizeAtTheEndOfTheWarmup) {
  const ScratchFolder scratch;
  const CheckpointFolder folder(scratch.path("checkpoints"));
  const State warm = train_and_save(one_bit_lamb(1), 2, 3, folder, 0),
              later = load_and_train(one_bit_lamb(1), 2, folder, 3);
  std::map<std::string, double> sizes;
  double mean = 0;
  for (const auto& [name, values] : warm) {
    if (!name.starts_with("moment1/")) continue;
    double squares = 0;
    for (const float value : values) squares += double{value} * value;
    sizes[name.substr(name.find('/'))] = std::sqrt(squares / static_cast<double>(values.size()));
  }
  for (const auto& [name, size] : sizes) mean += size / static_cast<double>(sizes.size());
  ASSERT_GT(mean, 0);
  for (const auto& [name, size] : sizes) {
    EXPECT_EQ(warm.at("ratios" + name)[kMomentumScale], 0) << name;
    EXPECT_NEAR(later.at("ratios" + name)[kMomentumScale], mean / size, 1e-6 * mean / size) << name;
  }
}

// The loss scale doubles every second step, and what is kept is saved in that of the next.
TEST(ResumeOfScaledPackets, WithALossScaleThatChangesHasTheBitsOfARunThatWasNotStopped) {
  CompressionOptions sign;
  sign.gradients = {.type = WireFormat::Type::sign};
  for (const int before : {2, 3}) {
    const ScratchFolder scratch;
    const CheckpointFolder folder(scratch.path("checkpoints"));
    EngineOptions options = compressed_options(sign, 2);
    options.precision = {.compute = DType::f16};
    options.skip_overflow = true;
    options.loss_scale = {.fixed = 0, .initial_power = 8, .window = 2};
    const State whole = train_and_save(options, 2, before, folder, 4);
    expect_same_state(load_and_train(options, 2, folder, 4), whole);
  }
}

TEST(DelayResume, HasTheBitsOfARunThatWasNotStopped) {
  for (const double lookahead : {0.0, 1.5})
    for (const int stage : {0, 2}) {
      const ScratchFolder scratch;
      const CheckpointFolder folder(scratch.path("checkpoints"));
      EngineOptions options = compressed_options({}, stage);
      options.optimizer.delayed = true;
      options.optimizer.lookahead = lookahead;
      const State whole = train_and_save(options, 2, 3, folder, 3);
      expect_same_state(load_and_train(options, 2, folder, 3), whole);
    }
}

// In the middle between two averages, and just after one.
TEST(LocalStepsResume, HasTheBitsOfARunThatWasNotStopped) {
  for (const Precision& precision : {Precision{}, Precision{.compute = DType::bf16}})
    for (const int before : {2, 3, 4}) {
      const ScratchFolder scratch;
      const CheckpointFolder folder(scratch.path("checkpoints"));
      EngineOptions options = compressed_options({}, 0);
      options.local = {.steps = 3};
      options.precision = precision;
      const State whole = train_and_save(options, 2, before, folder, 5);
      expect_same_state(load_and_train(options, 2, folder, 5), whole);
      EXPECT_ERROR(load_and_train(options, 3, folder, 1), "goes on with as many");
    }
}

// Before ranks step by themselves, at that point, where they meet and between.
TEST(MovedStepsResume, HasTheBitsOfARunThatWasNotStopped) {
  for (const int before : {2, 3, 5, 6, 7, 8}) {
    const ScratchFolder scratch;
    const CheckpointFolder folder(scratch.path("checkpoints"));
    CompressionOptions sign;
    sign.gradients = {.type = WireFormat::Type::sign};
    EngineOptions options = compressed_options(sign, 0);
    options.optimizer = {.eps = 1e-2,
                         .weight_decay = 0.1,
                         .bias_correction = false,
                         .freeze_step = 3,
                         .variance_scaler = 1};
    options.local = {.steps = 4, .sums_moves = true, .scaler = 2, .whole_steps = 3};
    const State whole = train_and_save(options, 2, before, folder, 9);
    expect_same_state(load_and_train(options, 2, folder, 9), whole);
    EXPECT_ERROR(load_and_train(options, 3, folder, 1), "goes on with as many");
  }
}

// Old weights of each rank's own, while the checkpoint is written behind the next steps.
TEST(StaleStepsResume, HasTheBitsOfARunThatWasNotStopped) {
  for (const int stage : {0, 1, 2})
    for (const int before : {2, 3, 4}) {
      const ScratchFolder scratch;
      const CheckpointFolder folder(scratch.path("checkpoints"));
      EngineOptions options = compressed_options({}, stage);
      options.stale = {.bound = 3, .compensation = 10};
      const State whole = train_and_save(options, 2, before, folder, 5);
      expect_same_state(load_and_train(options, 2, folder, 5), whole);
      EXPECT_ERROR(load_and_train(options, 3, folder, 1), "goes on with as many");
    }
}

// The sum over ranks of what they keep back, by parameter.
std::map<std::string, std::vector<double>> kept_by_all(const State& state) {
  std::map<std::string, std::vector<double>> sums;
  for (const auto& [name, values] : state) {
    if (!name.starts_with("residual.")) continue;
    std::vector<double>& sum = sums[name.substr(name.find('/'))];
    sum.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) sum[i] += double{values[i]};
  }
  return sums;
}

TEST(CompressionReshard, KeepsTheSumOfWhatRanksKeepBack) {
  CompressionOptions topk;
  topk.gradients = {.type = WireFormat::Type::topk, .density = 0.05};
  const ScratchFolder scratch;
  const CheckpointFolder folder(scratch.path("checkpoints"));
  const auto saved = kept_by_all(train_and_save(compressed_options(topk, 1), 3, 2, folder, 0));
  ASSERT_FALSE(saved.empty());
  for (const int ranks : {2, 4, 5}) {
    const auto loaded = kept_by_all(load_and_train(compressed_options(topk, 2), ranks, folder, 0));
    ASSERT_EQ(loaded.size(), saved.size());
    double size = 0;
    for (const auto& [name, values] : saved)
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_NEAR(loaded.at(name)[i], values[i], 1e-6) << name;
        size += std::abs(values[i]);
      }
    EXPECT_GT(size, 0);
  }
}

// A run that begins to compress has kept nothing back yet.
TEST(CompressionReshard, WithoutSavedStatesBeginsWithNothing) {
  const ScratchFolder scratch;
  const CheckpointFolder folder(scratch.path("checkpoints"));
  train_and_save(compressed_options({}, 1), 2, 2, folder, 0);
  CompressionOptions topk;
  topk.gradients = {.type = WireFormat::Type::topk};
  for (const auto& [name, values] :
       kept_by_all(load_and_train(compressed_options(topk, 1), 2, folder, 0)))
    for (const double value : values) EXPECT_EQ(value, 0) << name;
}

// A mesh of two ranks that sum gradients, and of others that have the rest.
struct SavedMesh {
  const char* name;
  int tensor = 1, context = 1, expert = 1, pipeline = 1, data = 2;
  int ranks() const { return tensor * context * expert * pipeline * data; }
};
void PrintTo(const SavedMesh& one, std::ostream* out) { *out << one.name; }

ModelSpec meshed_model(const SavedMesh& mesh) {
  ModelSpec spec = test::small_model();
  spec.num_heads = spec.num_kv_heads = 4;
  spec.head_dim = 3;
  spec.max_sequence_length = 12;
  if (mesh.expert > 1) {
    spec.experts = {.count = 4, .intermediate_size = 7, .shared_intermediate_size = 5};
    spec.experts.per_token = 2;
    spec.experts.dense_blocks = {0};
  }
  return spec;
}

EngineOptions meshed_options(const SavedMesh& mesh, const CompressionOptions& compression,
                             int stage) {
  EngineOptions options = compressed_options(compression, stage);
  options.compression.correction.limit = 0;
  options.sequence = 12;
  options.tensor = mesh.tensor;
  options.context = mesh.context;
  options.expert = mesh.expert;
  options.pipeline.ranks = mesh.pipeline;
  options.micros = mesh.pipeline;
  return options;
}

// All that an engine has of what is saved, whole.
State meshed_run(const SavedMesh& mesh, const EngineOptions& options, int steps,
                 const CheckpointFolder* from, const CheckpointFolder* to) {
  State state;
  std::mutex mutex;
  on_ranks(mesh.ranks(), [&](int rank, std::shared_ptr<Communicator> communicator) {
    const ModelSpec spec = meshed_model(mesh);
    Engine engine(spec, options, std::move(communicator));
    if (from != nullptr) resume(engine, from->list());
    for (int i = 0; i < steps; ++i) test::train_step(engine);
    if (to != nullptr) {
      CheckpointWriter writer(engine, *to);
      writer.begin();
      writer.wait();
      EXPECT_EQ(writer.finish({{"position", engine.steps_done()}, {"model", spec.to_json()}}),
                std::vector<std::string>());
    }
    const test::Weights weights = test::weights_of(engine);
    const std::lock_guard lock(mutex);
    if (rank == 0) state.insert(weights.begin(), weights.end());
  });
  return state;
}

// Of every state that a checkpoint has.
State saved_state(const CheckpointFolder& folder) {
  const Checkpoint checkpoint(folder.list().front().path);
  State state;
  for (const auto& [name, tensor] : checkpoint.manifest().tensors)
    for (const CheckpointState& one : tensor.states) {
      std::vector<float>& values = state[piece_name(one.name, name)];
      values.resize(static_cast<size_t>(tensor.elems()));
      checkpoint.read(one.name, name, 0, values);
    }
  return state;
}

class MeshedCompressionResume : public testing::TestWithParam<SavedMesh> {};

TEST_P(MeshedCompressionResume, HasTheBitsOfARunThatWasNotStopped) {
  const SavedMesh& mesh = GetParam();
  for (const NamedCompression& named : all_compressions()) {
    const std::string name = named.name;
    if (name != "int8" && name != "topk" && name != "adaptive" && name != "dgc" &&
        name != "one_bit")
      continue;
    SCOPED_TRACE(name);
    for (const int stage : {0, 3}) {
      const ScratchFolder scratch;
      const CheckpointFolder half(scratch.path("half")), end(scratch.path("end")),
          resumed(scratch.path("resumed"));
      const EngineOptions options = meshed_options(mesh, named.options, stage);
      meshed_run(mesh, options, 3, nullptr, &half);
      const State whole = meshed_run(mesh, options, 6, nullptr, &end);
      EngineOptions other = options;
      other.zero.stage = 3 - stage;
      expect_same_state(meshed_run(mesh, other, 3, &half, &resumed), whole);
      expect_same_state(saved_state(resumed), saved_state(end));
    }
  }
}

// One file has what is kept of a share of each rank that sums it, and together they have it whole:
// on any other mesh the sum of what ranks keep is what it was.
TEST_P(MeshedCompressionResume, KeepsTheSumOfWhatRanksKeepBackOnOtherMeshes) {
  const SavedMesh& mesh = GetParam();
  const CompressionOptions topk = [] {
    CompressionOptions compression;
    compression.gradients = {.type = WireFormat::Type::topk, .density = 0.05};
    return compression;
  }();
  const ScratchFolder scratch;
  const CheckpointFolder first(scratch.path("first"));
  meshed_run(mesh, meshed_options(mesh, topk, 1), 3, nullptr, &first);
  const auto saved = kept_by_all(saved_state(first));
  ASSERT_FALSE(saved.empty());
  double size = 0;
  for (const auto& [name, values] : saved)
    for (const double value : values) size += std::abs(value);
  EXPECT_GT(size, 0);
  std::vector<SavedMesh> others = {{.name = "data", .data = 3}, {.name = "ranks", .tensor = 2}};
  if (mesh.expert > 1) others.push_back({.name = "experts", .expert = 2});
  for (SavedMesh other : others) {
    SCOPED_TRACE(other.name);
    other.expert = std::max(other.expert, mesh.expert > 1 ? 2 : 1);  // of the same model
    const CheckpointFolder again(scratch.path(other.name));
    meshed_run(other, meshed_options(other, topk, 2), 0, &first, &again);
    const auto loaded = kept_by_all(saved_state(again));
    ASSERT_EQ(loaded.size(), saved.size());
    for (const auto& [name, values] : saved)
      for (size_t i = 0; i < values.size(); ++i)
        ASSERT_NEAR(loaded.at(name)[i], values[i], 1e-6) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Axes, MeshedCompressionResume,
    testing::Values(SavedMesh{.name = "Tensor", .tensor = 2},
                    SavedMesh{.name = "Context", .context = 2},
                    SavedMesh{.name = "Expert", .expert = 2},
                    SavedMesh{.name = "ExpertTensor", .tensor = 2, .expert = 2},
                    SavedMesh{.name = "Pipeline", .pipeline = 2},
                    SavedMesh{.name = "PipelineTensor", .tensor = 2, .pipeline = 2}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace onefold
