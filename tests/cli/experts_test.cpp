// A mixture of experts through the commands: what is planned, measured, resumed and refused.
#include "cli/support.h"
#include "model/spec.h"

namespace onefold {
namespace {

class CliExperts : public Cli {
 protected:
  static constexpr const char* kModel =
      R"(model={"preset": "mixtral-tiny", "vocab_size": 260, "experts": {"num_experts": 4,
         "balance_loss": 0.02, "z_loss": 0.01, "capacity_factor": 1, "dense_blocks": [1]}})";
};

TEST_F(CliExperts, MetricsHaveTheLossesOfRoutersAndTheLoadOfEveryExpert) {
  const Outcome planned = train({kModel, "run.steps=2", "run.output=run"}, {"--plan-only"});
  ASSERT_EQ(planned.code, 0) << planned.err;
  expect_in(planned.out, {"4 experts and 2 for a token, computed with"});
  const Outcome trained = train({kModel, "run.steps=2", "run.output=run"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  int steps = 0;
  for (const Json& line : lines("run/metrics.jsonl")) {
    if (line["event"] != "step") continue;
    ++steps;
    EXPECT_GT(line["balance_loss"].get<double>(), 0.02);
    EXPECT_GT(line["z_loss"].get<double>(), 0);
    ASSERT_EQ(line["experts"].size(), 2u) << "block 1 has none";
    for (const char* unit : {"block.0.mlp", "block.2.mlp"}) {
      const Json& layer = line["experts"][unit];
      ASSERT_EQ(layer["shares"].size(), 4u);
      double sum = 0;
      for (const Json& share : layer["shares"]) sum += share.get<double>();
      EXPECT_NEAR(sum, 1, 1e-9);
      EXPECT_GE(layer["dropped"].get<double>(), 0);
      EXPECT_LT(layer["dropped"].get<double>(), 1);
    }
  }
  EXPECT_EQ(steps, 2);
  expect_in(onefold({"inspect", "run"}).out, {"4 experts, 2 for a token"});
}

TEST_F(CliExperts, ARunThatIsResumedHasTheWeightsOfOneThatWasNot) {
  const Outcome whole = train({kModel, "run.steps=4", "run.save_every=2", "run.output=whole"});
  ASSERT_EQ(whole.code, 0) << whole.err;
  const Outcome resumed = train({kModel, "run.steps=4", "run.output=other"},
                                {"--resume", "whole/checkpoints/step-00000002", "--quiet"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(read("other/weights.safetensors"), read("whole/weights.safetensors"));
}

TEST_F(CliExperts, ArePlannedForACard) {
  const Outcome planned =
      onefold({"plan", "config.json", "--ranks", "2", "--hardware", "h200", "--set", kModel});
  ASSERT_EQ(planned.code, 0) << planned.err;
  expect_in(planned.out, {"4 experts and 2 for a token", "as predicted for h200"});
}

// Of dropped choices nothing is.
TEST_F(CliExperts, ABenchmarkCountsTheOperationsThatAreComputed) {
  const auto bench = [&](const char* capacity) {
    const Outcome outcome =
        onefold({"bench", "step", "--model", "llama-tiny", "--batch", "2", "--sequence", "32",
                 "--steps", "1", "--warmup", "0", "--threads", "1", "--experts", "4", "--capacity",
                 capacity, "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out);
  };
  const auto operations = [](const Json& json) {
    return 1e9 * json["model_gflops"].get<double>() / json["tokens_per_second"].get<double>();
  };
  const Json all = bench("0"), some = bench("0.5");
  EXPECT_EQ(all["dropped_choices"], 0.0);
  const double dropped = some["dropped_choices"];
  EXPECT_GE(dropped, 0.5);
  EXPECT_LT(dropped, 1);
  const ModelSpec spec = spec_from_preset("llama-tiny", "test");
  // Two gated experts in each block, half as wide: three products of three matrices each.
  const auto weights = static_cast<double>(spec.num_layers * 2 * 3 * spec.hidden_size *
                                           (spec.intermediate_size / 2));
  EXPECT_NEAR(operations(some), operations(all) - dropped * 6 * weights, 1e-6 * operations(all));
}

TEST_F(CliExperts, WhatIsNotThereYetIsRefused) {
  const auto refused = [&](const Arguments& fields, const Arguments& flags = {}) {
    const Outcome outcome = train(fields, flags);
    EXPECT_NE(outcome.code, 0);
    return outcome.err;
  };
  expect_in(refused({kModel, "optimizer.type=Muon"}), {"model.experts", "Muon"});
  expect_in(refused({kModel, "mesh.context=2", "data.sequence_length=32"}, {"--ranks", "2"}),
            {"mesh.context is 2", "a capacity of experts (capacity_factor)"});
}

}  // namespace
}  // namespace onefold
