#include "io/tensorboard.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "error_text.h"
#include "io/events.h"

namespace onefold {
namespace {

using test::Events;
using test::parse_events;

TEST(Crc32c, KnownVectors) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
}

TEST(TensorBoard, WritesAVersionThenScalarsThatReadBack) {
  const std::string folder = testing::TempDir() + "onefold_tensorboard/run";
  std::string path;
  {
    TensorBoardWriter writer(folder);
    path = writer.path();
    writer.scalars(0, {{"train/loss", 10.5}, {"train/lr", 1e-3}});
    writer.scalar("validation/loss", 300000000000, -2.25);
    EXPECT_EQ(parse_events(read_file(path)).scalars.size(), 3u) << "flushed as written";
  }
  EXPECT_TRUE(contains(std::filesystem::path(path).filename().string(), "events.out.tfevents."));
  const Events events = parse_events(read_file(path));
  EXPECT_EQ(events.versions, std::vector<std::string>{"brain.Event:2"});
  ASSERT_EQ(events.scalars.size(), 3u);
  EXPECT_EQ(events.scalars[0].tag, "train/loss");
  EXPECT_EQ(events.scalars[0].step, 0);
  EXPECT_EQ(events.scalars[0].value, 10.5f);
  EXPECT_EQ(events.scalars[1].tag, "train/lr");
  EXPECT_EQ(events.scalars[1].value, 1e-3f);
  EXPECT_EQ(events.scalars[2].step, 300000000000);
  EXPECT_EQ(events.scalars[2].value, -2.25f);
  std::filesystem::remove_all(testing::TempDir() + "onefold_tensorboard");
}

TEST(TensorBoard, ARestartNamesItsFirstStep) {
  const std::string folder = testing::TempDir() + "onefold_tensorboard_restart";
  TensorBoardWriter writer(folder);
  writer.restart(51);
  writer.scalar("train/loss", 51, 1);
  const Events events = parse_events(read_file(writer.path()));
  EXPECT_EQ(events.restarts, std::vector<int64_t>{51});
  EXPECT_EQ(events.scalars.size(), 1u);
  std::filesystem::remove_all(folder);
}

TEST(TensorBoard, TwoWritersDoNotShareAFile) {
  const std::string folder = testing::TempDir() + "onefold_tensorboard_two";
  const TensorBoardWriter a(folder), b(folder);
  EXPECT_NE(a.path(), b.path());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace onefold
