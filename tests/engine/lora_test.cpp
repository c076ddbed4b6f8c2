// Adapters over a frozen base: the same bits at every stage and as planned; state of adapters
// alone; gradients by differences, with dropout.
#include "model/lora.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/ranks.h"

namespace onefold {
namespace {

using test::expect_same_bits;
using test::RankRun;
using test::train_on_ranks;
using test::Weights;

ModelSpec adapted(const std::string& preset, std::vector<std::string> targets = {"all-linear"}) {
  ModelSpec spec = spec_from_preset(preset, "test");
  if (spec.vocab_size == 0) spec.vocab_size = 101;
  spec.lora = {.rank = 3, .alpha = 5, .dropout = 0.1f, .targets = std::move(targets)};
  // No Hugging Face model has both as bloom-tiny does, and adapters have the names of one.
  if (spec.positions == Positions::alibi) spec.embedding_scale = spec.alibi_scale = 1;
  if (spec.local_rope_theta > 0) spec.attention_soft_cap = 0;  // nor these both
  return spec;
}

EngineOptions options_for(int stage, const Precision& precision = {}) {
  EngineOptions options{.device = test::test_device_name(),
                        .threads = 1,
                        .micro_batch = 1,
                        .sequence = 11,
                        .micros = 2,
                        .clipping = 1.0};
  options.zero.stage = stage;
  options.zero.persistence_elems = 0;
  options.precision = precision;
  return options;
}

bool is_adapter(const std::string& name) {
  return name.ends_with(".lora_A") || name.ends_with(".lora_B");
}

struct Setup {
  const char* name;
  const char* preset;
  std::vector<std::string> targets;
  Precision precision;
};

const Setup kSetups[] = {
    {"gpt2", "gpt2-tiny", {"all-linear"}, {}},
    {"llama", "llama-tiny", {"all-linear"}, {}},
    {"llama_mlp_of_the_last", "llama-tiny", {"layers.1.mlp.*", "k_proj"}, {}},
    {"llama_bf16", "llama-tiny", {"q_proj", "v_proj", "down_proj"}, {.compute = DType::bf16}},
    {"gpt2_bf16_no_master", "gpt2-tiny", {"c_attn", "c_fc"}, {DType::bf16, DType::bf16, false}},
    {"llama_moments_of_8_bits", "llama-tiny", {"all-linear"}, {.moments = DType::u8}},
    {"gemma", "gemma-tiny", {"all-linear"}, {}},
    {"neox", "neox-tiny", {"all-linear"}, {}},
    {"bloom", "bloom-tiny", {"all-linear"}, {}},
    {"gptj_bf16", "gptj-tiny", {"q_proj", "fc_out"}, {.compute = DType::bf16}},
    {"qwen3_fp16", "qwen3-tiny", {"q_proj", "o_proj", "gate_proj"}, {.compute = DType::f16}},
};

class Adapters : public testing::TestWithParam<Setup> {
 protected:
  ModelSpec spec() const { return adapted(GetParam().preset, GetParam().targets); }
};

TEST_P(Adapters, StagesOrdersAndRecomputationGiveTheSameBitsAsPlanned) {
  constexpr int kRanks = 2, kSteps = 3;
  const RankRun reference =
      train_on_ranks(spec(), options_for(0, GetParam().precision), kRanks, kSteps);
  test::Combinations combinations;
  for (const int stage : {0, 1, 2, 3})
    for (const Order order : {Order::micro_first, Order::unit_first})
      for (const bool recompute : {false, true}) {
        if (!combinations.take()) continue;
        SCOPED_TRACE(
            fmt::format("stage {} {}{}", stage, order_name(order), recompute ? " recomputed" : ""));
        EngineOptions options = options_for(stage, GetParam().precision);
        options.order = order;
        options.recompute = recompute;
        options.zero.overlap = stage != 1;
        const RankRun run = train_on_ranks(spec(), options, kRanks, kSteps);
        EXPECT_EQ(run.losses, reference.losses);
        EXPECT_EQ(run.norms, reference.norms);
        expect_same_bits(run.weights, reference.weights);
        const auto plan = Engine::plan(spec(), options, kRanks, 0, test::test_hardware());
        for (const int64_t peak : run.peaks) EXPECT_EQ(plan->ledger().peak_bytes(), peak);
        for (size_t kind = 0; kind < kKinds; ++kind)
          EXPECT_EQ(plan->ledger().peak_bytes(static_cast<Kind>(kind)), run.kinds[0][kind])
              << kind_name(static_cast<Kind>(kind));
      }
}

TEST_P(Adapters, AloneAreTrained) {
  Engine engine(spec(), options_for(0, GetParam().precision));
  const Weights before = test::weights_of(engine);
  test::train(engine, 2);
  int changed = 0;
  for (const auto& [name, values] : test::weights_of(engine)) {
    EXPECT_EQ(values != before.at(name), is_adapter(name)) << name;
    changed += is_adapter(name);
  }
  EXPECT_GT(changed, 0);
}

TEST_P(Adapters, StateAndSumsAreTheirs) {
  constexpr int kRanks = 2;
  const EngineOptions options = options_for(2, GetParam().precision);
  const std::vector<UnitTraits> units = unit_traits(Model(spec()), options, kRanks);
  int64_t base = 0, adapters = 0;
  for (const UnitTraits& unit : units) {
    base += unit.elems;
    adapters += unit.adapter_elems;
    EXPECT_EQ(unit.frozen, unit.adapter_elems == 0);
  }
  const Precision& p = options.precision;
  const StateBytes bytes = state_bytes(units, options, kRanks);
  EXPECT_EQ(bytes.parameters, (base + adapters) * dtype_bytes(p.compute));
  EXPECT_EQ(bytes.gradients, adapters / kRanks * dtype_bytes(p.gradients));
  // The ledger books whole blocks; only the scales of codes do not fill theirs.
  int64_t optimizer = 0, booked = 0;
  constexpr int64_t kAlign = Ledger::kAlignment;
  for (const UnitTraits& unit : units)
    for (const OptimizerState& state : options.optimizer.states(p)) {
      const int64_t one = unit.adapter_elems / kRanks / state.block * dtype_bytes(state.dtype);
      optimizer += one;
      booked += (one + kAlign - 1) / kAlign * kAlign;
    }
  EXPECT_EQ(bytes.optimizer, optimizer);
  const RankRun run = train_on_ranks(spec(), options, kRanks, 1);
  const auto peak = [&](Kind kind) { return run.kinds[0][static_cast<size_t>(kind)]; };
  if (test::test_device_name() == "cpu") {  // a card books larger blocks
    EXPECT_EQ(peak(Kind::parameters), bytes.parameters);
    EXPECT_EQ(peak(Kind::gradients), bytes.gradients);
    EXPECT_EQ(peak(Kind::optimizer), booked);
  }
  const TrafficTable& reduced = run.traffic[static_cast<size_t>(Lane::reduce)];
  int64_t sent = 0;
  for (const auto& traffic : reduced) sent += traffic.bytes_sent;
  EXPECT_EQ(sent, adapters / kRanks * (kRanks - 1) * dtype_bytes(p.gradients));
}

TEST_P(Adapters, OfZerosChangeNothing) {
  const EngineOptions options = options_for(0, GetParam().precision);
  Engine with(spec(), options), without(spec().base(), options);
  const test::OwnedBatch batch = test::random_batch(1, 11, spec().vocab_size, 7);
  EXPECT_EQ(with.evaluate(batch.view()).first, without.evaluate(batch.view()).first)
      << "B begins as zeros, and the base as without adapters";
}

INSTANTIATE_TEST_SUITE_P(Setups, Adapters, testing::ValuesIn(kSetups),
                         [](const auto& info) { return info.param.name; });

TEST(AdapterInit, IsPeftsAndOfEachByItself) {
  const ModelSpec spec = adapted("llama-tiny", {"all-linear"});
  Engine engine(spec, options_for(0));
  const Weights all = test::weights_of(engine);
  for (const ParamSpec& param : parameters_of(spec)) {
    if (!param.adapter) continue;
    const std::vector<float>& values = all.at(param.name);
    double largest = 0, squares = 0;
    for (const float value : values) {
      largest = std::max<double>(largest, std::abs(value));
      squares += static_cast<double>(value) * value;
    }
    if (param.name.ends_with("lora_B")) {
      EXPECT_EQ(largest, 0) << param.name;
      continue;
    }
    const double bound = 1 / std::sqrt(static_cast<double>(param.cols));
    EXPECT_LE(largest, bound) << param.name;
    // Uniform: a third of the square of the bound, on average.
    EXPECT_NEAR(squares / static_cast<double>(values.size()) / (bound * bound), 1.0 / 3, 0.12)
        << param.name;
  }
  Engine fewer(adapted("llama-tiny", {"up_proj"}), options_for(0));
  for (const auto& [name, values] : test::weights_of(fewer))
    EXPECT_EQ(values, all.at(name)) << name;
}

// Along the gradient itself, of all adapters together; masks are those of the first step each time.
TEST(AdapterGradients, AreDifferencesOfTheLossWithDropoutToo) {
  for (const char* preset : {"gpt2-tiny", "llama-tiny", "gemma-tiny", "gptj-tiny"})
    for (const float dropout : {0.0f, 0.3f}) {
      ModelSpec spec = adapted(preset);
      spec.lora.dropout = dropout;
      EngineOptions options = options_for(0);
      options.clipping = 0;
      options.keep_gradients = true;
      Weights gradient;
      const auto loss_at = [&](double distance) {
        Engine engine(spec, options);
        test::change_weights(engine, [&](const ParamSpec& param, std::span<float> dst) {
          if (!param.adapter) return;
          const PhiloxKey key = philox_key(1, Draw::test, param.layer_key, param.place_key);
          for (size_t i = 0; i < dst.size(); ++i) {
            dst[i] = 0.2f * philox_normal(key, i);
            if (distance != 0) dst[i] += static_cast<float>(distance * gradient.at(param.name)[i]);
          }
        });
        const double loss = test::train(engine, 1, 0.0).front();
        if (distance == 0)
          test::for_each_gradient(engine, [&](const ParamSpec& param, std::span<const float> g) {
            EXPECT_TRUE(param.adapter) << param.name;
            gradient[param.name].assign(g.begin(), g.end());
          });
        return loss;
      };
      loss_at(0);
      double squares = 0;
      for (const auto& [name, values] : gradient)
        for (const float value : values) squares += static_cast<double>(value) * value;
      const double step = 2.5e-4 / squares;  // changes the loss by 2.5e-4
      const double difference = (loss_at(step) - loss_at(-step)) / (2 * step);
      EXPECT_NEAR(difference / squares, 1, 3e-3) << preset << " dropout " << dropout;
    }
}

TEST(AdapterDropout, IsOfTrainingAlone) {
  ModelSpec dropped = adapted("llama-tiny"), plain = dropped;
  plain.lora.dropout = 0;
  const auto losses = [](const ModelSpec& spec) {
    Engine engine(spec, options_for(0));
    test::change_weights(engine, [](const ParamSpec& param, std::span<float> dst) {
      if (param.adapter) std::fill(dst.begin(), dst.end(), 0.1f);
    });
    const test::OwnedBatch batch = test::random_batch(1, 11, spec.vocab_size, 7);
    const double evaluated = engine.evaluate(batch.view()).first;
    return std::pair(evaluated, test::train(engine, 1, 0.0).front());
  };
  EXPECT_EQ(losses(dropped).first, losses(plain).first);
  EXPECT_NE(losses(dropped).second, losses(plain).second);
}

// What LoRA is for.
TEST(AdapterState, OfABillionParametersIsUnderFifteenPercentOfFullTraining) {
  ModelSpec spec = spec_from_preset("llama-3.2-1b", "test");
  EngineOptions options{.micro_batch = 1, .sequence = 128};
  options.precision = {.compute = DType::bf16};
  const auto state = [&](const ModelSpec& model) {
    return state_bytes(unit_traits(Model(model), options, 1), options, 1).total();
  };
  const int64_t full = state(spec);
  spec.lora = {.rank = 16, .alpha = 16, .dropout = 0, .targets = {"all-linear"}};
  const int64_t adapters = state(spec);
  RecordProperty("share", fmt::format("{:.4f}", static_cast<double>(adapters) / full));
  EXPECT_LT(adapters, full * 15 / 100);
}

}  // namespace
}  // namespace onefold
