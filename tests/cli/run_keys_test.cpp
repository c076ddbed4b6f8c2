// What keys of `run` do to a run. Those that steer failed and timed saves are in resume_test.cpp,
// check_collectives, which is for MPI, in tests/comm.
#include "cli/support.h"
#include "io/safetensors.h"

namespace onefold {
namespace {

class CliRunKeys : public Cli {
 protected:
  // Steps of the checkpoints that a run of five steps leaves, newest first.
  std::vector<int64_t> kept(const Arguments& keys) const {
    Arguments all = {"run.output=kept", "run.steps=5", "run.save_every=1"};
    all.insert(all.end(), keys.begin(), keys.end());
    const Outcome outcome = train(all);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::vector<int64_t> steps;
    for (const auto& entry : CheckpointFolder(folder_.path("kept/checkpoints")).list())
      steps.push_back(entry.step);
    std::filesystem::remove_all(folder_.path("kept"));
    return steps;
  }

  // How often one rank gathers at stage 3, in a run that accumulates in this order.
  int64_t gathers(const std::string& order) const {
    const Outcome outcome =
        train({"zero_optimization.stage=3", "zero_optimization.param_persistence_threshold=0",
               "run.accumulate=" + order, "run.output=" + order},
              {"--ranks", "2", "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const Json summary = Json::parse(outcome.out);
    for (const Json& traffic : summary["communication"])
      if (traffic["lane"] == "gather") return traffic["count"];
    return 0;
  }

  std::vector<float> values(const std::string& run, const std::string& tensor) const {
    const SafetensorsFile file(folder_.path(run + "/weights.safetensors"));
    for (const SafetensorsEntry& entry : file.entries())
      if (entry.name == tensor) {
        std::vector<float> read(static_cast<size_t>(entry.elems()));
        file.read(tensor, std::span<float>(read));
        return read;
      }
    return {};
  }
};

using Steps = std::vector<int64_t>;

TEST_F(CliRunKeys, KeepLastAndKeepEveryChooseTheCheckpointsThatStay) {
  EXPECT_EQ(kept({"run.keep_last=3"}), (Steps{5, 4, 3}));
  EXPECT_EQ(kept({"run.keep_last=1", "run.keep_every=2"}), (Steps{5, 4, 2}));
}

TEST_F(CliRunKeys, FreezeLeavesAUnitAsItWas) {
  make_run("untrained");
  ASSERT_EQ(train({"run.freeze=[\"block.1\"]"}).code, 0);
  const SafetensorsFile file(folder_.path("run/weights.safetensors"));
  int frozen = 0;
  for (const SafetensorsEntry& entry : file.entries()) {
    const bool stays = entry.name.starts_with("block.1.");
    EXPECT_EQ(values("run", entry.name) == values("untrained", entry.name), stays) << entry.name;
    frozen += stays;
  }
  EXPECT_GT(frozen, 0);
}

// One order gathers the units for each micro-batch, the other once for both.
TEST_F(CliRunKeys, AccumulateChangesHowOftenUnitsAreGatheredAndNotTheWeights) {
  const int64_t micro_first = gathers("micro_first"), unit_first = gathers("unit_first");
  EXPECT_GT(unit_first, 0);
  EXPECT_LT(unit_first, micro_first);
  EXPECT_EQ(read("micro_first/weights.safetensors"), read("unit_first/weights.safetensors"));
}

// In a thousand steps, some rank waits for the other longer than a microsecond.
TEST_F(CliRunKeys, TimeoutIsHowLongARankWaits) {
  expect_error(train({"run.timeout=1e-6", "run.steps=1000"}, {"--ranks", "2", "--quiet"}), 1,
               {"did not reach", "within 1e-06 seconds"});
}

}  // namespace
}  // namespace onefold
