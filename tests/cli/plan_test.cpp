// Plans for hardware that is described, and what they refuse.
#include "cli/support.h"

namespace onefold {
namespace {

class CliPlan : public Cli {
 protected:
  CliPlan() {
    folder_.write("plan.json", R"({"model": {"preset": "gpt2", "vocab_size": 512},
                                   "train_micro_batch_size_per_gpu": 1,
                                   "zero_optimization": {"stage": 3}})");
    folder_.write("big.json", R"({"name": "big", "cores": 192, "instruction_set": "AVX3",
                                  "device_memory": "3GiB"})");
  }
  Json plan(Arguments more) {
    Arguments arguments = {"plan", "plan.json", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = onefold(arguments);
    EXPECT_LE(outcome.code, 1) << outcome.err;
    return Json::parse(outcome.out);
  }
};

TEST_F(CliPlan, IsForTheDescribedCoresWhateverThisMachineHas) {
  const Json described = plan({"--hardware", "big.json"}), one = plan({});
  EXPECT_EQ(described["hardware"]["cores"], 192);
  EXPECT_EQ(described["hardware"]["instruction_set"], "AVX3");
  EXPECT_GT(described["planned_bytes"]["workspace"], one["planned_bytes"]["workspace"]);
  // More threads than this machine has cores, by the command line or by the configuration.
  EXPECT_EQ(plan({"--threads", "192"})["planned_peak_bytes"], described["planned_peak_bytes"]);
  EXPECT_EQ(plan({"--set", "run.threads=192"})["planned_peak_bytes"],
            described["planned_peak_bytes"]);
}

TEST_F(CliPlan, TheDescribedMemoryIsTheLimit) {
  EXPECT_EQ(plan({"--hardware", "big.json"})["fits"], true);
  folder_.write("small.json", R"({"device_memory": "1GiB"})");
  EXPECT_EQ(plan({"--hardware", "small.json"})["fits"], false);
  EXPECT_EQ(plan({"--hardware", "small.json", "--memory", "64GiB"})["fits"], true);
}

TEST_F(CliPlan, HardwareThatIsNotThereIsNamed) {
  const Outcome unknown = onefold({"plan", "plan.json", "--hardware", "server-6"});
  EXPECT_EQ(unknown.code, 1);
  expect_in(unknown.err, {"no hardware \"server-6\"", "server-64"});
  folder_.write("bad.json", R"({"core": 4})");
  const Outcome bad = onefold({"plan", "plan.json", "--hardware", "bad.json"});
  EXPECT_EQ(bad.code, 1);
  expect_in(bad.err, {"bad.json", "core"});
}

TEST_F(CliPlan, TakesNoLongerForMoreOfTheSame) {
  // Accumulation, ranks and sequences are walked, not extrapolated; each was minutes once.
  EXPECT_GT(
      plan({"--ranks", "8", "--set", "gradient_accumulation_steps=512"})["planned_peak_bytes"], 0);
  EXPECT_GT(plan({"--set", "train_micro_batch_size_per_gpu=100000"})["planned_peak_bytes"], 0);
}

}  // namespace
}  // namespace onefold
