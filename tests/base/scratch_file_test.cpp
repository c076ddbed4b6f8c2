// Files without a name: what is written is read, by io_uring and by the threads in its place.
#include "base/scratch_file.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/text.h"
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
  void SetUp() override {
    ASSERT_FALSE(open_scratch_file(temporary_folder(), {{}, GetParam()}, file_));
  }
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

// Lent memory may be taken back in part while the rest goes on, and other pages may lie at the same
// addresses afterwards: what was registered before must not be read or written in their place.
TEST_P(ScratchFile, LentMemoryIsReadAndWrittenAsItIsNow) {
  constexpr size_t kMiB = size_t{1} << 20, kBytes = 8 * kMiB, kPart = 3 * kMiB;
  ASSERT_FALSE(file_->reserve(kBytes));
  void* const map =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(map, MAP_FAILED);
  const std::span<std::byte> memory(static_cast<std::byte*>(map), kBytes);
  file_->lend(memory);
  for (int round = 0; round < 3; ++round) {
    const AlignedMemory written = aligned_blocks(kBytes, 11 * round);
    std::memcpy(memory.data(), written.get(), kBytes);
    size_t count = 0;
    ASSERT_FALSE(file_->write_at(0, memory, count));
    ASSERT_EQ(count, kBytes);
    file_->take_back(memory.first(kPart));
    ASSERT_EQ(
        ::mmap(map, kPart, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
        map);
    if (round % 2 == 0) file_->lend(memory.first(kPart));
    std::memset(memory.data(), 0x5a, kBytes);
    ASSERT_FALSE(file_->read_at(0, memory, count));
    ASSERT_EQ(count, kBytes);
    ASSERT_EQ(std::memcmp(memory.data(), written.get(), kBytes), 0) << round;
  }
  file_->take_back(memory);
  ASSERT_EQ(::munmap(map, kBytes), 0);
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
  ASSERT_FALSE(open_scratch_file(temporary_folder(), {{}, ScratchIo::threads}, file));
  EXPECT_NE(file->how().find("threads"), std::string::npos);
  EXPECT_NE(file->how().find("page cache"), std::string::npos);
}

// Whatever the size and the number of requests, bytes are the same.
TEST(ScratchFiles, RequestsAreCutAsTheyAreAsked) {
  for (const ScratchIo io : {ScratchIo::ring, ScratchIo::threads})
    for (const Files::Requests requests :
         {Files::Requests{kScratchBlock, 1}, Files::Requests{3 * kScratchBlock, 5},
          Files::Requests{int64_t{1} << 30, 4096}}) {
      std::unique_ptr<Files::Scratch> file;
      ASSERT_FALSE(open_scratch_file(temporary_folder(), {requests, io}, file));
      EXPECT_NE(file->how().find(
                    fmt::format("{} requests of {}", requests.depth, format_bytes(requests.bytes))),
                std::string::npos)
          << file->how();
      constexpr size_t kBytes = 100 * kScratchBlock;
      const AlignedMemory written = aligned_blocks(kBytes, 7), read = aligned_blocks(kBytes);
      size_t count = 0;
      ASSERT_FALSE(file->write_at(kScratchBlock, {written.get(), kBytes}, count));
      ASSERT_EQ(count, kBytes);
      ASSERT_FALSE(file->read_at(kScratchBlock, {read.get(), kBytes}, count));
      ASSERT_EQ(count, kBytes);
      EXPECT_EQ(std::memcmp(written.get(), read.get(), kBytes), 0);
    }
}

// CAP_IPC_LOCK, which a user who is not the administrator does not have, is a thread's own.
// The ring itself takes a few pages.
class LittleMayBeLocked {
 public:
  LittleMayBeLocked() {
    ::getrlimit(RLIMIT_MEMLOCK, &before_);
    const rlimit little{.rlim_cur = 512 << 10, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_MEMLOCK, &little);
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    __user_cap_data_struct data[2]{};
    ::syscall(SYS_capget, &header, data);
    data[0].effective &= ~(1U << CAP_IPC_LOCK);
    ::syscall(SYS_capset, &header, data);
  }
  ~LittleMayBeLocked() { ::setrlimit(RLIMIT_MEMLOCK, &before_); }
  LittleMayBeLocked(const LittleMayBeLocked&) = delete;
  LittleMayBeLocked& operator=(const LittleMayBeLocked&) = delete;

 private:
  rlimit before_{};
};

// What is written from memory that was lent is read into it, and how it travelled is told.
std::string how_lent_memory_travels() {
  std::unique_ptr<Files::Scratch> file;
  EXPECT_FALSE(open_scratch_file(temporary_folder(), {{}, ScratchIo::ring}, file));
  constexpr size_t kBytes = size_t{1} << 20;
  const AlignedMemory memory = aligned_blocks(kBytes, 5), same = aligned_blocks(kBytes, 5);
  file->lend({memory.get(), kBytes});
  size_t count = 0;
  EXPECT_FALSE(file->write_at(0, {memory.get(), kBytes}, count));
  std::memset(memory.get(), 0, kBytes);
  EXPECT_FALSE(file->read_at(0, {memory.get(), kBytes}, count));
  EXPECT_EQ(std::memcmp(memory.get(), same.get(), kBytes), 0);
  file->take_back({memory.get(), kBytes});
  return file->how();
}

TEST(ScratchFiles, RegisterBuffersOrSayWhyNot) {
  const std::string plain = how_lent_memory_travels();
  if (plain.find("threads") != std::string::npos) GTEST_SKIP() << "no io_uring here";
  EXPECT_TRUE(plain.find("with registered buffers") != std::string::npos ||
              plain.find("buffers not registered (") != std::string::npos)
      << plain;
  std::string limited;
  std::thread([&] {
    const LittleMayBeLocked little;
    limited = how_lent_memory_travels();
  }).join();
  EXPECT_NE(
      limited.find("io_uring, buffers not registered (Cannot allocate memory; memory that may "
                   "be locked (ulimit -l): 512.0 KiB)"),
      std::string::npos)
      << limited;
}

TEST(ScratchFiles, AFolderThatIsNotThereIsAnError) {
  std::unique_ptr<Files::Scratch> file;
  EXPECT_EQ(open_scratch_file("/nowhere/at/all", {{}, ScratchIo::ring}, file),
            std::errc::no_such_file_or_directory);
}

}  // namespace
}  // namespace onefold
