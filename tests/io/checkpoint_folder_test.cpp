// A run's folder of checkpoints: what is kept, how one comes into being, and what killed runs leave
// behind.
#include "io/checkpoint_folder.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "data/scratch.h"
#include "error_text.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;

class CheckpointFolderTest : public ::testing::Test {
 protected:
  // A checkpoint of this step without tensors; `mark` tells it from another of the same step.
  void commit(int64_t step, const std::string& mark = "") const {
    folder_.begin(step);
    Manifest manifest;
    manifest.step = step;
    manifest.run = {{"position", step}, {"mark", mark}};
    EXPECT_EQ(folder_.commit(manifest), path(step));
  }
  std::string path(int64_t step) const {
    return fmt::format("{}/step-{:08}", scratch_.path("checkpoints"), step);
  }
  std::vector<int64_t> steps() const {
    std::vector<int64_t> steps;
    for (const auto& entry : folder_.list()) steps.push_back(entry.step);
    return steps;
  }
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_.path()), {}));
  }

  ScratchFolder scratch_;
  const CheckpointFolder folder_{scratch_.path("checkpoints")};
};

using Steps = std::vector<int64_t>;

TEST_F(CheckpointFolderTest, OnlyWhatIsCommittedIsThere) {
  EXPECT_EQ(steps(), Steps());
  const std::string under_way = folder_.begin(5);
  write_file(under_way + "/rank-00000.safetensors", "half");
  EXPECT_EQ(steps(), Steps());
  commit(5);
  commit(20);
  commit(100);
  EXPECT_EQ(steps(), (Steps{100, 20, 5}));
  EXPECT_TRUE(fs::exists(path(5) + "/rank-00000.safetensors"));
  // Neither a folder without a manifest nor another name is a checkpoint.
  fs::create_directory(path(200));
  fs::create_directory(scratch_.path("checkpoints/step-x"));
  write_file(scratch_.path("checkpoints/step-x/manifest.json"), "{}");
  EXPECT_EQ(steps(), (Steps{100, 20, 5}));
}

TEST_F(CheckpointFolderTest, TheSameStepIsReplacedWhole) {
  commit(5, "first");
  write_file(path(5) + "/old-file", "");
  commit(5, "second");
  EXPECT_EQ(Checkpoint(path(5)).manifest().run["mark"], "second");
  EXPECT_FALSE(fs::exists(path(5) + "/old-file"));
  EXPECT_EQ(entries(), 1);
}

TEST_F(CheckpointFolderTest, WhatKilledRunsLeftIsRemoved) {
  commit(5);
  write_file(folder_.begin(6) + "/rank-00000.safetensors.onefold-tmp", "half");
  folder_.begin(7);
  folder_.discard(7);
  EXPECT_EQ(entries(), 2);
  folder_.discard_all();
  EXPECT_EQ(entries(), 1);
  EXPECT_EQ(steps(), Steps{5});
}

TEST_F(CheckpointFolderTest, KeepsTheLastAndEveryMth) {
  for (int64_t step = 10; step <= 60; step += 10) commit(step);
  folder_.prune(60, 2, 30);
  EXPECT_EQ(steps(), (Steps{60, 50, 30}));
  folder_.prune(60, 1, 0);
  EXPECT_EQ(steps(), Steps{60});
  EXPECT_EQ(entries(), 1);
  folder_.prune(60, 0, 0);
  EXPECT_EQ(steps(), Steps{60});
}

TEST_F(CheckpointFolderTest, LaterOnesDoNotPushOutTheOneJustSaved) {
  for (const int64_t step : {10, 20, 30, 90}) commit(step);
  folder_.prune(30, 1, 0);  // 90 may be damaged: the run has gone back before it
  EXPECT_EQ(steps(), (Steps{90, 30}));
}

TEST_F(CheckpointFolderTest, AFolderThatCannotBeWrittenIsNamed) {
  write_file(scratch_.path("checkpoints"), "a file in its place");
  EXPECT_ERROR(folder_.begin(1), "cannot create the folder", scratch_.path("checkpoints"));
}

// As they are when the folder, or one of them, is on another disk.
TEST_F(CheckpointFolderTest, LinksAreFollowed) {
  fs::create_directories(scratch_.path("disk/all"));
  fs::create_symlink("disk/all", scratch_.path("checkpoints"));
  for (const int64_t step : {10, 20, 30}) commit(step);
  EXPECT_EQ(steps(), (Steps{30, 20, 10}));
  EXPECT_TRUE(fs::exists(scratch_.path("disk/all/step-00000030")));
  fs::rename(path(20), scratch_.path("disk/twenty"));
  fs::create_directory_symlink("../twenty", path(20));
  EXPECT_EQ(steps(), (Steps{30, 20, 10}));
  folder_.replace_all();  // a link that says how to go from here stays right
  EXPECT_TRUE(fs::exists(scratch_.path("checkpoints/replaced-step-00000020/manifest.json")));
  EXPECT_EQ(steps(), Steps());
  fs::remove_all(scratch_.path("disk"));
  EXPECT_ERROR(folder_.list(), "is a link to what is not there", "mounted");
}

TEST_F(CheckpointFolderTest, OneThatIsOnAMissingDiskIsListed) {
  commit(10);
  fs::create_directory_symlink(scratch_.path("no-disk"), path(20));
  EXPECT_EQ(steps(), (Steps{20, 10}));
  EXPECT_ERROR(Checkpoint(path(20)), "step-00000020/manifest.json", "No such file");
}

TEST_F(CheckpointFolderTest, AnAbandonedFutureIsNotListedAndNotLost) {
  for (const int64_t step : {10, 20, 30, 40}) commit(step);
  EXPECT_EQ(folder_.abandon_after(20, {{40, path(40)}}),
            std::vector<std::string>{scratch_.path("checkpoints/abandoned-step-00000030")});
  EXPECT_EQ(steps(), (Steps{40, 20, 10}));  // that of 40 is damaged
  commit(30, "second");
  EXPECT_EQ(folder_.abandon_after(10, {}).size(), 3);
  EXPECT_EQ(steps(), Steps{10});
  EXPECT_EQ(entries(), 5);
  const std::string first = scratch_.path("checkpoints/abandoned-step-00000030");
  EXPECT_EQ(Checkpoint(first).manifest().run["mark"], "");
  EXPECT_EQ(Checkpoint(first + ".2").manifest().run["mark"], "second");
}

TEST_F(CheckpointFolderTest, ReplacedOnesStayUntilTheyAreDropped) {
  commit(10);
  folder_.replace_all();
  EXPECT_EQ(steps(), Steps());
  EXPECT_EQ(entries(), 1);
  commit(5);
  EXPECT_EQ(folder_.drop_replaced(), std::vector<std::string>());
  EXPECT_EQ(steps(), Steps{5});
  EXPECT_EQ(entries(), 1);
}

TEST_F(CheckpointFolderTest, TheManifestSaysWhichStepItIs) {
  commit(10);
  fs::rename(path(10), path(999));
  EXPECT_ERROR(Checkpoint(path(999)), "named after step 999", "its manifest says step 10");
  EXPECT_ERROR(Checkpoint(path(999) + "/"), "named after step 999");
  fs::rename(path(999), scratch_.path("mine"));
  EXPECT_EQ(Checkpoint(scratch_.path("mine")).manifest().step, 10);
}

}  // namespace
}  // namespace onefold
