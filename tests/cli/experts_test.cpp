// A mixture of experts through the commands: what is planned, measured, resumed and refused.
#include "cli/support.h"

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

TEST_F(CliExperts, WhatIsNotThereYetIsRefused) {
  const auto refused = [&](const Arguments& fields, const Arguments& flags = {}) {
    const Outcome outcome = train(fields, flags);
    EXPECT_NE(outcome.code, 0);
    return outcome.err;
  };
  expect_in(refused({kModel, "optimizer.type=Muon"}), {"model.experts", "Muon"});
  expect_in(refused({kModel, "run.device=cuda"}), {"model.experts", "the device cpu alone"});
  expect_in(refused({kModel, "mesh.context=2", "data.sequence_length=32"}, {"--ranks", "2"}),
            {"mesh.context is 2", "a capacity of experts (capacity_factor)"});
}

}  // namespace
}  // namespace onefold
