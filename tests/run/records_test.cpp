#include "run/records.h"

#include <algorithm>
#include <sstream>

#include "base/broken_files.h"
#include "io/events.h"
#include "run/support.h"

namespace onefold {
namespace {

class RecordsTest : public RunTest {
 protected:
  void write(const Config& c) const {
    Records records(c, RunFolder::create(folder_.path("run"), c, c.model, nullptr, false), nullptr);
    records.step({.step = 1, .loss = 2}, 0.5, {.forward = 0.25});
    records.evaluation(1, 3);
  }
  std::string metrics() const { return read_file(folder_.path("run/metrics.jsonl")); }
};

TEST_F(RecordsTest, EveryEventIsALine) {
  write(config());
  EXPECT_EQ(metrics(),
            "{\"event\":\"step\",\"step\":1,\"loss\":2.0,\"gradient_norm\":0.0,\"loss_scale\":1.0,"
            "\"skipped_steps\":0,\"learning_rate\":0.0,\"tokens_per_second\":0.0,\"gemm_fraction\":"
            "0.0,\"seconds\":0.5}\n"
            "{\"event\":\"evaluation\",\"step\":1,\"loss\":3.0}\n");
  EXPECT_FALSE(std::filesystem::exists(folder_.path("run/tensorboard")));
}

TEST_F(RecordsTest, TimesAndTensorBoardIfAskedFor) {
  write(config({"wall_clock_breakdown=true", "run.output=x", "run.tensorboard=true"}));
  expect_in(metrics(), {"\"wall_clock\":{\"forward\":0.25,\"backward\":0.0"});
  EXPECT_TRUE(std::filesystem::exists(folder_.path("run/tensorboard")));
}

TEST_F(RecordsTest, MonitorsNeedNoRunFolderAndOneRankThatLeads) {
  Config c = config();
  c.run.csv_folder = folder_.path("csv");
  c.run.tensorboard_folder = folder_.path("events");
  Records(c, std::nullopt, nullptr, 0, /*leads=*/false).step({.step = 1}, 0.5, {});
  EXPECT_FALSE(std::filesystem::exists(folder_.path("csv")));
  EXPECT_FALSE(std::filesystem::exists(folder_.path("events")));
  Records records(c, std::nullopt, nullptr);
  records.step({.step = 2, .loss = 3, .learning_rate = 0.5}, 0.5, {});
  records.evaluation(2, 4);
  EXPECT_EQ(read_file(folder_.path("csv/Train_Samples_train_loss.csv")), "step,train_loss\n8,3\n");
  EXPECT_EQ(read_file(folder_.path("csv/Validation_Samples_loss.csv")), "step,loss\n8,4\n");
  EXPECT_FALSE(std::filesystem::is_empty(folder_.path("events")));
}

// Two steps of 2 samples, and then steps of 4: origin is 4 - 2 * 4.
TEST_F(RecordsTest, TablesCountSamplesAlsoWhereTheBatchHasChanged) {
  Config c = config();
  ASSERT_EQ(c.batch.global, 4);
  c.run.csv_folder = folder_.path("csv");
  make_folders(folder_.path("csv"));
  folder_.write("csv/Train_Samples_train_loss.csv", "step,train_loss\n2,3\n4,2\n6,9\n");
  Records records(c, std::nullopt, nullptr, 2, true, -4);
  records.step({.step = 3, .loss = 1}, 0.5, {});
  records.evaluation(3, 4);
  EXPECT_EQ(read_file(folder_.path("csv/Train_Samples_train_loss.csv")),
            "step,train_loss\n2,3\n4,2\n8,1\n");
  EXPECT_EQ(read_file(folder_.path("csv/Validation_Samples_loss.csv")), "step,loss\n8,4\n");
}

// Losing a line never loses training: a warning, and the lines are there once there is room.
TEST_F(RecordsTest, AFullDiskIsWarnedOfOnceAndCaughtUpWith) {
  const Config c = config({"run.output=x", "run.tensorboard=true"});
  std::vector<std::string> warnings;
  test::BrokenFiles files;
  Records records(c, RunFolder::create(folder_.path("run"), c, c.model, nullptr, false),
                  [&](const std::string& text) { warnings.push_back(text); });
  records.step({.step = 1}, 0.5, {});
  files.fill_up_after(20);
  for (int64_t step = 2; step <= 4; ++step) records.step({.step = step}, 0.5, {});
  records.evaluation(4, 3);
  ASSERT_EQ(warnings.size(), 1);
  expect_in(warnings[0], {"metrics.jsonl", "No space left", "Training goes on"});
  records.finish();
  ASSERT_EQ(warnings.size(), 2);
  expect_in(warnings[1], {"of metrics are lost"});
  files.fill_up_after(-1);
  records.step({.step = 5}, 0.5, {});
  std::istringstream lines(metrics());
  std::vector<int64_t> steps;
  for (std::string line; std::getline(lines, line);) steps.push_back(Json::parse(line)["step"]);
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 4, 4, 5}));
}

TEST_F(RecordsTest, ANewRunBeginsANewFile) {
  write(config());
  const std::string first = metrics();
  write(config());
  EXPECT_EQ(metrics(), first);
}

TEST_F(RecordsTest, AResumedRunDropsLaterStepsAndBrokenLinesAndNothingElse) {
  const Config c = config();
  const RunFolder folder = RunFolder::create(folder_.path("run"), c, c.model, nullptr, false);
  write_file(folder_.path("run/metrics.jsonl"),
             "{\"step\":1}\n{\"step\":2}\n{\"step\":\"one\"}\n[3]\n{\"note\":7}\n{\"step\":3");
  Records(c, folder, nullptr, 1);
  EXPECT_EQ(metrics(), "{\"step\":1}\n{\"step\":\"one\"}\n[3]\n{\"note\":7}\n");
}

// What TensorBoard shows of a folder: files in the order of their names, and a restart drops what
// came before it and has its step or a later one.
std::vector<std::pair<int64_t, float>> shown(const std::string& folder, const std::string& tag) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::pair<int64_t, float>> points;
  for (const std::string& path : paths) {
    const test::Events events = test::parse_events(read_file(path));
    for (const int64_t step : events.restarts)
      std::erase_if(points, [&](const auto& point) { return point.first >= step; });
    for (const test::Scalar& scalar : events.scalars)
      if (scalar.tag == tag) points.emplace_back(scalar.step, scalar.value);
  }
  return points;
}

TEST_F(RecordsTest, AResumedRunHasEachStepOnceAndTheNewest) {
  const Config c = config({"run.output=x", "run.tensorboard=true"});
  const RunFolder run = RunFolder::create(folder_.path("run"), c, c.model, nullptr, false);
  const auto write_steps = [&](int64_t from, int64_t to, double loss) {
    Records records(c, run, nullptr, from);
    for (int64_t step = from + 1; step <= to; ++step)
      records.step({.step = step, .loss = loss}, 0.5, {});
    records.evaluation(to, loss);
  };
  write_steps(0, 4, 1);
  write_steps(2, 5, 2);
  const std::vector<std::pair<int64_t, float>> expected = {{1, 1}, {2, 1}, {3, 2}, {4, 2}, {5, 2}};
  EXPECT_EQ(shown(run.file("tensorboard"), "train/loss"), expected);
  EXPECT_EQ(shown(run.file("tensorboard"), "validation/loss").size(), 1);
  std::vector<std::pair<int64_t, float>> in_metrics;
  std::istringstream lines(metrics());
  for (std::string line; std::getline(lines, line);)
    if (const Json event = Json::parse(line); event["event"] == "step")
      in_metrics.emplace_back(event["step"], event["loss"]);
  EXPECT_EQ(in_metrics, expected);
}

TEST_F(RecordsTest, WithoutAFolderNothingIsWritten) {
  const int64_t before = folder_.files();
  Records records(config(), std::nullopt, nullptr);
  records.step({.step = 1}, 1, {});
  records.evaluation(1, 1);
  EXPECT_EQ(folder_.files(), before);
}

}  // namespace
}  // namespace onefold
