#include "base/scratch_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <vector>

#include "base/scratch_ring.h"
#include "base/text.h"
#include "base/thread_pool.h"

namespace onefold {
namespace {

std::error_code code_of(int error) { return {error, std::generic_category()}; }

using Chunk = ScratchChunk;

std::vector<Chunk> chunks_of(size_t length, size_t most) {
  std::vector<Chunk> chunks;
  for (size_t offset = 0; offset < length; offset += most)
    chunks.push_back({offset, std::min(most, length - offset)});
  return chunks;
}

// What the caller is told: the bytes up to the first gap. An error counts only if nothing comes
// before it: it is met again by the call for the rest.
std::error_code sum_up(const std::vector<Chunk>& chunks, size_t& count) {
  count = 0;
  for (const Chunk& chunk : chunks) {
    const bool again = chunk.result == -EINTR || chunk.result == -EAGAIN;
    if (chunk.result < 0 && !again)
      return count > 0 ? std::error_code() : code_of(static_cast<int>(-chunk.result));
    if (chunk.result > 0) count += static_cast<size_t>(chunk.result);
    if (chunk.result < static_cast<ssize_t>(chunk.length)) break;
  }
  return {};
}

// What takes the place of a ring.
class Threads {
 public:
  explicit Threads(int requests) : count_(std::min(requests, kMostThreads)) {}
  void transfer(int fd, bool writing, int64_t at, std::byte* memory, std::vector<Chunk>& chunks) {
    std::lock_guard lock(mutex_);
    if (!pool_ && chunks.size() > 1) pool_.emplace(count_);
    const auto one = [&](int64_t index, int) {
      Chunk& chunk = chunks[static_cast<size_t>(index)];
      std::byte* const data = memory + chunk.offset;
      const auto offset = static_cast<off_t>(at) + static_cast<off_t>(chunk.offset);
      chunk.result = writing ? ::pwrite(fd, data, chunk.length, offset)
                             : ::pread(fd, data, chunk.length, offset);
      if (chunk.result < 0) chunk.result = -errno;
    };
    if (chunks.size() == 1)
      one(0, 0);
    else
      pool_->run(static_cast<int64_t>(chunks.size()), one);
  }

 private:
  static constexpr int kMostThreads = 32;
  const int count_;
  std::mutex mutex_;
  std::optional<ThreadPool> pool_;
};

class PosixScratch final : public Files::Scratch {
 public:
  PosixScratch(int fd, bool direct, ScratchOptions options)
      : fd_(fd), direct_(direct), requests_(options.requests) {
    if (options.io != ScratchIo::ring) return;
    read_ring_ = ScratchRing::open(static_cast<unsigned>(requests_.depth));
    write_ring_ = ScratchRing::open(static_cast<unsigned>(requests_.depth));
  }
  ~PosixScratch() override { ::close(fd_); }
  PosixScratch(const PosixScratch&) = delete;
  PosixScratch& operator=(const PosixScratch&) = delete;

  std::error_code reserve(int64_t end) override {
    const int error = ::posix_fallocate(fd_, 0, end);
    // Where space cannot be set aside, a write that finds none says so.
    return error == EOPNOTSUPP || error == EINVAL ? std::error_code() : code_of(error);
  }
  std::error_code read_at(int64_t at, std::span<std::byte> dst, size_t& count) override {
    return transfer(read_ring_, read_threads_, false, at, dst.data(), dst.size(), count);
  }
  std::error_code write_at(int64_t at, std::span<const std::byte> src, size_t& count) override {
    return transfer(write_ring_, write_threads_, true, at, const_cast<std::byte*>(src.data()),
                    src.size(), count);
  }
  void lend(std::span<std::byte> memory) override {
    for (ScratchRing* ring : rings()) ring->lend(memory.data(), memory.size());
  }
  void take_back(std::span<std::byte> memory) override {
    for (ScratchRing* ring : rings()) ring->take_back(memory.data(), memory.size());
  }
  std::string how() const override {
    return fmt::format("{}, {} requests of {}, {} the page cache", travel(), requests_.depth,
                       format_bytes(requests_.bytes), direct_ ? "past" : "through");
  }

 private:
  std::error_code transfer(const std::unique_ptr<ScratchRing>& ring, Threads& threads, bool writing,
                           int64_t at, std::byte* memory, size_t length, size_t& count) {
    std::vector<Chunk> chunks = chunks_of(length, static_cast<size_t>(requests_.bytes));
    if (ring)
      ring->transfer(fd_, writing, at, memory, chunks);
    else if (!chunks.empty())
      threads.transfer(fd_, writing, at, memory, chunks);
    return sum_up(chunks, count);
  }

  std::vector<ScratchRing*> rings() const {
    if (!read_ring_ || !write_ring_) return {};
    return {read_ring_.get(), write_ring_.get()};
  }
  std::string travel() const {
    if (rings().empty()) return "threads (io_uring is not allowed)";
    std::string refusal;
    bool registers = false;
    for (const ScratchRing* ring : rings()) {
      registers = registers || ring->registers();
      if (refusal.empty()) refusal = ring->refusal();
    }
    if (refusal.empty()) return registers ? "io_uring with registered buffers" : "io_uring";
    return fmt::format("io_uring, {} ({})",
                       registers ? "not all buffers registered" : "buffers not registered",
                       refusal);
  }

  const int fd_;
  const bool direct_;
  const Files::Requests requests_;
  std::unique_ptr<ScratchRing> read_ring_, write_ring_;
  Threads read_threads_{requests_.depth}, write_threads_{requests_.depth};
};

// Not every file system has files without a name: there, one that loses it at once.
int open_nameless(const std::string& folder, int flags) {
  const int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return fd;
  std::string path = folder + "/onefold-XXXXXX";
  const int named = ::mkostemp(path.data(), O_CLOEXEC | flags);
  if (named >= 0) ::unlink(path.c_str());
  return named;
}

}  // namespace

std::error_code open_scratch_file(const std::string& folder, ScratchOptions options,
                                  std::unique_ptr<Files::Scratch>& file) {
  bool direct = true;
  int fd = open_nameless(folder, O_DIRECT);
  if (fd < 0 && errno == EINVAL) {
    direct = false;
    fd = open_nameless(folder, 0);
  }
  if (fd < 0) return code_of(errno);
  file = std::make_unique<PosixScratch>(fd, direct, options);
  return {};
}

}  // namespace onefold
