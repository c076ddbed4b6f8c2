// The files that io writes, on a system that fails: what was there stays, nothing is left beside
// it, and the error names path and reason.
#include <gtest/gtest.h>

#include <numeric>

#include "base/broken_files.h"
#include "data/scratch.h"
#include "error_text.h"
#include "io/metrics.h"
#include "io/output_folder.h"
#include "io/safetensors.h"
#include "io/tensorboard.h"
#include "io/trace_file.h"

namespace onefold {
namespace {

using test::BrokenFiles;
using test::Call;

void write_safetensors(const std::string& path) {
  std::vector<float> values(100'000);
  std::iota(values.begin(), values.end(), 0.0F);
  SafetensorsWriter writer(path, {{"a", "F32", {400, 250}, 0, 0}, {"b", "F32", {7}, 0, 0}});
  writer.write("a", std::span<const float>(values));
  writer.write("b", std::span<const float>(values).first(7));
  writer.commit();
}

void write_small_trace(const std::string& path) {
  RankTrace trace{.rank = 0, .lanes = {{"compute", {}}}};
  for (int i = 0; i < 5000; ++i) trace.lanes[0].spans.push_back({"forward", i * 1.0, 0.5, i});
  write_trace(path, {trace});
}

class IoFaults : public testing::TestWithParam<void (*)(const std::string&)> {
 protected:
  const ScratchFolder folder_;
  const std::string path_ = folder_.path("file");
};

TEST_P(IoFaults, KeepTheFileThatWasThere) {
  GetParam()(folder_.path("whole"));
  const std::string whole = read_file(folder_.path("whole"));
  write_file(path_, "old");
  const auto size = static_cast<int64_t>(whole.size());
  for (const int64_t room : {int64_t{0}, int64_t{9}, size / 2, size - 1}) {
    BrokenFiles files;
    files.fill_up_after(room);
    EXPECT_ERROR(GetParam()(path_), "cannot write", path_, "No space left on device");
  }
  for (const Call call : {Call::open_output, Call::write, Call::flush, Call::rename}) {
    BrokenFiles files;
    files.fail(call, std::errc::io_error);
    EXPECT_ERROR(GetParam()(path_), "cannot", path_, "Input/output error");
  }
  EXPECT_EQ(read_file(path_), "old");
  EXPECT_EQ(folder_.files(), 2);
  BrokenFiles files;
  files.cut_writes(1009);
  GetParam()(path_);
  EXPECT_EQ(read_file(path_), whole);
}

INSTANTIATE_TEST_SUITE_P(Of, IoFaults, testing::Values(write_safetensors, write_small_trace),
                         [](const auto& info) {
                           return std::string(info.index == 0 ? "Safetensors" : "Trace");
                         });

TEST(MetricsFaults, AFullDiskIsNamedAndLeavesTheLinesBefore) {
  const ScratchFolder folder;
  const std::string path = folder.path("metrics.jsonl");
  {
    BrokenFiles files;
    MetricsWriter writer(path, MetricsWriter::Mode::fresh);
    writer.write({{"step", 1}});
    files.fill_up_after(4);
    EXPECT_ERROR(writer.write({{"step", 2}}), "cannot write", path, "No space left on device");
  }
  EXPECT_EQ(read_file(path), "{\"step\":1}\n{\"st");
  MetricsWriter(path, MetricsWriter::Mode::append).write({{"step", 2}});
  EXPECT_EQ(read_file(path), "{\"step\":1}\n{\"st\n{\"step\":2}\n");
}

TEST(MetricsFaults, ShortWritesGiveWholeLines) {
  const ScratchFolder folder;
  BrokenFiles files;
  files.cut_writes(3);
  MetricsWriter(folder.path("m"), MetricsWriter::Mode::fresh).write({{"step", 1}, {"loss", 2.5}});
  EXPECT_EQ(read_file(folder.path("m")), "{\"step\":1,\"loss\":2.5}\n");
}

TEST(TensorBoardFaults, AFullDiskIsNamed) {
  const ScratchFolder folder;
  TensorBoardWriter writer(folder.path("board"));
  const std::string before = read_file(writer.path());
  BrokenFiles files;
  files.fail(Call::open_output, std::errc::no_space_on_device);
  EXPECT_ERROR(TensorBoardWriter(folder.path("board")), folder.path("board"), "No space left");
  EXPECT_EQ(read_file(writer.path()), before);
}

class OutputFolderFaults : public testing::Test {
 protected:
  OutputFolderFaults() { export_text("old"); }
  void export_text(const std::string& text) const {
    OutputFolder output(path_, true, [](const std::string& name) { return name == "config.json"; });
    write_file(output.file("config.json"), text);
    output.commit();
  }
  void expect_only(const std::string& text) const {
    EXPECT_EQ(read_file(path_ + "/config.json"), text);
    EXPECT_EQ(folder_.files(), 1);
  }

  const ScratchFolder folder_;
  const std::string path_ = folder_.path("model");
};

TEST_F(OutputFolderFaults, KeepTheFolderThatWasThere) {
  for (const Call call : {Call::make_folders, Call::write, Call::flush, Call::exchange}) {
    BrokenFiles files;
    files.fail(call, std::errc::io_error, path_);
    EXPECT_ERROR(export_text("new"), "cannot", path_, "Input/output error");
    expect_only("old");
  }
  BrokenFiles files;
  files.fail(Call::exchange, std::errc::invalid_argument);
  export_text("new");
  expect_only("new");
}

TEST_F(OutputFolderFaults, WhatAKilledProcessLeftAndCannotBeRemovedIsNamed) {
  make_folders(path_ + ".tmp");
  write_file(path_ + ".tmp/config.json", "half");
  BrokenFiles files;
  files.fail(Call::remove, std::errc::permission_denied, "config.json", 0, 1);
  EXPECT_ERROR(export_text("new"), "cannot remove", path_ + ".tmp/config.json", "Permission");
  export_text("new");
  expect_only("new");
}

}  // namespace
}  // namespace onefold
