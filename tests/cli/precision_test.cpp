// Number types, from the command line: same bits at every stage, as planned, resumed, converted.
#include "cli/support.h"

namespace onefold {
namespace {

struct Types {
  const char* name;
  Arguments keys;
};

const Types kTypes[] = {
    {"bf16", {"bf16.enabled=true"}},
    {"bf16 gradients", {"bf16.enabled=true", "data_types.grad_accum_dtype=bf16"}},
    {"bf16 moments", {"bf16.enabled=true", "data_types.moments=bf16"}},
    {"bf16 states",
     {"bf16.enabled=true", "bf16.bf16_master_weights_and_grads=true",
      "bf16.bf16_optimizer_states=true"}},
    // The first scale overflows, and is halved until it does not.
    {"fp16", {"fp16.enabled=true", "fp16.initial_scale_power=30", "fp16.hysteresis=1"}},
};

class CliPrecision : public Cli {
 protected:
  // The summary of a run; `keys` and then `more`.
  Json run(const Types& types, const std::string& output, const Arguments& more,
           Arguments flags = {}) const {
    Arguments keys = types.keys;
    keys.push_back("run.output=" + output);
    keys.insert(keys.end(), more.begin(), more.end());
    flags.push_back("--json");
    const Outcome outcome = train(keys, flags);
    EXPECT_EQ(outcome.code, 0) << types.name << ": " << outcome.err;
    return outcome.code == 0 ? Json::parse(outcome.out) : Json();
  }
  std::string weights(const std::string& output) const {
    return read(output + "/weights.safetensors");
  }
};

TEST_F(CliPrecision, StagesHaveTheSameBitsAndThePlannedPeak) {
  for (const Types& types : kTypes) {
    SCOPED_TRACE(types.name);
    std::string first;
    for (const int stage : {0, 2, 3}) {
      const std::string output = fmt::format("{} {}", types.name, stage);
      const Json summary = run(types, output,
                               {fmt::format("zero_optimization.stage={}", stage),
                                "zero_optimization.stage3_param_persistence_threshold=0",
                                "gradient_accumulation_steps=1"},
                               {"--ranks", "2"});
      EXPECT_EQ(summary["planned_peak_bytes"], summary["ledger_peak_bytes"]);
      if (first.empty()) first = weights(output);
      EXPECT_TRUE(weights(output) == first) << "stage " << stage;
    }
  }
}

TEST_F(CliPrecision, AResumedRunHasTheBitsOfOneRun) {
  for (const Types& types : kTypes) {
    SCOPED_TRACE(types.name);
    const std::string whole = fmt::format("{} whole", types.name),
                      resumed = fmt::format("{} resumed", types.name);
    run(types, whole, {"run.steps=18", "run.save_every=4", "run.keep_last=9"});
    run(types, resumed, {"run.steps=18"},
        {"--resume", whole + "/checkpoints/step-00000004", "--quiet"});
    EXPECT_TRUE(weights(resumed) == weights(whole));
    EXPECT_EQ(lines(resumed + "/metrics.jsonl").back().value("skipped_steps", Json()),
              lines(whole + "/metrics.jsonl").back().value("skipped_steps", Json()));
  }
}

TEST_F(CliPrecision, Fp16SkipsStepsThatOverflowAndSaysSo) {
  const Outcome outcome =
      train({"fp16.enabled=true", "fp16.initial_scale_power=40", "fp16.hysteresis=1"}, {});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  expect_in(outcome.err, {"types    parameters and activations f16, gradients f32, master weights "
                          "f32, moments f32; the loss scale follows the gradients from 2^40 on",
                          "step 1 is skipped: its gradients are not finite"});
  const std::vector<Json> steps = lines("run/metrics.jsonl");
  EXPECT_EQ(steps.front()["loss_scale"], 0x1p40);
}

TEST_F(CliPrecision, AnotherPrecisionAtResumeIsAChangeThatConvertsStates) {
  run(kTypes[0], "bf16", {"run.steps=6", "run.save_every=3"});
  const Arguments resume = {"--resume", "bf16/checkpoints/step-00000003", "--json"};
  expect_error(train({"run.output=other", "run.steps=6"}, resume), 1, {"bf16", "--allow-changes"});
  for (const Types& types : kTypes) {
    Arguments flags = resume;
    flags.push_back("--allow-changes");
    const Json summary =
        run(types, fmt::format("to {}", types.name), {"run.steps=6"}, std::move(flags));
    EXPECT_EQ(summary["resumed_from_step"], 3) << types.name;
  }
}

TEST_F(CliPrecision, ThePlanCountsTheBytesOfTheTypes) {
  const auto optimizer_bytes = [&](const Arguments& keys) {
    Arguments words = {"plan", "config.json", "--json"};
    for (const std::string& key : keys) words.insert(words.end(), {"--set", key});
    const Outcome outcome = onefold(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out)["planned_bytes"]["optimizer"].get<double>();
  };
  const double fp32 = optimizer_bytes({"data.tokenizer=bytes"});
  EXPECT_NEAR(optimizer_bytes(kTypes[0].keys) / fp32, 12.0 / 8, 0.01);
  EXPECT_NEAR(optimizer_bytes(kTypes[3].keys) / fp32, 4.0 / 8, 0.01);
}

TEST_F(CliPrecision, ADeviceThatIsNotThereIsSaid) {
  expect_error(train({}, {"--device", "tpu"}), 1, {"run.device", "cpu", "cuda", "tpu"});
  expect_error(onefold({"plan", "config.json", "--set", "run.device=cuda"}), 1,
               {"run.device is \"cuda\"", "--hardware"});
}

}  // namespace
}  // namespace onefold
