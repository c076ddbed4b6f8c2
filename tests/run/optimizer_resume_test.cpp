// Checkpoints of every optimizer: any ranks at any stage go on with what others have saved, and a
// run that was stopped has the bits of one that was not.
#include <gtest/gtest.h>

#include "data/scratch.h"
#include "engine/optimizers.h"
#include "error_text.h"
#include "run/saved_state.h"

namespace onefold {
namespace {

using test::expect_same_state;
using test::NamedOptimizer;
using test::on_ranks;
using test::State;
using test::StateCollector;

EngineOptions options_with(const OptimizerSpec& optimizer, int stage) {
  EngineOptions options = test::options_of(stage);
  options.optimizer = optimizer;
  options.clip_rule = {.percentile = 40, .window = 3};
  return options;
}

void step(Engine& engine) {
  const EngineOptions& options = engine.options();
  test::OwnedBatch batch = test::random_rows(engine.steps_done() * engine.ranks() + engine.rank(),
                                             options, engine.model().spec.vocab_size);
  const BatchView view = batch.view();
  engine.train_step({&view, 1}, 1e-2);
}

// `before` steps, a checkpoint, and `after` more: the state at the end.
State train(const EngineOptions& options, int ranks, int before, const CheckpointFolder* folder,
            int after) {
  StateCollector collector;
  const ModelSpec spec = test::small_model();
  on_ranks(ranks, [&](int, std::shared_ptr<Communicator> communicator) {
    Engine engine(spec, options, std::move(communicator));
    for (int i = 0; i < before; ++i) step(engine);
    if (folder) {
      CheckpointWriter writer(engine, *folder);
      writer.begin();
      writer.wait();
      EXPECT_EQ(writer.finish({{"position", before}, {"model", spec.to_json()}}),
                std::vector<std::string>());
    }
    for (int i = 0; i < after; ++i) step(engine);
    collector.add(engine);
  });
  return collector.state();
}

State go_on(const EngineOptions& options, int ranks, const CheckpointFolder& folder, int after) {
  StateCollector collector;
  on_ranks(ranks, [&](int, std::shared_ptr<Communicator> communicator) {
    Engine engine(test::small_model(), options, std::move(communicator));
    resume(engine, folder.list());
    for (int i = 0; i < after; ++i) step(engine);
    collector.add(engine);
  });
  return collector.state();
}

class OptimizerResume : public testing::TestWithParam<NamedOptimizer> {};

TEST_P(OptimizerResume, HasTheBitsOfARunThatWasNotStopped) {
  for (const Precision& precision : {Precision{}, Precision{.compute = DType::bf16},
                                     Precision{DType::bf16, DType::bf16, false, DType::bf16}})
    for (const int stage : {0, 3}) {
      const ScratchFolder scratch;
      const CheckpointFolder folder(scratch.path("checkpoints"));
      EngineOptions options = options_with(GetParam().spec, stage);
      options.precision = precision;
      const State whole = train(options, 2, 3, &folder, 3);
      expect_same_state(go_on(options, 2, folder, 3), whole);
      // Another stage has the same bits too.
      options.zero.stage = stage == 0 ? 2 : 1;
      expect_same_state(go_on(options, 2, folder, 3), whole);
    }
}

TEST_P(OptimizerResume, LoadsOnAnyRanksAndStages) {
  for (const int saving : {1, 3}) {
    const ScratchFolder scratch;
    const CheckpointFolder folder(scratch.path("checkpoints"));
    const State saved = train(options_with(GetParam().spec, saving % 4), saving, 2, &folder, 0);
    for (const auto& [ranks, stage] : {std::pair{1, 0}, {2, 3}, {3, 1}, {5, 2}})
      expect_same_state(go_on(options_with(GetParam().spec, stage), ranks, folder, 0), saved);
  }
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerResume, testing::ValuesIn(test::all_optimizers()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(AnotherOptimizersCheckpoint, IsRefused) {
  const ScratchFolder scratch;
  const CheckpointFolder folder(scratch.path("checkpoints"));
  const OptimizerSpec lion{.type = OptimizerSpec::Type::lion}, adamw{};
  train(options_with(lion, 0), 1, 1, &folder, 0);
  EXPECT_ERROR(go_on(options_with(adamw, 0), 1, folder, 0), "another optimizer");
}

}  // namespace
}  // namespace onefold
