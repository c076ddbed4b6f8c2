#include "base/file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;

// A folder of its own for each test, gone afterwards.
class File : public testing::Test {
 protected:
  File() {
    std::string name = fs::temp_directory_path() / "onefold_file_XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~File() override { fs::remove_all(folder_); }
  std::string at(const std::string& name) const { return folder_ / name; }

  fs::path folder_;
};

// The error that `run` ends in.
template <typename Run>
std::string user_error_of(const Run& run) {
  try {
    run();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(File, WhatIsWrittenIsReadBack) {
  std::string content = "text\n";
  content += '\0';
  content.append(200'000, 'x');
  write_file(at("a"), content);
  EXPECT_EQ(read_file(at("a")), content);
  write_file(at("a"), "");
  EXPECT_EQ(read_file(at("a")), "");
}

TEST_F(File, WritingLeavesNoTemporaryBehind) {
  write_file(at("a"), "1");
  write_file(at("a"), "2");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(File, AWriteThatFailsKeepsTheOldFile) {
  write_file(at("a"), "old");
  fs::create_directory(at("a.tmp"));  // the temporary file cannot be made
  EXPECT_THROW(write_file(at("a"), "new"), UserError);
  EXPECT_EQ(read_file(at("a")), "old");
}

TEST_F(File, FilesWithoutASizeAreReadToTheEnd) {
  EXPECT_FALSE(read_file("/proc/self/status").empty());
}

TEST_F(File, ErrorsNameThePathAndTheReason) {
  const std::string missing = at("missing");
  const std::string error = user_error_of([&] { read_file(missing); });
  EXPECT_NE(error.find(missing), std::string::npos) << error;
  EXPECT_NE(error.find("No such file"), std::string::npos) << error;
  EXPECT_NE(user_error_of([&] { read_file(folder_); }).find("folder"), std::string::npos);
  EXPECT_NE(user_error_of([&] { write_file(missing + "/b", "x"); }).find(missing + "/b"),
            std::string::npos);
  EXPECT_NE(user_error_of([&] { MappedFile mapped(missing); }).find(missing), std::string::npos);
}

TEST_F(File, FoldersAreMadeWithTheirParents) {
  make_folders(at("x/y/z"));
  EXPECT_TRUE(fs::is_directory(at("x/y/z")));
  make_folders(at("x/y/z"));  // once more is no error
  write_file(at("plain"), "x");
  EXPECT_NE(user_error_of([&] { make_folders(at("plain/sub")); }).find(at("plain/sub")),
            std::string::npos);
}

TEST_F(File, AMapShowsTheFile) {
  write_file(at("a"), "hello");
  const MappedFile mapped(at("a"));
  ASSERT_EQ(mapped.bytes().size(), 5u);
  EXPECT_EQ(std::memcmp(mapped.bytes().data(), "hello", 5), 0);
  EXPECT_EQ(mapped.path(), at("a"));
}

TEST_F(File, AnEmptyFileMapsToAnEmptySpan) {
  write_file(at("a"), "");
  EXPECT_TRUE(MappedFile(at("a")).bytes().empty());
  EXPECT_TRUE(MappedFile().bytes().empty());
}

TEST_F(File, AMapCanBeMoved) {
  write_file(at("a"), "aa");
  write_file(at("b"), "bbb");
  MappedFile a(at("a"));
  MappedFile moved(std::move(a));
  EXPECT_EQ(moved.bytes().size(), 2u);
  moved = MappedFile(at("b"));
  ASSERT_EQ(moved.bytes().size(), 3u);
  EXPECT_EQ(std::memcmp(moved.bytes().data(), "bbb", 3), 0);
}

}  // namespace
}  // namespace onefold
