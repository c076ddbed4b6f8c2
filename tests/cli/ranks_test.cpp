// Runs on several ranks, as a user starts them: threads and MPI give the same files, and faults end
// all ranks with the name of the one that failed.
#include <cstdlib>
#include <set>

#include "cli/support.h"

namespace onefold {
namespace {

class CliRanks : public Cli {
 protected:
  std::string weights_after(const std::string& output, std::vector<std::string> settings,
                            const std::vector<std::string>& flags) {
    settings.push_back("run.output=" + output);
    const Outcome outcome = train(settings, flags);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? read(output + "/weights.safetensors") : "";
  }
};

const std::vector<std::string> kStageThree = {"zero_optimization.stage=3",
                                              "zero_optimization.param_persistence_threshold=0"};

TEST_F(CliRanks, EveryStageWritesTheSameWeights) {
  const std::string reference = weights_after("zero", {}, {"--quiet", "--ranks", "2"});
  EXPECT_EQ(reference, weights_after("one", {"zero_optimization.stage=1"}, {"--ranks", "2"}));
  EXPECT_EQ(reference, weights_after("two", {"zero_optimization.stage=2"}, {"--ranks", "2"}));
  EXPECT_EQ(reference, weights_after("three", kStageThree, {"--ranks", "2"}));
}

TEST_F(CliRanks, ThePlanIsPrintedBeforeAndComparedAfter) {
  std::vector<std::string> settings = kStageThree;
  settings.push_back("wall_clock_breakdown=true");
  const Outcome outcome = train(settings, {"--ranks", "2"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_in(outcome.err, {"x 2 ranks", "2 ranks over threads with 1 thread each",
                          "stage 3: on each rank parameters 1/2, gradients 1/2, optimizer 1/2",
                          "planned on each rank: parameters", "sends    on each rank and step:",
                          "communication ", "hidden", "all_gather", "reduce_scatter"});
  const Outcome json = train(settings, {"--ranks", "2", "--json", "--overwrite"});
  const Json summary = Json::parse(json.out);
  EXPECT_EQ(summary["ranks"], 2);
  EXPECT_EQ(summary["planned_peak_bytes"], summary["ledger_peak_bytes"]);
  EXPECT_GT(summary["communication"].size(), 1);
}

TEST_F(CliRanks, APlanSaysWhatLittleRanksSendThatStepByThemselves) {
  const Outcome outcome = train({"delay.local_steps=4"}, {"--ranks", "2", "--plan-only"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_in(outcome.out, {"sends    on each rank and step: a few numbers"});
}

TEST_F(CliRanks, ATraceHasEveryRankAndLane) {
  ASSERT_EQ(train(kStageThree, {"--ranks", "2", "--trace", "trace.json"}).code, 0);
  const Json trace = Json::parse(read("trace.json"));
  std::set<std::pair<int, int>> lanes;
  std::set<std::string> names;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    lanes.emplace(event["pid"], event["tid"]);
    names.insert(event["name"]);
    EXPECT_GE(event["dur"].get<double>(), 0);
  }
  EXPECT_EQ(lanes.size(), 6);
  for (const char* name : {"forward block.1.attention, micro 0", "gather block.1.mlp, step 2",
                           "reduce head and 7 more, step 1", "step block.2.mlp", "clip"})
    EXPECT_TRUE(names.contains(name)) << name;
}

TEST_F(CliRanks, MemoryIsALimitForEachRank) {
  const Outcome outcome = train({}, {"--ranks", "2", "--memory", "1MiB"});
  EXPECT_EQ(outcome.code, 1);
  expect_in(outcome.err, {"on each rank", "run.memory allows 1.00 MiB", "what would fit",
                          "zero_optimization.stage"});
}

TEST_F(CliRanks, PlanNeedsNoDataAndPlansForAnyNumber) {
  folder_.write("plan.json", R"({"model": "gpt2", "train_micro_batch_size_per_gpu": 1,
                                 "zero_optimization": {"stage": 3}})");
  const Outcome text = onefold({"plan", "plan.json", "--ranks", "10000"});
  EXPECT_EQ(text.code, 0) << text.err;
  expect_in(text.out, {"10.0K ranks", "stage 3 (this)", "memory of each rank", "sends"});
  const Outcome json = onefold({"plan", "plan.json", "--ranks", "8", "--memory", "2GiB", "--json"});
  const Json plan = Json::parse(json.out);
  EXPECT_EQ(plan["ranks"], 8);
  EXPECT_EQ(plan["stages"].size(), 4);
  EXPECT_EQ(json.code, plan["fits"].get<bool>() ? 0 : 1);
  const Outcome tight = onefold({"plan", "plan.json", "--ranks", "2", "--memory", "900MiB"});
  EXPECT_EQ(tight.code, 1);
  expect_in(tight.out, {"it does not fit", "the fastest first"});
}

// Through mpirun, where there is one.
class CliMpi : public CliRanks {
 protected:
  void SetUp() override {
    CliRanks::SetUp();
    if (std::system("command -v mpirun > /dev/null 2>&1") != 0)
      GTEST_SKIP() << "there is no mpirun here";
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // Open MPI's own, at its end
  }
  Outcome mpi(int ranks, const Arguments& arguments) const {
    return onefold(arguments,
                   {.launcher = {"mpirun", "--oversubscribe", "-n", std::to_string(ranks)}});
  }
};

TEST_F(CliMpi, ProcessesMeasureTogetherWhatEachOfThemHas) {
  const Outcome outcome = mpi(2, {"info", "--save", "machine.json", "--threads", "2"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 1) << "one of them prints";
  expect_in(outcome.out, {"machine.json", "each of 2 ranks"});
  const Json machine = Json::parse(read("machine.json"));
  EXPECT_EQ(machine["cores"], 1);
  EXPECT_GT(machine["link_gb_per_s"], 0.0);
}

// Each would train on its own, and the sums of their gradients would mean nothing.
TEST_F(CliMpi, RanksThatWereToldDifferentThingsAreNamed) {
  folder_.write("other.txt", read("book.txt") + "One line more, that nobody else has.\n");
  const auto with_second = [&](const std::string& assignment) {
    return mpi(1, {"train", "config.json", "--quiet", ":", "-n", "1", ONEFOLD_BINARY, "train",
                   "config.json", "--quiet", "--set", assignment});
  };
  const Outcome seed = with_second("run.seed=7");
  EXPECT_EQ(seed.code, 1);
  expect_in(seed.err, {"rank 1: configuration.run.seed is 7, and rank 0 has 1"});
  const Outcome data = with_second("data.train=other.txt");
  EXPECT_EQ(data.code, 1);
  expect_in(data.err, {"rank 1: data.xxh3 is", "rank 1: data.train_tokens is"});
  // The same bytes in the same order, in one bucket or unit by unit: no collective would notice.
  expect_in(with_second("zero_optimization.reduce_bucket_size=0").err, {"reduce_bucket_size is 0"});
  EXPECT_FALSE(exists("run/checkpoints"));
  EXPECT_EQ(with_second("run.seed=1").code, 0);
}

TEST_F(CliMpi, WritesTheWeightsOfThreads) {
  const std::string threads = weights_after("threads", kStageThree, {"--ranks", "2"});
  const Outcome outcome =
      mpi(2, {"train", "config.json", "--set", "zero_optimization.stage=3", "--set",
              "zero_optimization.param_persistence_threshold=0", "--set", "run.output=mpi"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_in(outcome.err, {"2 ranks over MPI"});
  EXPECT_EQ(threads, read("mpi/weights.safetensors"));
}

TEST_F(CliMpi, ABadConfigurationIsReportedOnce) {
  const Outcome outcome = mpi(3, {"train", "config.json", "--set", "run.steps=none"});
  EXPECT_NE(outcome.code, 0);
  const size_t first = outcome.err.find("run.steps");
  ASSERT_NE(first, std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find("onefold: error", outcome.err.find("onefold: error") + 1),
            std::string::npos)
      << outcome.err;
}

TEST_F(CliMpi, WhatAllRanksRefuseIsReportedOnce) {
  ASSERT_EQ(train({}, {"--quiet"}).code, 0);
  const Outcome outcome = mpi(2, {"train", "config.json", "--set", "run.steps=2", "--resume",
                                  "--allow-changes", "--quiet"});
  EXPECT_NE(outcome.code, 0);
  const size_t first = outcome.err.find("3 steps behind it");
  ASSERT_NE(first, std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find("3 steps behind it", first + 1), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find("failed:"), std::string::npos) << outcome.err;
}

TEST_F(CliMpi, DivergenceIsReportedOnceAndKeepsTheCheckpoint) {
  const Outcome outcome =
      mpi(2, train_arguments({"optimizer.params.lr=1e30", "run.save_every=1"}, {"--quiet"}));
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  const size_t first = outcome.err.find("onefold: diverged: step 2");
  ASSERT_NE(first, std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find("step 2", first + 25), std::string::npos) << outcome.err;
  EXPECT_TRUE(exists("run/checkpoints/step-00000001/manifest.json"));
}

TEST_F(CliMpi, RanksMustAgreeWithTheLauncher) {
  const Outcome outcome = mpi(2, {"train", "config.json", "--ranks", "3"});
  EXPECT_NE(outcome.code, 0);
  expect_in(outcome.err, {"--ranks 3 was given", "started 2"});
}

}  // namespace
}  // namespace onefold
