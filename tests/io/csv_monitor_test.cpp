#include "io/csv_monitor.h"

#include <gtest/gtest.h>

#include "data/scratch.h"

namespace onefold {
namespace {

TEST(CsvMonitor, HasAFileForEachMetric) {
  const ScratchFolder folder;
  CsvMonitor monitor(folder.path("a/job"));
  monitor.write(8, {{"Train/Samples/lr", 0.5}, {"Train/Samples/train_loss", 3}});
  monitor.write(16, {{"Train/Samples/lr", 0.25}});
  EXPECT_EQ(read_file(folder.path("a/job/Train_Samples_lr.csv")), "step,lr\n8,0.5\n16,0.25\n");
  EXPECT_EQ(read_file(folder.path("a/job/Train_Samples_train_loss.csv")), "step,train_loss\n8,3\n");
}

TEST(CsvMonitor, ANewRunContinuesAndAResumedOneDropsWhatItWritesAgain) {
  const ScratchFolder folder;
  const std::string file = folder.path("x/lr.csv");
  CsvMonitor(folder.path("x")).write(8, {{"lr", 1}});
  CsvMonitor(folder.path("x")).write(16, {{"lr", 2}});
  EXPECT_EQ(read_file(file), "step,lr\n8,1\n16,2\n");
  CsvMonitor(folder.path("x"), 8).write(16, {{"lr", 3}});
  EXPECT_EQ(read_file(file), "step,lr\n8,1\n16,3\n");
}

// "1" of 16,2 is no line of sample 1, and 24 is not written behind it.
TEST(CsvMonitor, ALineThatWasCutOffGoes) {
  const ScratchFolder folder;
  const std::string file = folder.write("lr.csv", "step,lr\n8,1\n1");
  CsvMonitor(folder.path(""), 8).write(16, {{"lr", 3}});
  EXPECT_EQ(read_file(file), "step,lr\n8,1\n16,3\n");
  folder.write("lr.csv", "step,lr\n8,1\n1");
  CsvMonitor(folder.path("")).write(24, {{"lr", 3}});
  EXPECT_EQ(read_file(file), "step,lr\n8,1\n24,3\n");
  folder.write("lr.csv", "st");
  CsvMonitor(folder.path("")).write(8, {{"lr", 3}});
  EXPECT_EQ(read_file(file), "step,lr\n8,3\n");
}

}  // namespace
}  // namespace onefold
