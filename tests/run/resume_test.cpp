// A run that is stopped and resumed is the run that was never stopped: bit for bit on the same
// ranks, with the same state and data order on others.
#include "run/resume.h"

#include <cmath>

#include "base/broken_files.h"
#include "engine/ranks.h"
#include "run/session.h"
#include "run/support.h"
#include "run/training.h"

namespace onefold {
namespace {

using test::Weights;

// All of a run that must be the same: the losses of its steps, and the weights it ends with.
struct Course {
  std::vector<double> losses;
  Weights weights;
};

class Resume : public RunTest {
 protected:
  // Runs the configuration on so many ranks in `output`, from a checkpoint if one is named. All
  // checkpoints are kept: what a run that was killed after one of them would find.
  Course run(const std::string& output, std::vector<std::string> keys, int ranks = 1,
             const std::string& resume_from = "") const {
    keys.push_back("run.output=" + folder_.path(output));
    Json root = {{"model", "gpt2-tiny"},
                 {"train_batch_size", 12},
                 {"data", {{"train", folder_.path("book.txt")}, {"sequence_length", 8}}},
                 {"run", {{"steps", 6}, {"threads", 1}, {"save_every", 1}, {"keep_last", 9}}}};
    for (const std::string& key : keys) apply_override(root, key);
    const Config config = Config::from_json(root, ranks);
    Ranks all(ranks, {});
    const RunPlan plan = plan_run(config, all);
    std::vector<CheckpointFolder::Entry> candidates;
    if (!resume_from.empty()) candidates.push_back({0, folder_.path(resume_from)});
    all.run([&](std::shared_ptr<Communicator> communicator) {
      const bool leads = !communicator || communicator->rank() == 0;
      Training training(config, plan, std::move(communicator),
                        {.quiet = true, .trace = false, .resume_from = candidates});
      if (leads)
        training.write_to(RunFolder::create(config.run.output, config, plan.model, nullptr, true));
      training.run();
    });
    return read_course(output);
  }

  Course read_course(const std::string& output) const {
    Course course;
    std::istringstream lines(read_file(folder_.path(output + "/metrics.jsonl")));
    for (std::string line; std::getline(lines, line);)
      course.losses.push_back(Json::parse(line)["loss"]);
    const SafetensorsFile file(folder_.path(output + "/weights.safetensors"));
    for (const SafetensorsEntry& entry : file.entries()) {
      std::vector<float>& values = course.weights[entry.name];
      values.resize(static_cast<size_t>(entry.elems()));
      file.read(entry.name, std::span<float>(values));
    }
    return course;
  }

  // The whole run; then another that begins from its checkpoint of step 3.
  void expect_exact(const std::vector<std::string>& keys, int ranks = 1) const {
    const Course whole = run("whole", keys, ranks);
    const Course rest = run("rest", keys, ranks, "whole/checkpoints/step-00000003");
    ASSERT_EQ(whole.losses.size(), 6);
    EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
    test::expect_same_bits(whole.weights, rest.weights);
  }
};

TEST_F(Resume, AdamWGoesOnWithTheSameBits) {
  expect_exact({"optimizer.type=AdamW", "optimizer.params.lr=1e-2"});
}

TEST_F(Resume, AFailingDiskIsWarnedOfAndChangesNoBits) {
  const Course whole = run("whole", {});
  std::string said;
  Course course;
  {
    test::BrokenFiles files;
    files.fail(test::Call::flush, std::errc::io_error, "step-00000003/rank-00000", 0, 1);
    files.fail(test::Call::remove, std::errc::io_error, "step-00000001/rank-00000", 0, 1);
    ::testing::internal::CaptureStderr();
    course = run("faulty", {"run.keep_last=1"});
    said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(files.failed(), 2);
  }
  expect_in(said, {"the checkpoint of step 3 could not be written: cannot flush",
                   "an old checkpoint stays: cannot remove", "Input/output error"});
  EXPECT_EQ(course.losses, whole.losses);
  test::expect_same_bits(whole.weights, course.weights);
  EXPECT_EQ(CheckpointFolder(folder_.path("faulty/checkpoints")).list().size(), 1);
}

TEST_F(Resume, SgdWithMomentumGoesOnWithTheSameBits) {
  expect_exact({"optimizer.type=SGD", "optimizer.params.lr=1e-2", "optimizer.params.momentum=0.9"});
}

TEST_F(Resume, DropoutAndScheduleGoOnFromTheirStep) {
  expect_exact({"model={\"preset\": \"gpt2-tiny\", \"dropout\": 0.2}", "optimizer.type=AdamW",
                "optimizer.params.lr=1e-2", "scheduler.type=WarmupLR",
                "scheduler.params.warmup_num_steps=5", "gradient_clipping=0.5"});
}

TEST_F(Resume, FrozenUnitsHaveNoMomentsAndStay) {
  expect_exact({"run.freeze=[\"embedding\"]", "optimizer.type=AdamW"});
}

TEST_F(Resume, RanksAtEveryStageGoOnWithTheSameBits) {
  for (const char* stage : {"0", "1", "2"})
    expect_exact({std::string("zero_optimization.stage=") + stage}, 2);
  expect_exact(
      {"zero_optimization.stage=3", "zero_optimization.stage3_param_persistence_threshold=0"}, 2);
}

TEST_F(Resume, AnotherStageKeepsTheBits) {
  const Course whole = run("whole", {"zero_optimization.stage=1"}, 2);
  const Course rest =
      run("rest", {"zero_optimization.stage=3"}, 2, "whole/checkpoints/step-00000003");
  test::expect_same_bits(whole.weights, rest.weights);
}

TEST_F(Resume, AnotherNumberOfRanksGoesOnWithinRounding) {
  const std::vector<std::string> keys = {"zero_optimization.stage=2", "optimizer.params.lr=1e-3"};
  const Course whole = run("whole", keys, 3);
  for (const int ranks : {1, 2, 4}) {
    const Course rest = run("rest", keys, ranks, "whole/checkpoints/step-00000003");
    ASSERT_EQ(rest.losses.size(), 3);
    // The same sum of 96 losses of about 5 in another order of fp32 additions.
    EXPECT_NEAR(rest.losses[0], whole.losses[3], 96 * 6e-8 * 5) << ranks;
  }
}

TEST_F(Resume, AnotherGlobalBatchKeepsTheDataOrder) {
  run("whole", {"run.steps=4"});
  const Json manifest =
      Json::parse(read_file(folder_.path("whole/checkpoints/step-00000003/manifest.json")));
  EXPECT_EQ(manifest["run"]["position"], 36);
  // Steps of 6 from position 36 on: what is saved says how far the data was read.
  run("rest", {"train_batch_size=6", "run.steps=5"}, 1, "whole/checkpoints/step-00000003");
  const Json later =
      Json::parse(read_file(folder_.path("rest/checkpoints/step-00000005/manifest.json")));
  EXPECT_EQ(later["run"]["position"], 36 + 2 * 6);
  // And what is trained on is what lies there: two half steps see the sequences of one whole one.
  const BatchLoader loader = *open_data(config({"train_batch_size=6"})).train;
  const BatchLoader moved = loader.from_origin(36 - 3 * loader.layout().global_batch());
  EXPECT_EQ(moved.get(3, 0, 0).samples[0], 36);
}

TEST_F(Resume, ACheckpointPastTheEndIsRefused) {
  run("whole", {});
  EXPECT_ERROR(run("rest", {"run.steps=2"}, 1, "whole/checkpoints/step-00000003"), "3 steps behind",
               "run.steps");
}

TEST_F(Resume, WithoutTheOptimizersStateItIsRefused) {
  run("whole", {"optimizer.type=SGD", "optimizer.params.momentum=0"});
  EXPECT_ERROR(run("rest", {"optimizer.type=AdamW"}, 1, "whole/checkpoints/step-00000003"),
               "another optimizer");
}

TEST_F(Resume, AUnitThatWasFrozenCannotBeTrainedNow) {
  run("whole", {"run.freeze=[\"embedding\"]", "optimizer.type=AdamW"});
  for (const int ranks : {1, 2})
    EXPECT_ERROR(run("rest", {"optimizer.type=AdamW"}, ranks, "whole/checkpoints/step-00000003"),
                 "no optimizer state of unit embedding", "run.freeze", "onefold export",
                 "\"model\"");
  // The other way round there is more than is needed.
  run("all", {"optimizer.type=AdamW"});
  run("rest", {"run.freeze=[\"embedding\"]", "optimizer.type=AdamW"}, 1,
      "all/checkpoints/step-00000003");
}

TEST(ChangesThatMatter, NameWhatIsLearnedAndNothingElse) {
  const Json saved = {{"train_batch_size", 8},
                      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.1}}}}},
                      {"zero_optimization", {{"stage", 1}}},
                      {"run", {{"seed", 1}, {"output", "a"}, {"save_every", 5}}}};
  EXPECT_TRUE(changes_that_matter(saved, saved).empty());
  Json now = saved;
  now["zero_optimization"]["stage"] = 3;
  now["run"]["output"] = "b";
  now["run"]["save_every"] = 0;
  now["gradient_accumulation_steps"] = 4;
  EXPECT_TRUE(changes_that_matter(saved, now).empty());
  now["optimizer"]["params"]["lr"] = 0.2;
  now["optimizer"]["params"]["weight_decay"] = 0.1;
  now["run"].erase("seed");
  now["train_batch_size"] = 16;
  EXPECT_EQ(changes_that_matter(saved, now),
            (std::vector<std::string>{
                "train_batch_size: 16, was 8", "optimizer.params.lr: 0.2, was 0.1",
                "optimizer.params.weight_decay: 0.1, was left out", "run.seed: left out, was 1"}));
}

// A checkpoint of a former version has keys that there are no more.
TEST(ChangesThatMatter, AKeyThatIsNoMoreMattersNot) {
  const Json now = {{"run", {{"seed", 1}}}};
  Json saved = now;
  saved["run"]["products"] = "paired";
  EXPECT_TRUE(changes_that_matter(saved, now).empty());
}

// Of files that have moved.
TEST(ChangesThatMatter, WeightsOfFilesDo) {
  const auto with = [](Json files) { return Json{{"data", {{"train", std::move(files)}}}}; };
  const auto file = [](const char* path, double weight) {
    return Json{{"path", path}, {"weight", weight}};
  };
  const Json saved = with({file("a", 2), file("b", 1)});
  EXPECT_TRUE(changes_that_matter(saved, with({file("c/a", 2), file("c/b", 1)})).empty());
  EXPECT_EQ(changes_that_matter(saved, with({file("a", 1), file("b", 2)})),
            (std::vector<std::string>{"data.train: weights [1.0,2.0], were [2.0,1.0]"}));
  EXPECT_EQ(changes_that_matter(saved, with({"a", "b"})),
            (std::vector<std::string>{"data.train: weights left out, were [2.0,1.0]"}));
  EXPECT_TRUE(changes_that_matter(with({"a", "b"}), with({"c"})).empty());
}

// In the middle of the data, where no sample of 256 sequences looks.
TEST_F(Resume, DataThatChangedWhereNoSampleLooksIsOther) {
  std::string text;
  for (int i = 0; i < 40'000; ++i) text += fmt::format("line {:06}\n", i);
  const auto data = [&] {
    folder_.write("long.txt", text);
    const Config c =
        Config::from_json({{"model", "gpt2-tiny"},
                           {"train_batch_size", 1},
                           {"data", {{"train", folder_.path("long.txt")}, {"sequence_length", 8}}},
                           {"run", {{"steps", 1}}}});
    return open_data(c);
  };
  const RunData before = data();
  text[text.size() / 2 + 8 * 40] ^= 1;
  const RunData after = data();
  EXPECT_EQ(before.fingerprint, after.fingerprint) << "choose another place";
  EXPECT_NE(before.hash, after.hash);
  const Json saved = {{"data", {{"fingerprint", before.fingerprint}, {"xxh3", before.hash}}}};
  EXPECT_TRUE(same_data(saved, before.hash, before.fingerprint));
  EXPECT_FALSE(same_data(saved, after.hash, after.fingerprint));
  // The same tokens, cut into other sequences.
  EXPECT_FALSE(same_data(saved, before.hash, "another"));
  // Checkpoints of a former version, and data too large to hash, have the fingerprint alone.
  const Json former = {{"data", {{"fingerprint", before.fingerprint}}}};
  EXPECT_TRUE(same_data(former, after.hash, after.fingerprint));
  EXPECT_FALSE(same_data(former, after.hash, "another"));
}

}  // namespace
}  // namespace onefold
