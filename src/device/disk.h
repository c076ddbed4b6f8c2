// The disk tier of one rank: a file without a name, cut into blocks that the ledger books. A
// block's address is its place in the file and is never followed; bytes are read and written by
// calls. What fails is a UserError that names the folder, what was under way and the reason.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "base/files.h"
#include "tensor/memory_source.h"

namespace onefold {

class Disk final : public MemorySource {
 public:
  // The folder is made if it is missing.
  explicit Disk(std::string folder, Files::Requests requests = {});

  int64_t block_bytes(int64_t bytes) const override { return disk_block_bytes(bytes); }
  // Throws if the file system has no room.
  void* take(int64_t block_bytes) override;
  void give_back(void* block, int64_t block_bytes) override;

  // Any part of a block. Whole disk blocks go straight where they begin at one in memory too, and
  // the rest through a buffer. From any thread; a part is not read while it is written.
  void read(const void* from, std::span<std::byte> dst) const;
  void write(void* to, std::span<const std::byte> src);

  // Memory that is read into and written from until it is taken back; see Files::Scratch.
  void lend(std::span<std::byte> memory) { file_->lend(memory); }
  void take_back(std::span<std::byte> memory) { file_->take_back(memory); }

  const std::string& folder() const { return folder_; }
  std::string how() const { return file_->how(); }
  int64_t bytes_read() const { return read_; }
  int64_t bytes_written() const { return written_; }

 private:
  void read_blocks(int64_t at, std::span<std::byte> dst) const;
  void write_blocks(int64_t at, std::span<const std::byte> src);
  template <class Transfer>
  void transfer(const char* verb, int64_t at, size_t length, const Transfer& call) const;

  const std::string folder_;
  std::unique_ptr<Files::Scratch> file_;
  std::mutex mutex_;  // of what follows
  int64_t end_ = 0;
  std::multimap<int64_t, int64_t> free_;  // places, by size
  mutable std::atomic<int64_t> read_ = 0;
  std::atomic<int64_t> written_ = 0;
};

}  // namespace onefold
