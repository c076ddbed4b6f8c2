// The loss scale, and steps that are skipped because gradients overflow: with powers of two fp32
// rounds nothing, so what is learned has the bits of a run without either.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "data/scratch.h"
#include "engine/compressions.h"
#include "engine/optimizers.h"
#include "engine/ranks.h"
#include "model/zoo.h"

namespace onefold {
namespace {

struct Setting {
  std::string name;
  EngineOptions options;
  int ranks = 1;
  const char* preset = "gpt2-tiny";
};

EngineOptions plain_options() {
  EngineOptions options{
      .threads = 1, .micro_batch = 1, .sequence = 12, .micros = 2, .clipping = 0.05};
  options.zero.persistence_elems = 0;
  options.zero.overlap = false;  // so that gradients are there where they are made to overflow
  return options;
}

ModelSpec model_of(const Setting& setting) {
  ModelSpec spec = spec_from_preset(setting.preset, "test");
  spec.vocab_size = 101;
  if (setting.ranks > 1 && spec.num_heads % 2 != 0) {
    spec.num_heads = spec.num_kv_heads = 6;
    spec.head_dim = 4;
    spec.hidden_size = 24;
    spec.intermediate_size = 48;
  }
  spec.dropout = 0;  // whose masks are of a step, skipped or not
  if (spec.experts.enabled()) {
    spec.experts.count = 4;
    spec.experts.balance_loss = spec.experts.z_loss = 0.5f;
  }
  return spec;
}

std::vector<Setting> clippings() {
  std::vector<Setting> all;
  const auto add = [&](const char* name, double limit, const ClipRule& rule) {
    EngineOptions options = plain_options();
    options.clipping = limit;
    options.clip_rule = rule;
    options.zero.stage = 1;
    all.push_back({name, options, 2});
  };
  add("none", 0, {});
  add("norm", 0.05, {});
  add("value", 0.05, {.value = 0x1p-10});
  add("units", 0.05, {.of = ClipRule::Of::unit});
  add("tensors", 0.02, {.of = ClipRule::Of::tensor, .value = 0x1p-8});
  add("adaptive", 0.01, {.adaptive = true});
  add("percentile", 0, {.percentile = 20, .window = 3});
  return all;
}

std::vector<Setting> optimizers() {
  std::vector<Setting> all;
  for (const test::NamedOptimizer& one : test::all_optimizers())
    for (const int stage : {0, 2}) {
      EngineOptions options = plain_options();
      options.optimizer = one.spec;
      options.zero.stage = stage;
      all.push_back({fmt::format("{}, stage {}", one.name, stage), options, 2});
    }
  return all;
}

std::vector<Setting> techniques(const std::string& folder) {
  std::vector<Setting> all;
  const auto add = [&](const char* name, int ranks, const auto& change,
                       const char* preset = "gpt2-tiny") {
    EngineOptions options = plain_options();
    change(options);
    all.push_back({name, options, ranks, preset});
  };
  for (const double lookahead : {0.0, 1.5})
    add(lookahead > 0 ? "delayed, ahead" : "delayed", 2, [&](EngineOptions& o) {
      o.zero.stage = 3;
      o.optimizer.delayed = true;
      o.optimizer.delayed_after = 1;
      o.optimizer.lookahead = lookahead;
    });
  for (const Tier tier : {Tier::host, Tier::disk})
    add(tier == Tier::host ? "host" : "disk", 2, [&](EngineOptions& o) {
      o.zero.stage = 3;
      o.offload = {.parameters = tier, .optimizer = tier, .folder = folder};
      o.clip_rule.of = ClipRule::Of::tensor;
    });
  add("pipeline", 4, [](EngineOptions& o) {
    o.pipeline.ranks = 2;
    o.zero.stage = 1;
    o.clip_rule.of = ClipRule::Of::unit;
  });
  add("tensor", 2, [](EngineOptions& o) {
    o.tensor = 2;
    o.clip_rule.of = ClipRule::Of::unit;
  });
  add("context", 2, [](EngineOptions& o) { o.context = 2; });
  add("ring", 2, [](EngineOptions& o) {
    o.context = 2;
    o.context_method = ContextMethod::ring;
    o.zero.stage = 3;
  });
  add(
      "mixture", 2, [](EngineOptions& o) { o.zero.stage = 2; }, "mixtral-tiny");
  add(
      "experts", 4,
      [](EngineOptions& o) {
        o.expert = 2;
        o.zero.stage = 1;
      },
      "mixtral-tiny");
  add("groups", 2, [](EngineOptions& o) {
    o.zero.stage = 3;
    o.optimizer.groups = {{.match = {"block.1.*norm*"}, .frozen = true},
                          {.match = {"block.1.*"}, .rate = 0.5, .weight_decay = 0.2}};
  });
  return all;
}

// So many steps of the same batch. Before some of them gradients overflow on one rank.
test::RankRun train_with_skips(const Setting& setting, const EngineOptions& options, int updates,
                               const std::vector<int64_t>& skipped = {}) {
  test::RankRun run;
  const ModelSpec spec = model_of(setting);
  test::on_ranks(setting.ranks, [&](int rank, std::shared_ptr<Communicator> communicator) {
    EngineOptions own = options;
    Engine* engine = nullptr;
    const int last = setting.ranks - 1;
    own.before_action = [&](const Action& action) {
      if (rank != last || action.verb != Verb::squares ||
          std::find(skipped.begin(), skipped.end(), engine->steps_done()) == skipped.end())
        return;
      test::break_gradient(*engine, action.unit);
    };
    Engine trained(spec, own, std::move(communicator));
    engine = &trained;
    std::vector<test::OwnedBatch> batches;
    std::vector<BatchView> views;
    for (int micro = 0; micro < own.micros; ++micro)
      batches.push_back(test::random_rows(micro * trained.data_ranks() + trained.data_rank(), own,
                                          spec.vocab_size));
    for (const test::OwnedBatch& batch : batches) views.push_back(batch.view());
    const auto steps = updates + static_cast<int64_t>(skipped.size());
    for (int64_t step = 0; step < steps; ++step) {
      const StepResult result = trained.train_step(views, 1e-3);
      const bool overflows = std::find(skipped.begin(), skipped.end(), step) != skipped.end();
      EXPECT_EQ(result.skipped, overflows) << "step " << step;
      if (rank > 0 || result.skipped) continue;
      run.losses.push_back(result.loss);
      run.norms.push_back(result.gradient_norm);
      run.norms.push_back(result.clipped.factor);
      run.norms.push_back(result.experts.balance_loss);
    }
    EXPECT_EQ(trained.updates_done(), updates);
    const test::Weights weights = test::weights_of(trained);
    if (rank == 0) run.weights = weights;
  });
  return run;
}

void expect_learned_alike(const test::RankRun& run, const test::RankRun& other) {
  EXPECT_EQ(run.losses, other.losses);
  EXPECT_EQ(run.norms, other.norms);
  test::expect_same_bits(run.weights, other.weights);
}

// A scale that stays, one that doubles, and one that is halved by a step that is skipped.
void expect_bits_without_scale(const Setting& setting) {
  SCOPED_TRACE(setting.name);
  constexpr int kUpdates = 5;
  EngineOptions options = setting.options;
  options.skip_overflow = true;
  const test::RankRun plain = train_with_skips(setting, options, kUpdates);
  options.loss_scale = {.fixed = 65536};
  expect_learned_alike(train_with_skips(setting, options, kUpdates), plain);
  options.loss_scale = {.fixed = 0, .initial_power = 12, .window = 2, .hysteresis = 1};
  expect_learned_alike(train_with_skips(setting, options, kUpdates), plain);
}

void expect_bits_without_skipped_steps(const Setting& setting) {
  SCOPED_TRACE(setting.name);
  constexpr int kUpdates = 5;
  EngineOptions options = setting.options;
  options.skip_overflow = true;
  const test::RankRun plain = train_with_skips(setting, options, kUpdates);
  options.loss_scale = {.fixed = 0, .initial_power = 12, .window = 2, .hysteresis = 1};
  expect_learned_alike(train_with_skips(setting, options, kUpdates, {0, 3, 4}), plain);
}

TEST(SkippedSteps, LeaveTheBitsOfEveryClipping) {
  for (const Setting& one : clippings()) {
    expect_bits_without_scale(one);
    expect_bits_without_skipped_steps(one);
  }
}

TEST(SkippedSteps, LeaveTheBitsOfEveryOptimizer) {
  for (const Setting& one : optimizers()) {
    expect_bits_without_scale(one);
    expect_bits_without_skipped_steps(one);
  }
}

TEST(SkippedSteps, LeaveTheBitsOfEveryTechnique) {
  const ScratchFolder folder;
  for (const Setting& one : techniques(folder.path(""))) {
    expect_bits_without_scale(one);
    expect_bits_without_skipped_steps(one);
  }
}

// What ranks keep back, and their momentum, take nothing in of gradients that are not finite.
TEST(SkippedSteps, LeaveWhatRanksKeepBack) {
  const std::set<std::string> drawn = {"int8_drawn", "int4_drawn_lost", "threshold",      "sampled",
                                       "randomk",    "importance",      "importance_lost"};
  for (const test::NamedCompression& named : test::all_compressions()) {
    if (drawn.contains(named.name)) continue;  // by the step
    SCOPED_TRACE(named.name);
    EngineOptions options = plain_options();
    options.compression = named.options;
    options.skip_overflow = true;
    if (named.options.corrects_momentum) options.optimizer = {.type = OptimizerSpec::Type::sgd};
    const auto weights_after = [&](const std::set<int64_t>& skipped) {
      test::Weights weights;
      test::on_ranks(2, [&](int rank, std::shared_ptr<Communicator> communicator) {
        EngineOptions own = options;
        Engine* engine = nullptr;
        own.before_action = [&](const Action& action) {
          if (action.verb != Verb::reduce || !skipped.contains(engine->steps_done())) return;
          engine->device().compute().wait(engine->device().compute().mark().number);
          for (const int unit : units_of(action))
            *static_cast<float*>(std::as_const(*engine).state().unit(unit).reduce_message().whole) =
                NAN;
        };
        Engine trained(model_of({}), own, std::move(communicator));
        engine = &trained;
        const test::OwnedBatch batch = test::random_rows(rank, own, 101);
        const std::vector<BatchView> views(2, batch.view());
        for (size_t step = 0; step < 5 + skipped.size(); ++step)
          EXPECT_EQ(trained.train_step(views, 1e-3).skipped,
                    skipped.contains(static_cast<int64_t>(step)));
        const PackWork work = *trained.packed(Lane::reduce);
        EXPECT_TRUE(work.error() > 0 && work.error() < 1) << work.error();
        const test::Weights here = test::weights_of(trained);
        if (rank == 0) weights = here;
      });
      return weights;
    };
    test::expect_same_bits(weights_after({0, 3, 4}), weights_after({}));
  }
}

// What they keep back follows the scale.
TEST(SkippedSteps, LeaveTheBitsOfCompressionWithAnyScale) {
  for (const test::NamedCompression& named : test::all_compressions()) {
    EngineOptions options = plain_options();
    options.compression = named.options;
    options.zero.stage = 2;
    if (named.options.corrects_momentum) options.optimizer = {.type = OptimizerSpec::Type::sgd};
    expect_bits_without_scale({named.name, options, 2});
  }
}

}  // namespace
}  // namespace onefold
