// Files without a name: what is written is read, by io_uring and by the threads in its place.
#include "base/scratch_file.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "unwatched.h"

namespace onefold {
namespace {

constexpr size_t kScratchBlock = Files::kScratchBlock;

struct FreeAligned {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<std::byte, FreeAligned>;

ONEFOLD_UNWATCHED AlignedMemory aligned_blocks(size_t bytes, int seed = 0) {
  AlignedMemory memory(static_cast<std::byte*>(std::aligned_alloc(kScratchBlock, bytes)));
  std::byte* const to = memory.get();
  for (size_t i = 0; i < bytes; ++i)
    to[i] = static_cast<std::byte>((i * 31 + i / 4096 + static_cast<size_t>(seed)) % 251);
  return memory;
}

std::string temporary_folder() { return std::filesystem::temp_directory_path().string(); }

class ScratchFile : public testing::TestWithParam<ScratchIo> {
 protected:
  void SetUp() override { ASSERT_FALSE(open_scratch_file(temporary_folder(), GetParam(), file_)); }
  std::unique_ptr<Files::Scratch> file_;
};

TEST_P(ScratchFile, GivesBackWhatWasWrittenAnywhere) {
  for (const size_t bytes :
       {kScratchBlock, size_t{1} << 20, (size_t{37} << 20) + 3 * kScratchBlock}) {
    const int64_t at = 5 * kScratchBlock;
    ASSERT_FALSE(file_->reserve(at + static_cast<int64_t>(bytes)));
    const AlignedMemory written = aligned_blocks(bytes, 7), read = aligned_blocks(bytes);
    size_t count = 0;
    ASSERT_FALSE(file_->write_at(at, {written.get(), bytes}, count));
    EXPECT_EQ(count, bytes);
    ASSERT_FALSE(file_->read_at(at, {read.get(), bytes}, count));
    EXPECT_EQ(count, bytes);
    EXPECT_EQ(std::memcmp(written.get(), read.get(), bytes), 0);
  }
}

TEST_P(ScratchFile, WhatWasReservedIsZeroAndBeyondItThereIsNothing) {
  ASSERT_FALSE(file_->reserve(4 * static_cast<int64_t>(kScratchBlock)));
  const AlignedMemory read = aligned_blocks(8 * kScratchBlock, 3);
  size_t count = 0;
  ASSERT_FALSE(file_->read_at(0, {read.get(), 8 * kScratchBlock}, count));
  ASSERT_EQ(count, 4 * kScratchBlock);
  for (size_t i = 0; i < count; ++i) ASSERT_EQ(read.get()[i], std::byte{0});
}

TEST_P(ScratchFile, AnErrorIsTheSystemsOwn) {
  const AlignedMemory memory = aligned_blocks(kScratchBlock);
  size_t count = 1;
  EXPECT_EQ(file_->write_at(-4096, {memory.get(), kScratchBlock}, count),
            std::errc::invalid_argument);
  EXPECT_EQ(count, 0U);
}

INSTANTIATE_TEST_SUITE_P(By, ScratchFile, testing::Values(ScratchIo::ring, ScratchIo::threads),
                         [](const auto& info) {
                           return info.param == ScratchIo::ring ? "ring" : "threads";
                         });

TEST(ScratchFiles, SayHowBytesTravel) {
  std::unique_ptr<Files::Scratch> file;
  ASSERT_FALSE(open_scratch_file(temporary_folder(), ScratchIo::threads, file));
  EXPECT_NE(file->how().find("threads"), std::string::npos);
  EXPECT_NE(file->how().find("page cache"), std::string::npos);
}

TEST(ScratchFiles, AFolderThatIsNotThereIsAnError) {
  std::unique_ptr<Files::Scratch> file;
  EXPECT_EQ(open_scratch_file("/nowhere/at/all", ScratchIo::ring, file),
            std::errc::no_such_file_or_directory);
}

}  // namespace
}  // namespace onefold
