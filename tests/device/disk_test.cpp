// The disk tier: blocks of a file, read and written in any part.
#include "device/disk.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/broken_files.h"
#include "data/scratch.h"

namespace onefold {
namespace {

std::vector<std::byte> random_content(std::mt19937& random, size_t bytes) {
  std::vector<std::byte> content((bytes + 3) / 4 * 4);
  for (size_t i = 0; i < content.size(); i += 4) {
    const auto word = static_cast<uint32_t>(random());
    std::memcpy(&content[i], &word, 4);
  }
  content.resize(bytes);
  return content;
}

TEST(Disk, AnyPartOfABlockIsReadAndWrittenAndTheRestStays) {
  const ScratchFolder folder;
  Disk disk(folder.path("state"));
  std::mt19937 random(1);
  const int64_t bytes = disk.block_bytes(3'000'001);
  EXPECT_EQ(bytes % kDiskBlock, 0);
  disk.take(kDiskBlock);  // so that the next does not begin the file
  auto* const block = static_cast<std::byte*>(disk.take(bytes));
  std::vector<std::byte> model = random_content(random, static_cast<size_t>(bytes));
  disk.write(block, model);
  for (int i = 0; i < 60; ++i) {
    const size_t begin = random() % model.size(), most = model.size() - begin;
    const size_t length = i % 3 == 0 ? most : std::min<size_t>(most, random() % 10000);
    const std::vector<std::byte> piece = random_content(random, length);
    std::copy(piece.begin(), piece.end(), model.begin() + static_cast<int64_t>(begin));
    disk.write(block + begin, piece);
    std::vector<std::byte> read(length);
    disk.read(block + begin, read);
    ASSERT_EQ(read, piece);
  }
  std::vector<std::byte> all(model.size());
  disk.read(block, all);
  EXPECT_EQ(all, model);
  EXPECT_GE(disk.bytes_written(), bytes);
}

TEST(Disk, BlocksThatWereGivenBackAreTakenAgain) {
  const ScratchFolder folder;
  Disk disk(folder.path("state"));
  void* const first = disk.take(kDiskBlock);
  void* const second = disk.take(2 * kDiskBlock);
  EXPECT_NE(first, nullptr);
  EXPECT_NE(first, second);
  disk.give_back(first, kDiskBlock);
  EXPECT_EQ(disk.take(kDiskBlock), first);
}

TEST(Disk, WritesThatAreCutShortGoOn) {
  const ScratchFolder folder;
  test::BrokenFiles files;
  files.cut_writes(3 * kDiskBlock + 100);
  Disk disk(folder.path("state"));
  std::mt19937 random(2);
  const std::vector<std::byte> content = random_content(random, 50 * kDiskBlock);
  void* const block = disk.take(50 * kDiskBlock);
  disk.write(block, content);
  std::vector<std::byte> read(content.size());
  disk.read(block, read);
  EXPECT_EQ(read, content);
}

TEST(Disk, ADiskThatTakesNothingIsAnError) {
  const ScratchFolder folder;
  test::BrokenFiles files;
  files.cut_writes(100);  // less than a block
  Disk disk(folder.path("state"));
  const std::vector<std::byte> content(kDiskBlock);
  void* const block = disk.take(kDiskBlock);
  expect_in(user_error_of([&] { disk.write(block, content); }),
            {"cannot write", folder.path("state"), "takes no more bytes"});
}

}  // namespace
}  // namespace onefold
