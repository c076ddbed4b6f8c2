// What base/file.h makes of a system that fails: the file that was there stays, nothing is left
// beside it, and the error names path and reason.
#include "base/broken_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "error_text.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;
using test::BrokenFiles;
using test::Call;

class BrokenFilesTest : public testing::Test {
 protected:
  BrokenFilesTest() {
    std::string name = fs::temp_directory_path() / "onefold_broken_XXXXXX";
    folder_ = ::mkdtemp(name.data());
    write_file(at("a"), "old");
  }
  ~BrokenFilesTest() override { fs::remove_all(folder_); }
  std::string at(const std::string& name) const { return folder_ / name; }
  void expect_only_the_old_file() const {
    EXPECT_EQ(read_file(at("a")), "old");
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
  }

  fs::path folder_;
};

// 600,000 bytes, which no buffer holds, in pieces of all sizes; then some in the middle are
// replaced.
std::string pattern() {
  std::string content;
  for (int i = 0; i < 600'000; ++i) content += static_cast<char>(i * 131 >> 3);
  return content;
}

void write_in_pieces(const std::string& path) {
  std::string content = pattern();
  std::string wrong = content;
  for (size_t i = 1000; i < 1064; ++i) wrong[i] = '?';
  OutputFile file(path);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(wrong));
  size_t done = 0;
  for (const size_t size : {1, 63, 4096, 300'000, 7, 262'144}) {
    file.append(bytes.subspan(done, size));
    done += size;
  }
  file.append(bytes.subspan(done));
  file.overwrite(1000, std::as_bytes(std::span(content)).subspan(1000, 64));
  file.commit();
}

TEST_F(BrokenFilesTest, ShortWritesGiveTheWholeFile) {
  for (const size_t most : {1000, 63, 7}) {
    BrokenFiles files;
    files.cut_writes(most);
    write_in_pieces(at("a"));
    EXPECT_GT(files.calls(Call::write), static_cast<int64_t>(600'000 / most));
    EXPECT_EQ(read_file(at("a")), pattern());
  }
}

TEST_F(BrokenFilesTest, InterruptedCallsAreRepeated) {
  BrokenFiles files;
  for (const int skip : {0, 2, 3, 4})  // the last one overwrites
    files.fail(Call::write, std::errc::interrupted, "", skip, 1);
  files.fail(Call::read, std::errc::interrupted, "", 1, 2);
  write_in_pieces(at("a"));
  EXPECT_EQ(read_file(at("a")), pattern());
  EXPECT_EQ(files.failed(), 6);
}

TEST_F(BrokenFilesTest, AFullDiskKeepsTheOldFile) {
  for (const int64_t room : {0, 1, 5000, 299'999, 599'999}) {
    BrokenFiles files;
    files.fill_up_after(room);
    EXPECT_ERROR(write_in_pieces(at("a")), "cannot write", at("a"), "No space left on device");
    EXPECT_EQ(files.failed(), 1);
    expect_only_the_old_file();
  }
}

// A write in the middle that was cut short gave the error of some earlier call.
TEST_F(BrokenFilesTest, OverwritingOnAFullDiskNamesTheReason) {
  for (const int64_t room : {600'000, 600'001, 600'063}) {
    BrokenFiles files;
    files.fill_up_after(room);
    errno = ENOENT;
    EXPECT_ERROR(write_in_pieces(at("a")), "cannot write", at("a"), "No space left on device");
    expect_only_the_old_file();
  }
}

TEST_F(BrokenFilesTest, ASystemThatTakesNothingIsAnError) {
  BrokenFiles files;
  files.cut_writes(0);
  EXPECT_ERROR(write_file(at("a"), "new"), "cannot write", at("a"), "accepts no more bytes");
  expect_only_the_old_file();
  GrowingFile growing(at("a"), Files::Mode::append);
  EXPECT_ERROR(growing.append("x"), "cannot write", at("a"), "accepts no more bytes");
}

// A run's log on a disk that is full for a while.
TEST_F(BrokenFilesTest, WhatAGrowingFileCouldNotWriteComesFirstNextTime) {
  BrokenFiles files;
  GrowingFile growing(at("a"), Files::Mode::append);
  files.fill_up_after(3);
  EXPECT_ERROR(growing.append("one\ntwo\n"), "cannot write", at("a"), "No space left");
  EXPECT_ERROR(growing.append("three\n"), "No space left");
  EXPECT_EQ(growing.waiting_bytes(), 11);
  files.fill_up_after(-1);
  growing.append("four\n");
  EXPECT_EQ(read_file(at("a")), "oldone\ntwo\nthree\nfour\n");
  files.fill_up_after(0);
  const std::string much(GrowingFile::kMostWaiting, 'x');
  EXPECT_ERROR(growing.append("five\n"), "No space left");
  EXPECT_ERROR(growing.append(much), "No space left");
  files.fill_up_after(-1);
  growing.retry();
  EXPECT_EQ(read_file(at("a")), "oldone\ntwo\nthree\nfour\nfive\n");
}

TEST_F(BrokenFilesTest, EveryCallThatFailsIsNamedAndKeepsTheOldFile) {
  const std::pair<Call, const char*> faults[] = {{Call::open_output, "cannot create"},
                                                 {Call::write, "cannot write"},
                                                 {Call::flush, "cannot flush"},
                                                 {Call::rename, "cannot rename into place"}};
  for (const auto& [call, words] : faults) {
    BrokenFiles files;
    files.fail(call, std::errc::io_error);
    EXPECT_ERROR(write_file(at("a"), "new"), words, at("a"), "Input/output error");
    expect_only_the_old_file();
  }
}

TEST_F(BrokenFilesTest, AFolderThatCannotBeFlushedIsNamed) {
  BrokenFiles files;
  files.fail(Call::flush_folder, std::errc::io_error);
  EXPECT_ERROR(write_file(at("a"), "new"), "cannot flush the folder", folder_, "Input/output");
  EXPECT_EQ(read_file(at("a")), "new");  // it has its name, but may lose it if the power fails
}

TEST_F(BrokenFilesTest, ATemporaryThatCannotBeRemovedHidesNoError) {
  BrokenFiles files;
  files.fail(Call::flush, std::errc::io_error);
  files.fail(Call::remove, std::errc::io_error);
  EXPECT_ERROR(write_file(at("a"), "new"), "cannot flush", "Input/output error");
  EXPECT_EQ(read_file(at("a")), "old");
}

TEST_F(BrokenFilesTest, ReadingNamesTheReason) {
  BrokenFiles files;
  files.fail(Call::read, std::errc::io_error, "", 0, 1);
  EXPECT_ERROR(read_file(at("a")), "cannot read", at("a"), "Input/output error");
  EXPECT_EQ(read_file(at("a")), "old");
  files.fail(Call::map, std::errc::not_enough_memory);
  EXPECT_ERROR(MappedFile(at("a")), at("a"), "Cannot allocate memory");
  files.fail(Call::open_input, std::errc::too_many_files_open);
  EXPECT_ERROR(read_file(at("a")), "cannot open", at("a"), "Too many open files");
  files.fail(Call::status, std::errc::io_error);
  EXPECT_ERROR(file_bytes(at("a")), "cannot examine", at("a"), "Input/output error");
}

TEST_F(BrokenFilesTest, AFolderThatCannotBeListedIsNotEmpty) {
  EXPECT_TRUE(list_folder(at("none")).empty());
  EXPECT_TRUE(list_folder(at("a/b")).empty());
  EXPECT_EQ(list_folder(folder_).size(), 1);
  BrokenFiles files;
  files.fail(Call::list, std::errc::io_error);
  EXPECT_ERROR(list_folder(folder_), "cannot list", folder_, "Input/output error");
}

TEST_F(BrokenFilesTest, RemovingGoesThroughFoldersAndNamesWhatStays) {
  make_folders(at("tree/inner/empty"));
  for (const char* name : {"tree/x", "tree/inner/y"}) write_file(at(name), "1");
  write_file(at("kept"), "2");
  fs::create_symlink(at("kept"), at("tree/link"));
  fs::create_directory_symlink(folder_, at("tree/up"));
  {
    BrokenFiles files;
    files.fail(Call::remove, std::errc::permission_denied, "inner/y");
    EXPECT_ERROR(remove_path(at("tree")), "cannot remove", at("tree/inner/y"), "Permission denied");
  }
  remove_path(at("tree"));
  EXPECT_FALSE(path_exists(at("tree")));
  EXPECT_EQ(read_file(at("kept")), "2");  // links are not followed
  remove_path(at("tree"));                // what is not there is no error
  EXPECT_EQ(try_remove_path(at("a/b")), "");
}

class ReplaceFolderTest : public BrokenFilesTest {
 protected:
  ReplaceFolderTest() {
    for (const char* name : {"new", "place"}) {
      make_folders(at(name));
      write_file(at(name) + "/file", name);
    }
  }
  void expect_replaced() const {
    EXPECT_EQ(read_file(at("place/file")), "new");
    EXPECT_FALSE(path_exists(at("new")));
    EXPECT_FALSE(path_exists(at("place.old")));
  }
  void expect_as_before() const {
    EXPECT_EQ(read_file(at("place/file")), "place");
    EXPECT_EQ(read_file(at("new/file")), "new");
    EXPECT_FALSE(path_exists(at("place.old")));
  }
};

TEST_F(ReplaceFolderTest, AFullFolderIsReplaced) {
  replace_folder(at("new"), at("place"));
  expect_replaced();
}

TEST_F(ReplaceFolderTest, AnEmptyOneToo) {
  fs::remove(at("place/file"));
  replace_folder(at("new"), at("place"));
  expect_replaced();
}

TEST_F(ReplaceFolderTest, ALinkIsReplacedAndNotWhatItLeadsTo) {
  fs::rename(at("place"), at("elsewhere"));
  fs::create_directory_symlink(at("elsewhere"), at("place"));
  replace_folder(at("new"), at("place"));
  expect_replaced();
  EXPECT_EQ(read_file(at("elsewhere/file")), "place");
}

TEST_F(ReplaceFolderTest, AFileSystemThatCannotExchangeDoesItInTwoSteps) {
  BrokenFiles files;
  files.fail(Call::exchange, std::errc::invalid_argument);
  replace_folder(at("new"), at("place"));
  expect_replaced();
}

TEST_F(ReplaceFolderTest, AFailureLeavesBothAsTheyWere) {
  {
    BrokenFiles files;
    files.fail(Call::rename, std::errc::io_error);
    EXPECT_ERROR(replace_folder(at("new"), at("place")), "cannot rename", at("new"), at("place"),
                 "Input/output error");
    expect_as_before();
  }
  {
    BrokenFiles files;
    files.fail(Call::exchange, std::errc::io_error);
    EXPECT_ERROR(replace_folder(at("new"), at("place")), "cannot exchange", at("place"),
                 "Input/output error");
    expect_as_before();
  }
  BrokenFiles files;  // in two steps, and the second one fails
  files.fail(Call::exchange, std::errc::function_not_supported);
  files.fail(Call::rename, std::errc::io_error, "", 2, 1);
  EXPECT_ERROR(replace_folder(at("new"), at("place")), "cannot rename", at("place"),
               "Input/output error");
  expect_as_before();
}

TEST_F(BrokenFilesTest, TheSystemsFilesAreInForceAgainAfterwards) {
  {
    BrokenFiles files;
    files.fail(Call::open_input, std::errc::io_error);
    EXPECT_THROW(read_file(at("a")), UserError);
  }
  EXPECT_EQ(read_file(at("a")), "old");
}

}  // namespace
}  // namespace onefold
