// A run on a pipeline, as a user starts it: plans, weights that are those of one rank, checkpoints,
// MPI.
#include <cstdlib>

#include "cli/support.h"

namespace onefold {
namespace {

class CliPipeline : public Cli {
 protected:
  Outcome train_on(int ranks, std::vector<std::string> keys, const std::string& output,
                   const std::vector<std::string>& flags = {}) const {
    keys.push_back("run.output=" + output);
    keys.push_back("gradient_accumulation_steps=4");
    std::vector<std::string> all = {"--quiet", "--json", "--ranks", std::to_string(ranks)};
    all.insert(all.end(), flags.begin(), flags.end());
    return train(keys, all);
  }
  std::string weights(const std::string& run) const { return read(run + "/weights.safetensors"); }
};

TEST_F(CliPipeline, ThePlanNamesTheStagesAndIsTheRun) {
  const Outcome plan =
      train({"mesh.pipeline=2", "train_batch_size=8", "gradient_accumulation_steps=4"},
            {"--ranks", "4", "--plan-only"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  expect_in(plan.err + plan.out,
            {"mesh     data 2 x pipeline 2: units are divided into 2 stages, schedule 1f1b",
             "x 2 groups", "on each rank at place", "the most of 2 places", "between stages"});
  const Outcome run =
      train_on(4, {"mesh.pipeline=2", "train_batch_size=8", "zero_optimization.stage=2"}, "two");
  ASSERT_EQ(run.code, 0) << run.err;
  const Json summary = Json::parse(run.out);
  EXPECT_EQ(summary["planned_peak_bytes"], summary["ledger_peak_bytes"]);
  bool sent = false;
  for (const Json& lane : summary["communication"])
    sent |= lane["lane"] == "send" && lane["collective"] == "send" && lane["bytes_sent"] > 0;
  EXPECT_TRUE(sent) << summary["communication"];
}

TEST_F(CliPipeline, WritesTheWeightsOfOneRank) {
  ASSERT_EQ(train_on(1, {}, "one").code, 0);
  for (const std::string keys :
       {"pipeline.schedule=1f1b", "pipeline.schedule=gpipe", "pipeline.schedule=zb-h1",
        "pipeline.interleave=2", "pipeline.partition=parameters"}) {
    const Outcome run = train_on(2, {"mesh.pipeline=2", keys}, "two", {"--overwrite"});
    ASSERT_EQ(run.code, 0) << run.err;
    EXPECT_EQ(weights("two"), weights("one")) << keys;
  }
  const Outcome run = train_on(3, {"pipeline.stages=3"}, "three");
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(weights("three"), weights("one"));
}

// The one mesh of two ranks that is left.
TEST_F(CliPipeline, AMeshThatIsAutoIsFoundForARun) {
  const std::string batch = "train_batch_size=8";
  ASSERT_EQ(train_on(1, {batch}, "one").code, 0);
  const Outcome run = train_on(
      2, {R"(mesh={"data": 1, "tensor": 1, "pipeline": "auto"})", batch, "pipeline.schedule=gpipe"},
      "two");
  ASSERT_EQ(run.code, 0) << run.err;
  const Json config = Json::parse(read("two/config.json"));
  EXPECT_EQ(config["mesh"]["pipeline"], 2) << config["mesh"];
  EXPECT_EQ(config["pipeline"]["schedule"], "gpipe");
  EXPECT_EQ(config["train_batch_size"], 8);
  EXPECT_EQ(weights("two"), weights("one"));
}

TEST_F(CliPipeline, AnotherMeshGoesOnWithACheckpointToTheBit) {
  const std::vector<std::string> half = {"run.steps=6", "run.save_every=3", "run.keep_last=9"};
  ASSERT_EQ(train_on(1, half, "one").code, 0);
  std::vector<std::string> keys = half;
  keys.push_back("mesh.pipeline=2");
  const Outcome first = train_on(2, keys, "two");
  ASSERT_EQ(first.code, 0) << first.err;
  for (const int ranks : {1, 2}) {
    std::filesystem::remove_all(folder_.path("two/checkpoints/step-00000006"));
    const Outcome back = train_on(ranks, ranks == 1 ? half : keys, "two", {"--resume", "two"});
    ASSERT_EQ(back.code, 0) << back.err;
    EXPECT_EQ(Json::parse(back.out)["resumed_from_step"], 3);
    EXPECT_EQ(weights("two"), weights("one"));
  }
}

TEST_F(CliPipeline, WhatItSavesIsExportedEvaluatedAndGeneratedFrom) {
  const Outcome run = train_on(2, {"mesh.pipeline=2"}, "two");
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(onefold({"export", "two", "hf"}).code, 0);
  const Outcome text = onefold({"generate", "two", "--prompt", "Number", "--tokens", "4"});
  EXPECT_EQ(text.code, 0) << text.err;
  const Outcome loss = onefold({"eval", "two", "--data", "book.txt"});
  EXPECT_EQ(loss.code, 0) << loss.err;
}

TEST_F(CliPipeline, WhatDoesNotFitIsRefusedWithTheStage) {
  const Outcome run = train({"mesh.pipeline=2"}, {"--quiet", "--ranks", "2", "--memory", "100KiB"});
  expect_error(run, 1, {"this run needs", "run.memory allows", "nothing that keeps the result"});
}

TEST_F(CliPipeline, TheProgramOfEveryStageIsPrinted) {
  const Outcome plan = onefold({"plan", "config.json", "--ranks", "2", "--program", "--set",
                                "mesh.pipeline=2", "--set", "gradient_accumulation_steps=2"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  expect_in(plan.out, {"program of each rank at place 0", "program of each rank at place 1",
                       "  send     send input of block.", "  recv     recv input of block.",
                       "after recv output gradient of block.", "total at place 1"});
}

TEST_F(CliPipeline, TheScheduleIsDrawn) {
  const std::vector<std::string> plan = {
      "plan",  "config.json",     "--ranks", "2",
      "--set", "mesh.pipeline=2", "--set",   "gradient_accumulation_steps=4"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), plan.begin(), plan.end());
    return onefold(more);
  };
  const Outcome drawn = with({"--schedule", "--svg", "schedule.svg"});
  ASSERT_EQ(drawn.code, 0) << drawn.err;
  expect_in(drawn.out, {"  rank 0   |F0", "  rank 1   |..", "B3", "of the ranks' time stands still",
                        "it would be 20.0 %"});
  expect_in(read("schedule.svg"), {"<svg xmlns", "<title>F0</title>", "<title>B3</title>"});
  const Json json = Json::parse(with({"--schedule", "--json"}).out);
  EXPECT_GT(json["idle_share"], 0.1);
  EXPECT_LT(json["idle_share"], 0.6);
  EXPECT_EQ(json["planned_place_peak_bytes"].size(), 2u);
  expect_in(with({"--schedule", "--set", "pipeline.schedule=zb-h1"}).out, {"W0", "W3"});
  const Outcome predicted = with({"--hardware", "laptop", "--trace", "step.json"});
  ASSERT_EQ(predicted.code, 0) << predicted.err;
  expect_in(predicted.out, {"waiting for other stages takes"});
  expect_in(read("step.json"), {"recv input of block."});
  expect_error(onefold({"plan", "config.json", "--schedule"}), 1,
               {"--schedule draws the schedule of a pipeline, and mesh.pipeline is 1"});
}

TEST_F(CliPipeline, MpiWritesTheWeightsOfThreads) {
  if (std::system("command -v mpirun > /dev/null 2>&1") != 0)
    GTEST_SKIP() << "there is no mpirun here";
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // Open MPI's own, at its end
  ASSERT_EQ(train_on(1, {}, "one").code, 0);
  for (const std::string key : {"pipeline.schedule=zb-h1", "pipeline.interleave=2"}) {
    const Outcome mpi =
        onefold(train_arguments({"mesh.pipeline=2", key, "gradient_accumulation_steps=4",
                                 "run.check_collectives=true", "run.output=mpi"},
                                {"--quiet", "--json", "--overwrite"}),
                {.launcher = {"mpirun", "--oversubscribe", "-n", "2"}});
    ASSERT_EQ(mpi.code, 0) << mpi.err;
    EXPECT_EQ(weights("mpi"), weights("one")) << key;
    const Json summary = Json::parse(mpi.out);
    EXPECT_EQ(summary["planned_peak_bytes"], summary["ledger_peak_bytes"]);
  }
}

}  // namespace
}  // namespace onefold
