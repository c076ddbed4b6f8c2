#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/mapped_faults.h"

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

TEST_F(File, AFileThatIsReplacedKeepsItsPermissions) {
  const auto permissions = [&](const std::string& name) {
    struct stat info {};
    EXPECT_EQ(::stat(at(name).c_str(), &info), 0);
    return info.st_mode & 07777;
  };
  write_file(at("secret"), "1");
  EXPECT_EQ(permissions("secret"), 0644U);
  for (const mode_t mode : {0600, 0664, 0755}) {
    ASSERT_EQ(::chmod(at("secret").c_str(), mode), 0);
    write_file(at("secret"), "2");
    EXPECT_EQ(permissions("secret"), mode);
  }
  fs::create_symlink("secret", at("link"));
  write_file(at("link"), "3");
  EXPECT_EQ(permissions("secret"), 0755U);
  EXPECT_EQ(read_file(at("secret")), "3");
}

TEST_F(File, WritingLeavesNoTemporaryBehind) {
  write_file(at("a"), "1");
  write_file(at("a"), "2");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(File, AWriteThatFailsKeepsTheOldFile) {
  write_file(at("a"), "old");
  fs::create_directory(at("a.onefold-tmp"));  // the temporary file cannot be made
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

TEST_F(File, ALinkStaysAndWhatItLeadsToIsReplaced) {
  fs::create_directories(at("disk"));
  write_file(at("disk/real"), "old");
  fs::create_symlink("disk/real", at("one"));
  fs::create_symlink("one", at("two"));
  fs::create_symlink("disk/new", at("dangling"));
  write_file(at("two"), "new");
  EXPECT_TRUE(fs::is_symlink(at("one")) && fs::is_symlink(at("two")));
  EXPECT_EQ(read_file(at("disk/real")), "new");
  write_file(at("dangling"), "made");
  EXPECT_TRUE(fs::is_symlink(at("dangling")));
  EXPECT_EQ(read_file(at("disk/new")), "made");
  EXPECT_EQ(std::distance(fs::directory_iterator(at("disk")), fs::directory_iterator()), 2);
  fs::create_symlink("round", at("round"));
  EXPECT_NE(user_error_of([&] { write_file(at("round"), "x"); }).find(at("round")),
            std::string::npos);
}

TEST_F(File, APipeGetsTheBytesAndStaysAPipe) {
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  fs::create_symlink("pipe", at("link"));
  for (const char* name : {"pipe", "link"}) {
    std::string got;
    std::thread reader([&] { got = read_file(at("pipe")); });
    write_file(at(name), "through");
    reader.join();
    EXPECT_EQ(got, "through");
    EXPECT_TRUE(fs::is_fifo(at("pipe")));
  }
  std::thread reader([&] { read_file(at("pipe")); });
  const std::string error = user_error_of([&] {
    OutputFile file(at("pipe"));
    file.append(std::as_bytes(std::span("0123", 4)));
    file.overwrite(0, std::as_bytes(std::span("x", 1)));
  });
  reader.join();
  EXPECT_NE(error.find("it is a pipe"), std::string::npos) << error;
  EXPECT_TRUE(fs::is_fifo(at("pipe")));
}

// To open a pipe waits for a writer, who may never come.
TEST_F(File, WhatMustBeAFileIsNoPipe) {
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  fs::create_symlink("pipe", at("link"));
  for (const std::string& path : {at("pipe"), at("link"), std::string("/dev/null")}) {
    const std::string read = user_error_of([&] { (void)read_plain_file(path); }),
                      mapped = user_error_of([&] { (void)MappedFile(path); });
    for (const std::string& error : {read, mapped})
      EXPECT_EQ(error, path + " is a pipe, a socket or a device, where a file is needed");
  }
  write_file(at("file"), "x");
  EXPECT_EQ(read_plain_file(at("file")), "x");
}

TEST_F(File, ALongTextIsNoPointerOfGitLfs) {
  const std::string begin = "version https://git-lfs.github.com/spec/v1\n";
  write_file(at("file"), begin);
  EXPECT_NE(user_error_of([&] { (void)read_file(at("file")); }).find("git lfs pull"),
            std::string::npos);
  write_file(at("file"), begin + std::string(1024, 'x'));
  EXPECT_EQ(read_file(at("file")).size(), begin.size() + 1024);
}

TEST_F(File, ADeviceStaysADevice) {
  if (::mknod(at("null").c_str(), S_IFCHR | 0600, ::makedev(1, 3)) != 0)
    GTEST_SKIP() << "this user may not make devices";
  write_file(at("null"), "into nothing");
  {
    OutputFile file(at("null"));
    file.append(std::as_bytes(std::span("0123", 4)));
  }  // never committed
  EXPECT_TRUE(fs::is_character_file(at("null")));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(File, TwoDoNotWriteOneFileAtOnce) {
  OutputFile first(at("a"));
  EXPECT_NE(user_error_of([&] { OutputFile second(at("a")); }).find("another process"),
            std::string::npos);
  first.append(std::as_bytes(std::span("first", 5)));
  first.commit();
  OutputFile third(at("a"));  // of a name that another file has had
  third.append(std::as_bytes(std::span("third", 5)));
  EXPECT_EQ(read_file(at("a")), "first");
  third.commit();
  EXPECT_EQ(read_file(at("a")), "third");
}

TEST_F(File, IsKnownUnderAllItsNames) {
  write_file(at("a"), "1");
  write_file(at("b"), "1");
  fs::create_symlink("a", at("link"));
  fs::create_hard_link(at("a"), at("hard"));
  fs::create_symlink("nowhere", at("broken"));
  EXPECT_TRUE(is_same_file(at("a"), at("link")) && is_same_file(at("hard"), at("link")));
  EXPECT_FALSE(is_same_file(at("a"), at("b")) || is_same_file(at("none"), at("none")));
  EXPECT_TRUE(is_plain_file(at("link")));
  EXPECT_FALSE(is_plain_file(folder_) || is_plain_file("/dev/null") || is_plain_file(at("none")));
  EXPECT_TRUE(is_broken_link(at("broken")));
  EXPECT_FALSE(is_broken_link(at("link")) || is_broken_link(at("none")));
}

// Without the handler this is a signal and no word.
TEST_F(File, AMapThatIsCutShortIsNamed) {
  write_file(at("a"), std::string(100'000, 'x'));
  EXPECT_EXIT(
      {
        report_faults_of_maps();
        const MappedFile mapped(at("a"));
        fs::resize_file(at("a"), 10);
        std::_Exit(mapped.bytes()[50'000] == std::byte{'x'} ? 2 : 3);
      },
      testing::ExitedWithCode(1), at("a") + " was cut short");
}

}  // namespace
}  // namespace onefold
