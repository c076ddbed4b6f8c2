// What steps hold at least, against what they are planned to.
#include "plan/least_bytes.h"

#include <gtest/gtest.h>

#include "engine/lines.h"
#include "plan/estimate.h"
#include "plan/layout_choices.h"
#include "plan/recompute.h"
#include "plan/search.h"

namespace onefold {
namespace {

// Of several layers for each stage; sequences long enough for activations to count beside state.
ModelSpec small_model(const char* preset) {
  ModelSpec spec = spec_from_preset(preset, "test");
  spec.num_layers = 4;
  spec.num_heads = spec.num_kv_heads = 4;
  spec.hidden_size = 32;
  spec.head_dim = 8;
  spec.vocab_size = 96;
  if (spec.experts.enabled()) spec.experts.count = 4;
  return spec;
}

struct Checked {
  int steps = 0, near = 0;  // near: of which the bound tells most
};

class LeastBytesTest : public ::testing::Test {
 protected:
  void expect_below(const ModelSpec& spec, const EngineOptions& options, int ranks) {
    if (!obstacle_to_mesh(spec, options).empty()) return;
    const FitContext context{.ranks = ranks, .order_is_given = true};
    const int64_t least = LeastBytes(spec, ranks).of(options),
                  planned = planned_step(spec, options, context).device;
    EXPECT_LE(least, planned) << layout_key(options);
    ++checked_.steps;
    checked_.near += 10 * least > 7 * planned;
  }

  // Each policy, order and stage.
  void expect_all_below(const ModelSpec& spec, EngineOptions options, int ranks) {
    for (const Recompute& policy :
         {Recompute(), Recompute(Recompute::kAll, 0), Recompute(0, Recompute::kAll),
          Recompute(true), Recompute::blocks(2), Recompute::in_segments(1),
          Recompute::in_segments(3)})
      for (const int stage : {0, 2, 3}) {
        options.recompute = policy;
        options.zero.stage = stage;
        options.order = Order::micro_first;
        expect_below(spec, options, ranks);
        if (options.pipeline.ranks > 1 || options.micros == 1) continue;
        options.order = Order::unit_first;
        expect_below(spec, options, ranks);
      }
  }

  // Every schedule, with as many micro-batches as there are turns to tell apart.
  void expect_pipelines_below(const ModelSpec& spec, EngineOptions options, int ranks) {
    for (const int places : {2, 4})
      for (const PipelineSchedule schedule : kPipelineSchedules)
        for (const int interleave : {1, 2})
          for (const int micros : {1, places, 4 * places}) {
            options.pipeline.ranks = places;
            options.pipeline.schedule = schedule;
            options.pipeline.interleave = interleave;
            options.micros = micros;
            expect_all_below(spec, options, ranks);
          }
  }

  static EngineOptions options() {
    EngineOptions options{.threads = 1, .micro_batch = 2, .sequence = 64, .micros = 1};
    options.zero.persistence_elems = 0;
    return options;
  }

  Checked checked_;
};

TEST_F(LeastBytesTest, AreBelowStepsOfRanksAlone) {
  const ModelSpec spec = small_model("llama-tiny");
  for (const int micros : {1, 3})
    for (const Tier home : {Tier::device, Tier::host, Tier::disk}) {
      EngineOptions one = options();
      one.micros = micros;
      one.offload.activations = home;
      expect_all_below(spec, one, 2);
      one.offload = {.parameters = home, .optimizer = home};
      expect_all_below(spec, one, 2);
    }
  EXPECT_GT(checked_.near, checked_.steps / 4);
}

TEST_F(LeastBytesTest, AreBelowStepsOfPipelines) {
  expect_pipelines_below(small_model("llama-tiny"), options(), 8);
  EXPECT_GT(checked_.near, checked_.steps / 5);
}

// The gradient of a table that two ranks have is made last of all.
TEST_F(LeastBytesTest, AreBelowStepsOfPipelinesThatShareATable) {
  ModelSpec spec = small_model("gpt2-tiny");
  spec.tie_embeddings = true;
  spec.vocab_size = 4096;
  EngineOptions one = options();
  one.micro_batch = 1;
  expect_pipelines_below(spec, one, 4);
}

TEST_F(LeastBytesTest, AreBelowStepsOfOtherMeshes) {
  const ModelSpec dense = small_model("llama-tiny");
  EngineOptions one = options();
  one.precision.compute = DType::bf16;
  one.micros = 2;
  one.tensor = 2;
  expect_all_below(dense, one, 4);
  one.sequence_parallel = true;
  expect_all_below(dense, one, 4);
  one.pipeline.ranks = 2;
  expect_all_below(dense, one, 4);
  one.sequence_parallel = false;
  one.tensor = one.pipeline.ranks = 1;
  one.context = 2;
  for (const ContextMethod method : {ContextMethod::ring, ContextMethod::ulysses}) {
    one.context_method = method;
    expect_all_below(dense, one, 4);
  }
  one.context = 1;
  one.expert = 2;
  expect_all_below(small_model("mixtral-tiny"), one, 4);
}

// They are divided after the last micro-batch alone, and are most of what a pipeline's stage takes.
TEST_F(LeastBytesTest, CountGradientsThatGrowOverMicroBatchesWhole) {
  const ModelSpec spec = small_model("llama-tiny");
  int64_t elems = 0;
  for (const auto& unit : Model(spec).units)
    for (const ParamSpec& param : unit->params()) elems += param.elems();
  EngineOptions one = options();
  one.zero.stage = 3;
  one.micros = 2;
  EXPECT_GT(LeastBytes(spec, 8).of(one), 4 * elems);
  one.order = Order::unit_first;
  EXPECT_LT(LeastBytes(spec, 8).of_state(one), 4 * elems);
  one.order = Order::micro_first;
  one.pipeline.ranks = 2;
  EXPECT_GT(LeastBytes(spec, 8).of(one), 2 * elems);
}

// What lies below the lowest unit that is trained keeps nothing.
TEST_F(LeastBytesTest, AreBelowStepsThatTrainAPart) {
  const ModelSpec dense = small_model("llama-tiny");
  EngineOptions one = options();
  one.frozen = {"embedding", "block.0", "block.1"};
  one.micros = 4;
  expect_all_below(dense, one, 4);
  one.pipeline.ranks = 2;
  expect_all_below(dense, one, 4);
  one.frozen = {};
  ModelSpec adapted = dense;
  adapted.lora = {.rank = 4, .targets = {"all-linear"}};
  expect_all_below(adapted, one, 4);
}

}  // namespace
}  // namespace onefold
