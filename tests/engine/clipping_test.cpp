// Clipping and parameter groups: against their rules in double, and the same bits at every stage.
// ONEFOLD_TEST_DEVICE=cuda:0 runs them on a card.
#include <gtest/gtest.h>

#include "engine/optimizers.h"
#include "engine/ranks.h"
#include "error_text.h"

namespace onefold {
namespace {

using test::expect_same_bits;
using test::RankRun;
using test::train_on_ranks;

ModelSpec clipped_model() {
  ModelSpec spec = spec_from_preset("gpt2-tiny", "test");
  if (spec.vocab_size == 0) spec.vocab_size = 101;
  return spec;
}

struct Clipping {
  const char* name;
  double limit;
  ClipRule rule;
  double rate = 0.1;  // so large that a wrong factor shows
};

const Clipping kClippings[] = {
    {"by_value", 0, {.value = 0x1p-10}},
    {"by_value_and_norm", 0.05, {.value = 0x1p-7}},
    {"units", 0.05, {.of = ClipRule::Of::unit}},
    {"tensors", 0.02, {.of = ClipRule::Of::tensor}},
    {"tensors_and_value", 0.02, {.of = ClipRule::Of::tensor, .value = 0x1p-10}},
    {"adaptive", 0.01, {.adaptive = true}},
    {"percentile", 0, {.percentile = 20, .window = 5}, 1e-4},
};

EngineOptions clipped_options(const Clipping& clipping, int stage = 0) {
  EngineOptions options{.device = test::test_device_name(),
                        .threads = 1,
                        .micro_batch = 1,
                        .sequence = 11,
                        .clipping = clipping.limit,
                        .clip_rule = clipping.rule};
  options.zero.stage = stage;
  options.zero.persistence_elems = 0;
  options.optimizer = {.type = OptimizerSpec::Type::sgd, .momentum = 0.9};
  return options;
}

using Gradients = std::map<std::string, std::vector<double>>;

double norm_over(const Gradients& gradients, const std::vector<std::string>& names) {
  double squares = 0;
  for (const std::string& name : names)
    for (const double value : gradients.at(name)) squares += value * value;
  return std::sqrt(squares);
}

double factor_for(double limit, double norm) {
  return limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0;
}

// PyTorch's clip_grad_value_ and clip_grad_norm_, of all, of each unit's or of each tensor; NFNets'
// rule by tensor; or numpy's percentile of the norms before this one. Returns how many gradients
// were made smaller.
int clip_in_double(const Clipping& clipping, const Model& model, const test::Weights& weights,
                   std::vector<double>& norms, Gradients& gradients, double& least) {
  const ClipRule& rule = clipping.rule;
  if (rule.value > 0)
    for (auto& [name, values] : gradients)
      for (double& value : values) value = std::clamp(value, -rule.value, rule.value);
  std::vector<std::vector<std::string>> parts(1);
  for (const auto& unit : model.units) {
    if (rule.each()) parts.emplace_back();
    for (const ParamSpec& param : unit->params()) {
      if (rule.by_tensor()) parts.emplace_back();
      parts.back().push_back(param.name);
    }
  }
  double limit = clipping.limit;
  if (rule.percentile > 0 && !norms.empty()) {
    std::vector<double> sorted = norms;
    std::sort(sorted.begin(), sorted.end());
    const double place = rule.percentile / 100 * (static_cast<double>(sorted.size()) - 1);
    const auto below = static_cast<size_t>(std::floor(place));
    const auto above = std::min(below + 1, sorted.size() - 1);
    limit = sorted[below] + (place - std::floor(place)) * (sorted[above] - sorted[below]);
  }
  int clipped = 0;
  least = 1;
  for (const std::vector<std::string>& part : parts) {
    if (part.empty()) continue;
    const double norm = norm_over(gradients, part);
    if (rule.percentile > 0) {
      norms.push_back(norm);
      if (static_cast<int64_t>(norms.size()) > rule.window) norms.erase(norms.begin());
    }
    double own = limit;
    if (rule.adaptive) {
      double squares = 0;
      for (const double value : weights.at(part[0])) squares += value * value;
      own = limit * std::max(std::sqrt(squares), rule.least);
    }
    const double factor = factor_for(own, norm);
    clipped += factor < 1;
    least = std::min(least, factor);
    for (const std::string& name : part)
      for (double& value : gradients.at(name)) value *= factor;
  }
  return clipped;
}

class ClippingRules : public testing::TestWithParam<Clipping> {};

TEST_P(ClippingRules, FollowThemselvesInDouble) {
  const ModelSpec spec = clipped_model();
  EngineOptions options = clipped_options(GetParam());
  Clipping none{"none", 0, {}};
  EngineOptions unclipped = clipped_options(none);
  unclipped.keep_gradients = true;
  Engine engine(spec, options), plain(spec, unclipped);
  std::map<std::string, test::Reference> reference;
  test::for_each_parameter(engine, [&](const ParamSpec& param, std::span<const float> values) {
    reference[param.name] = {shape_of(param), {values.begin(), values.end()}, {}, {}};
  });
  std::vector<double> norms;
  int clipped_steps = 0;
  for (int step = 1; step <= 12; ++step) {
    // The gradients of the same weights, as they are before clipping.
    const test::Weights weights = test::weights_of(engine);
    test::change_weights(plain, [&](const ParamSpec& param, std::span<float> dst) {
      std::copy_n(weights.at(param.name).begin(), dst.size(), dst.begin());
    });
    test::OwnedBatch batch =
        test::random_batch(1, options.sequence, spec.vocab_size, static_cast<uint64_t>(step % 4));
    const BatchView view = batch.view();
    plain.train_step({&view, 1}, 0);
    Gradients gradients;
    test::for_each_gradient(plain, [&](const ParamSpec& param, std::span<const float> values) {
      gradients[param.name].assign(values.begin(), values.end());
    });
    int64_t beyond = 0;
    for (const auto& [name, values] : gradients)
      for (const double value : values)
        beyond += GetParam().rule.value > 0 && std::abs(value) > GetParam().rule.value;
    double least = 1;
    const int clipped =
        clip_in_double(GetParam(), engine.model(), weights, norms, gradients, least);
    clipped_steps += clipped > 0 || beyond > 0;
    const StepResult result = engine.train_step({&view, 1}, GetParam().rate);
    EXPECT_EQ(result.clipped.tensors, clipped) << "step " << step;
    EXPECT_NEAR(result.clipped.factor, least, 1e-5) << "step " << step;
    EXPECT_EQ(result.clipped.values, beyond) << "step " << step;
    const test::Weights after = test::weights_of(engine);
    for (const auto& [name, gradient] : gradients)
      test::reference_step(options.optimizer, step, GetParam().rate, reference.at(name), gradient,
                           after.at(name));
  }
  EXPECT_GT(clipped_steps, 2);
  const test::Weights weights = test::weights_of(engine);
  for (const auto& [name, expected] : reference)
    for (size_t i = 0; i < expected.values.size(); ++i)
      ASSERT_NEAR(weights.at(name)[i], expected.values[i], 1e-6) << name << " " << i;
}

TEST_P(ClippingRules, EveryStageHasTheBitsOfStageZeroAsPlanned) {
  for (const int ranks : {2, 3}) {
    const ModelSpec spec = clipped_model();
    const RankRun reference = train_on_ranks(spec, clipped_options(GetParam()), ranks, 4);
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{} ranks, stage {}", ranks, stage));
      const EngineOptions options = clipped_options(GetParam(), stage);
      const RankRun run = train_on_ranks(spec, options, ranks, 4);
      EXPECT_EQ(run.norms, reference.norms);
      expect_same_bits(run.weights, reference.weights);
      test::expect_planned(spec, options, ranks, run, test::test_hardware());
    }
  }
}

TEST_P(ClippingRules, StatesOnTheHostHaveTheSameBits) {
  const ModelSpec spec = clipped_model();
  const RankRun reference = train_on_ranks(spec, clipped_options(GetParam()), 2, 3);
  for (const Tier parameters : {Tier::device, Tier::host}) {
    if (GetParam().rule.adaptive && parameters != Tier::device) continue;  // refused
    EngineOptions options = clipped_options(GetParam(), 2);
    options.offload = {.parameters = parameters, .optimizer = Tier::host};
    const RankRun run = train_on_ranks(spec, options, 2, 3);
    expect_same_bits(run.weights, reference.weights);
    test::expect_planned(spec, options, 2, run, test::test_hardware());
  }
}

// The loss's scale is undone before anything is compared with a limit.
TEST_P(ClippingRules, DoNotDependOnTheLossScale) {
  const ModelSpec spec = clipped_model();
  EngineOptions options = clipped_options(GetParam());
  const RankRun reference = train_on_ranks(spec, options, 1, 3);
  options.loss_scale = {.fixed = 1024};
  const RankRun scaled = train_on_ranks(spec, options, 1, 3);
  for (const auto& [name, values] : reference.weights)
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(scaled.weights.at(name)[i], values[i], 1e-6) << name;
}

INSTANTIATE_TEST_SUITE_P(All, ClippingRules, testing::ValuesIn(kClippings),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ParameterGroups, HaveTheirOwnRateAndDecay) {
  const ModelSpec spec = clipped_model();
  for (const test::NamedOptimizer& optimizer : test::all_optimizers()) {
    SCOPED_TRACE(optimizer.name);
    EngineOptions options = clipped_options({"all", 1.0, {}});
    options.optimizer = optimizer.spec;
    options.keep_gradients = true;
    options.optimizer.groups = {{.match = {"*.bias"}, .rate = 0.5, .weight_decay = 0.3},
                                {.match = {"block.0.mlp.*", "head.*"}, .rate = 2}};
    Engine engine(spec, options);
    const test::Weights before = test::weights_of(engine);
    test::OwnedBatch batch = test::random_batch(1, options.sequence, spec.vocab_size, 1);
    const BatchView view = batch.view();
    const StepResult result = engine.train_step({&view, 1}, 1e-2);
    const double factor = factor_for(1, result.gradient_norm);
    const test::Weights after = test::weights_of(engine);
    test::for_each_gradient(engine, [&](const ParamSpec& param, std::span<const float> values) {
      test::Reference p{
          shape_of(param), {before.at(param.name).begin(), before.at(param.name).end()}, {}, {}};
      std::vector<double> gradient(values.begin(), values.end());
      for (double& value : gradient) value *= factor;
      const ParamGroup* group = options.optimizer.group_of(param.name);
      OptimizerSpec own = options.optimizer;
      if (group && group->weight_decay) {
        own.weight_decay = *group->weight_decay;
        own.decay_all = true;
      }
      test::reference_step(own, 1, 1e-2 * (group ? group->rate : 1), p, gradient,
                           after.at(param.name));
      for (size_t i = 0; i < p.values.size(); ++i)
        ASSERT_NEAR(after.at(param.name)[i], p.values[i], 1e-6) << param.name << " " << i;
    });
  }
}

TEST(ParameterGroups, FrozenOnesStayAndAreNotInTheNorm) {
  const ModelSpec spec = clipped_model();
  for (const test::NamedOptimizer& optimizer : test::all_optimizers()) {
    EngineOptions options = clipped_options({"all", 1.0, {}});
    options.optimizer = optimizer.spec;
    options.optimizer.groups = {{.match = {"*.up.*", "*qkv.bias"}, .frozen = true}};
    const RankRun untouched = train_on_ranks(spec, options, 2, 0);
    const RankRun reference = train_on_ranks(spec, options, 2, 3);
    for (const auto& [name, values] : reference.weights)
      EXPECT_EQ(values == untouched.weights.at(name), options.optimizer.group_of(name) != nullptr)
          << optimizer.name << ", " << name;
    EngineOptions all = options;
    all.optimizer.groups.clear();
    EXPECT_LT(reference.norms[0], train_on_ranks(spec, all, 2, 1).norms[0]);
    for (const int stage : {1, 3}) {
      options.zero.stage = stage;
      const RankRun run = train_on_ranks(spec, options, 2, 3);
      expect_same_bits(run.weights, reference.weights);
      test::expect_planned(spec, options, 2, run, test::test_hardware());
    }
  }
}

TEST(ParameterGroups, AUnitThatIsFrozenWholeHoldsNoState) {
  const ModelSpec spec = clipped_model();
  EngineOptions by_group = clipped_options({"all", 1.0, {}}), by_unit = by_group;
  by_group.optimizer.groups = {{.match = {"block.1.*"}, .frozen = true}};
  by_unit.frozen = {"block.1"};
  const RankRun a = train_on_ranks(spec, by_group, 2, 2), b = train_on_ranks(spec, by_unit, 2, 2);
  expect_same_bits(a.weights, b.weights);
  EXPECT_EQ(a.kinds[0], b.kinds[0]);
}

TEST(ParameterGroups, APatternWithoutParametersIsNamed) {
  EngineOptions options = clipped_options({"all", 1.0, {}});
  options.optimizer.groups = {{.match = {"*.bias", "block.7.*"}}};
  EXPECT_ERROR(Engine(clipped_model(), options), "no parameter \"block.7.*\"",
               "block.*.mlp.up.weight");
  options.optimizer.groups = {{.match = {"*"}, .frozen = true}};
  EXPECT_ERROR(Engine(clipped_model(), options), "nothing would be trained");
}

}  // namespace
}  // namespace onefold
