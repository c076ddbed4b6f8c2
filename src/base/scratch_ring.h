// io_uring as a scratch file uses it: one transfer at a time, cut into chunks of which as many are
// under way as the queue holds. Memory that is lent to it is registered where transfers first touch
// it: its pages are then pinned once, and not again by each request.
#pragma once

#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace onefold {

struct ScratchChunk {
  size_t offset = 0, length = 0;  // in the memory of the call
  ssize_t result = 0;             // bytes, or a negative error
};

class ScratchRing {
 public:
  // Null where the system has none, or forbids it.
  static std::unique_ptr<ScratchRing> open(unsigned depth);
  ~ScratchRing();
  ScratchRing(const ScratchRing&) = delete;
  ScratchRing& operator=(const ScratchRing&) = delete;

  void transfer(int fd, bool writing, int64_t at, std::byte* memory,
                std::vector<ScratchChunk>& chunks);

  // As Files::Scratch has them. From any thread.
  void lend(std::byte* memory, size_t bytes);
  void take_back(std::byte* memory, size_t bytes);

  bool registers() const;       // chunks travelled by registered memory
  std::string refusal() const;  // why the system registers no more; empty: it did not refuse

 private:
  // Of memory that was lent, by address: none larger than the system registers at once.
  struct Piece {
    size_t bytes = 0;
    int slot = kUnregistered;  // in the ring's table
  };
  static constexpr int kUnregistered = -1;

  explicit ScratchRing(unsigned depth) : depth_(depth) {}
  void prepare(int fd, bool writing, int64_t at, std::byte* memory, ScratchChunk& chunk);
  int slot_of(std::byte* memory, size_t bytes);
  void enter(std::byte* memory, Piece& piece);
  bool set_slot(int slot, std::byte* memory, size_t bytes);
  void refuse(int error);

  const unsigned depth_;
  std::mutex mutex_;  // one call at a time
  io_uring ring_{};
  bool open_ = false;

  // A slot is looked up and its request handed to the system under this lock, and emptied under it:
  // requests that are under way keep their pages.
  mutable std::mutex table_mutex_;
  std::map<std::byte*, Piece> pieces_;
  std::vector<int> free_slots_;
  bool has_table_ = false, used_ = false;
  std::string refusal_;
};

}  // namespace onefold
