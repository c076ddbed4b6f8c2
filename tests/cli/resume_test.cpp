// Saving and going on, as a user sees them: flags, signals, full disks, damage and restarts.
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>

#include "cli/support.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;

class CliResume : public Cli {
 protected:
  // A run of eight steps that keeps all its checkpoints, never interrupted.
  void train_whole() {
    const Outcome outcome =
        train({"run.output=whole", "run.steps=8", "run.save_every=2", "run.keep_last=9"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  }
  std::string whole_weights() const { return read("whole/weights.safetensors"); }

  static std::string checkpoint(const std::string& run, int step) {
    return fmt::format("{}/checkpoints/step-{:08}", run, step);
  }
  size_t checkpoints(const std::string& run) const {
    return CheckpointFolder(folder_.path(run + "/checkpoints")).list().size();
  }
  std::vector<int64_t> steps_in_metrics(const std::string& run) const {
    std::vector<int64_t> steps;
    for (const Json& line : lines(run + "/metrics.jsonl"))
      if (line["event"] == "step") steps.push_back(line["step"]);
    return steps;
  }
  void expect_every_step_once(const std::string& run, int64_t steps) const {
    std::vector<int64_t> expected;
    for (int64_t step = 1; step <= steps; ++step) expected.push_back(step);
    EXPECT_EQ(steps_in_metrics(run), expected);
  }
  Process start(const Arguments& keys, const Arguments& flags) const {
    return {folder_.path(""), train_arguments(keys, flags), {}};
  }
  // Long enough that a signal comes in the middle, whatever else the machine does.
  bool steps_begin(const std::string& run) const {
    return eventually(
        [&] { return exists(run + "/metrics.jsonl") && steps_in_metrics_safely(run) >= 2; });
  }
  size_t steps_in_metrics_safely(const std::string& run) const {
    const std::string text = read(run + "/metrics.jsonl");
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }
  void flip_a_bit(const std::string& name) const {
    std::string bytes = read(name);
    bytes[bytes.size() - 10] = static_cast<char>(bytes[bytes.size() - 10] ^ 1);
    folder_.write(name, bytes);
  }
};

TEST_F(CliResume, WithoutACheckpointARunBegins) {
  const Outcome outcome = train({"run.save_every=2"}, {"--resume", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json summary = Json::parse(outcome.out);
  EXPECT_EQ(summary["resumed_from_step"], 0);
  EXPECT_GE(summary["checkpoint_stall_seconds"].get<double>(), 0);
  EXPECT_EQ(checkpoints("run"), 2);  // of steps 2 and 3
  expect_error(train({"run.output="}, {"--resume"}), 1, {"--resume", "names no run.output"});
  expect_error(train({}, {"--resume", "nowhere"}), 1, {"--resume", "nowhere", "neither"});
}

TEST_F(CliResume, ANamedCheckpointGivesTheBitsOfOneRun) {
  train_whole();
  const Outcome outcome =
      train({"run.output=other", "run.steps=8"}, {"--resume", checkpoint("whole", 4), "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out)["resumed_from_step"], 4);
  EXPECT_EQ(Json::parse(outcome.out)["steps"], 8);
  EXPECT_EQ(Json::parse(outcome.out)["new_steps"], 4);
  EXPECT_EQ(read("other/weights.safetensors"), whole_weights());
  EXPECT_EQ(steps_in_metrics("other"), (std::vector<int64_t>{5, 6, 7, 8}));
}

TEST_F(CliResume, TheReportSaysHowManyStepsAreNew) {
  train_whole();
  const Outcome resumed =
      train({"run.output=other", "run.steps=8"}, {"--resume", checkpoint("whole", 6)});
  expect_in(resumed.err, {"\n8 steps (2 since it was resumed) in "});
  expect_in(train({}, {}).err, {"\n3 steps in "});
}

// Its config.json, run.json and manifests have a key that is none any more.
TEST_F(CliResume, ARunOfAFormerVersionIsResumedAndInspected) {
  train_whole();
  const std::string weights = whole_weights();
  Json config = Json::parse(read("whole/config.json")), run = Json::parse(read("whole/run.json")),
       manifest = Json::parse(read(checkpoint("whole", 4) + "/manifest.json"));
  config["run"]["products"] = "auto";
  run["configuration"]["run"]["products"] = "auto";
  manifest["run"]["configuration"]["run"]["products"] = "paired";
  manifest["xxh3"] = manifest_checksum(manifest);
  folder_.write("whole/config.json", config.dump());
  folder_.write("whole/run.json", run.dump());
  folder_.write(checkpoint("whole", 4) + "/manifest.json", manifest.dump());
  for (const std::string& path : {std::string("whole"), checkpoint("whole", 4)}) {
    const Outcome inspected = onefold({"inspect", path});
    EXPECT_EQ(inspected.code, 0) << inspected.err;
  }
  const Outcome outcome =
      onefold({"train", "whole/config.json", "--resume", checkpoint("whole", 4), "--quiet"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(whole_weights(), weights);
  EXPECT_FALSE(Json::parse(read("whole/config.json"))["run"].contains("products"));
}

TEST_F(CliResume, ARunIsResumedInItsOwnFolderHoweverItIsNamed) {
  train_whole();
  const std::string weights = whole_weights();
  for (const char* name : {"whole", "./whole/", "whole/../whole"}) {
    const Outcome outcome =
        train({"run.output=whole", "run.steps=8"}, {"--resume", name, "--overwrite", "--quiet"});
    ASSERT_EQ(outcome.code, 0) << name << outcome.err;
    EXPECT_EQ(whole_weights(), weights);
  }
  // And from an earlier one of its own: later lines and weights go, and come again.
  const Outcome outcome = train({"run.output=whole", "run.steps=8"},
                                {"--resume", "./" + checkpoint("whole", 2), "--quiet"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(whole_weights(), weights);
  expect_every_step_once("whole", 8);
}

TEST_F(CliResume, AFinishedRunIsNotOverwrittenByMistake) {
  train_whole();
  expect_error(train({"run.output=whole"}), 1, {"already holds a trained model", "--resume"});
}

TEST_F(CliResume, ChangesThatAlterTrainingAreListed) {
  train_whole();
  const Arguments keys = {"run.output=whole", "run.steps=8", "optimizer.params.lr=2e-3",
                          "steps_per_print=3", "gradient_accumulation_steps=1"};
  expect_error(train(keys, {"--resume", "--quiet"}), 1,
               {"optimizer.params.lr: 0.002, was 0.001", "--allow-changes"});
  const Outcome outcome = train(keys, {"--resume", "--allow-changes", "--quiet"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  expect_in(outcome.err, {"going on with changes", "optimizer.params.lr: 0.002, was 0.001"});
  EXPECT_EQ(outcome.err.find("steps_per_print"), std::string::npos);
  // By a sequence at least: what makes none does not matter.
  folder_.write("book.txt", read("book.txt") + "One line more, and it is a long one.\n");
  expect_error(train({"run.output=whole", "run.steps=8"}, {"--resume", "--quiet"}), 1,
               {"data: the training sequences are others"});
}

TEST_F(CliResume, AFinishedRunCanBeMadeLonger) {
  train_whole();
  const Outcome outcome =
      train({"run.output=whole", "run.steps=10"}, {"--resume", "--allow-changes", "--quiet"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_every_step_once("whole", 10);
  expect_error(train({"run.output=whole", "run.steps=5"}, {"--resume", "--allow-changes"}), 1,
               {"10 steps behind it", "run.steps"});
}

TEST_F(CliResume, WhatAllRanksRefuseIsSaidOnceAndOfNoRank) {
  train_whole();
  const Outcome shorter = train({"run.output=whole", "run.steps=5"},
                                {"--resume", "--allow-changes", "--ranks", "2", "--quiet"});
  expect_error(shorter, 1,
               {"onefold: error: whole/checkpoints/step-00000008 has 8 steps behind it"});
  for (const int step : {2, 4, 6, 8})
    flip_a_bit(checkpoint("whole", step) + "/rank-00000.safetensors");
  const Outcome damaged =
      train({"run.output=whole", "run.steps=8"}, {"--resume", "--ranks", "2", "--quiet"});
  expect_error(damaged, 1, {"onefold: error: no checkpoint can be resumed from"});
}

TEST_F(CliResume, ADamagedCheckpointIsNamedAndTheOneBeforeIsUsed) {
  train_whole();
  const std::string weights = whole_weights();
  flip_a_bit(checkpoint("whole", 8) + "/rank-00000.safetensors");
  const Outcome outcome = train({"run.output=whole", "run.steps=8"}, {"--resume"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_in(outcome.err, {"passed over: whole/checkpoints/step-00000008/rank-00000.safetensors",
                          "resumed from whole/checkpoints/step-00000006"});
  EXPECT_EQ(whole_weights(), weights);
  // It was replaced by one that is whole.
  const Outcome again = train({"run.output=whole", "run.steps=8"}, {"--resume"});
  expect_in(again.err, {"resumed from whole/checkpoints/step-00000008"});
}

TEST_F(CliResume, StoppedAndResumedIsOneRun) {
  const Arguments keys = {"run.steps=60", "run.keep_last=1"};
  ASSERT_EQ(train({"run.steps=60", "run.output=whole"}).code, 0);
  const Process process = start(keys, {"--ranks", "2", "--json"});
  ASSERT_TRUE(steps_begin("run"));
  process.send(SIGTERM);
  const Outcome stopped = process.wait();
  ASSERT_EQ(stopped.code, 130) << stopped.err;
  const Json summary = Json::parse(stopped.out);
  EXPECT_LT(summary["steps"].get<int64_t>(), 60);
  EXPECT_EQ(checkpoints("run"), 1);
  const Outcome resumed = train(keys, {"--ranks", "2", "--resume", "--json"});
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(Json::parse(resumed.out)["resumed_from_step"], summary["steps"]);
  expect_every_step_once("run", 60);
  ASSERT_EQ(train({"run.steps=60", "run.output=two"}, {"--ranks", "2", "--quiet"}).code, 0);
  EXPECT_EQ(read("run/weights.safetensors"), read("two/weights.safetensors"));
}

TEST_F(CliResume, ASignalAsksForACheckpoint) {
  const Process process = start({"run.steps=100000"}, {"--quiet"});
  ASSERT_TRUE(steps_begin("run"));
  EXPECT_EQ(checkpoints("run"), 0);
  process.send(SIGUSR1);
  EXPECT_TRUE(eventually([&] { return checkpoints("run") == 1; }));
  const size_t before = steps_in_metrics_safely("run");
  EXPECT_TRUE(eventually([&] { return steps_in_metrics_safely("run") > before; }));
  process.send(SIGTERM);
  EXPECT_EQ(process.wait().code, 130);
}

TEST_F(CliResume, MinutesAreAnIntervalToo) {
  const Process process = start({"run.steps=100000", "run.save_minutes=0.001"}, {"--quiet"});
  EXPECT_TRUE(eventually([&] { return checkpoints("run") >= 1; }));
  process.send(SIGINT);
  EXPECT_EQ(process.wait().code, 130);
}

TEST_F(CliResume, AFullDiskIsAWarningAndTrainingGoesOn) {
  const Environment full{.out_path = "", .file_limit = 200'000};
  const Outcome outcome =
      onefold(train_arguments({"run.steps=6", "run.save_every=1"}, {"--quiet"}), full);
  EXPECT_EQ(outcome.code, 1);  // its end could not be saved either
  expect_in(outcome.err, {"the checkpoint of step 1 could not be written", "rank-00000.safetensors",
                          "Training goes on; it is tried again after step",
                          "last checkpoint, of step 6", "nothing was saved"});
  expect_every_step_once("run", 6);
  EXPECT_EQ(checkpoints("run"), 0);
  EXPECT_TRUE(fs::is_empty(folder_.path("run/checkpoints")));  // no halves stay behind
  // With room again, the run begins anew, for there is nothing to go on from.
  EXPECT_EQ(train({"run.steps=6"}, {"--resume", "--quiet"}).code, 0);
}

TEST_F(CliResume, AFullDiskStopsARunThatIsToldSo) {
  const Environment full{.out_path = "", .file_limit = 200'000};
  const Outcome outcome = onefold(
      train_arguments({"run.steps=60", "run.save_every=1", "run.save_failures=stop"}, {"--quiet"}),
      full);
  expect_error(outcome, 1, {"the checkpoint of step 1 could not be written", "save_failures"});
  EXPECT_LT(steps_in_metrics("run").size(), 60);
}

TEST_F(CliResume, AFolderInTheWayIsAWarning) {
  fs::create_directory(folder_.path("run"));
  folder_.write("run/checkpoints", "a file");
  const Outcome outcome = train({"run.steps=4", "run.save_every=1"});
  EXPECT_EQ(outcome.code, 1);
  expect_in(outcome.err, {"cannot create the folder run/checkpoints", "Training goes on"});
  expect_every_step_once("run", 4);
}

// The process that a watching one has started; 0 if there is none now.
pid_t child_of(pid_t parent) {
  const std::string path = fmt::format("/proc/{0}/task/{0}/children", parent);
  const std::string text = fs::exists(path) ? read_file(path) : "";
  return text.empty() ? 0 : std::stoi(text);
}

// Whether a process waits in open() for the other end of a pipe.
bool waits_to_open(pid_t process) {
  const std::string path = fmt::format("/proc/{}/syscall", process);
  if (!fs::exists(path)) return false;
  return read_file(path).starts_with(std::to_string(SYS_openat) + " ");
}

TEST_F(CliResume, AKilledRunIsStartedAgainFromItsCheckpoint) {
  const Arguments keys = {"run.steps=40", "run.save_every=1"};
  ASSERT_EQ(train({"run.steps=40", "run.output=whole"}).code, 0);
  const Process process = start(keys, {"--restarts", "2", "--quiet"});
  for (int kills = 0; kills < 2; ++kills) {
    pid_t child = 0;
    const size_t before = exists("run/metrics.jsonl") ? steps_in_metrics_safely("run") : 0;
    ASSERT_TRUE(eventually([&] {
      child = child_of(process.pid());
      return child > 0 && checkpoints("run") > 0 && steps_in_metrics_safely("run") > before + 1;
    }));
    ::kill(child, SIGKILL);
    ASSERT_TRUE(eventually([&] { return child_of(process.pid()) != child; }));
  }
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  expect_in(outcome.err, {"the run ended with 137; restart 1 of 2", "restart 2 of 2"});
  EXPECT_EQ(read("run/weights.safetensors"), whole_weights());
  expect_every_step_once("run", 40);
}

// The data is a pipe that nobody writes: the run waits there until it is killed, and finds a file
// the next time.
TEST_F(CliResume, ARestartDoesNotGoOnWithTheRunThatWasToBeReplaced) {
  ASSERT_EQ(train({"run.steps=8", "run.save_every=2"}).code, 0);
  ASSERT_EQ(::mkfifo(folder_.path("pipe").c_str(), 0600), 0);
  const Process process = start({"run.steps=4", "data.train=pipe", "data.format=text"},
                                {"--restarts", "1", "--overwrite", "--json"});
  pid_t child = 0;
  ASSERT_TRUE(eventually([&] { return (child = child_of(process.pid())) > 0; }));
  ASSERT_TRUE(eventually([&] { return waits_to_open(child); }));
  fs::rename(folder_.path("book.txt"), folder_.path("pipe"));
  ::kill(child, SIGKILL);
  const Outcome outcome = process.wait();
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_in(outcome.err, {"restart 1 of 1"});
  const Json summary = Json::parse(outcome.out);
  EXPECT_EQ(summary["resumed_from_step"], 0);
  EXPECT_EQ(summary["steps"], 4);
}

TEST_F(CliResume, TheWatchingProcessPassesSignalsOn) {
  const Process process = start({"run.steps=100000"}, {"--restarts", "3", "--quiet"});
  ASSERT_TRUE(steps_begin("run"));
  process.send(SIGUSR1);
  EXPECT_TRUE(eventually([&] { return checkpoints("run") == 1; }));
  process.send(SIGTERM);
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_EQ(outcome.err.find("restart"), std::string::npos) << outcome.err;
}

TEST_F(CliResume, WhatOnlyTheUserCanMendIsNotTriedAgain) {
  const Outcome outcome = train({"run.steps=none"}, {"--restarts", "3"});
  expect_error(outcome, 1, {"run.steps"});
  EXPECT_EQ(outcome.err.find("restart 1"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace onefold
