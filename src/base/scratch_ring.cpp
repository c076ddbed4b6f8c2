#include "base/scratch_ring.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <system_error>

#include "base/text.h"

namespace onefold {
namespace {

constexpr size_t kLargestPiece = size_t{1} << 30;  // the system's own limit
constexpr int kSlots = 1024;

std::string locked_memory_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited"
                                         : format_bytes(static_cast<int64_t>(limit.rlim_cur));
}

}  // namespace

std::unique_ptr<ScratchRing> ScratchRing::open(unsigned depth) {
  std::unique_ptr<ScratchRing> ring(new ScratchRing(depth));
  if (::io_uring_queue_init(depth, &ring->ring_, 0) != 0) return nullptr;
  ring->open_ = true;
  return ring;
}

ScratchRing::~ScratchRing() {
  if (open_) ::io_uring_queue_exit(&ring_);
}

void ScratchRing::transfer(int fd, bool writing, int64_t at, std::byte* memory,
                           std::vector<ScratchChunk>& chunks) {
  std::lock_guard lock(mutex_);
  size_t next = 0, under_way = 0;
  while (next < chunks.size() || under_way > 0) {
    {
      std::lock_guard table(table_mutex_);
      for (; next < chunks.size() && under_way < depth_; ++next, ++under_way)
        prepare(fd, writing, at, memory, chunks[next]);
      ::io_uring_submit(&ring_);
    }
    io_uring_cqe* done = nullptr;
    ::io_uring_submit_and_wait(&ring_, 1);  // also what was not taken above
    while (::io_uring_peek_cqe(&ring_, &done) == 0 && done) {
      static_cast<ScratchChunk*>(::io_uring_cqe_get_data(done))->result = done->res;
      ::io_uring_cqe_seen(&ring_, done);
      --under_way;
    }
  }
}

void ScratchRing::prepare(int fd, bool writing, int64_t at, std::byte* memory,
                          ScratchChunk& chunk) {
  io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);  // as many as the depth: there is one
  std::byte* const data = memory + chunk.offset;
  const auto length = static_cast<unsigned>(chunk.length);
  const uint64_t offset = static_cast<uint64_t>(at) + chunk.offset;
  const int slot = slot_of(data, chunk.length);
  if (slot == kUnregistered) {
    if (writing)
      ::io_uring_prep_write(entry, fd, data, length, offset);
    else
      ::io_uring_prep_read(entry, fd, data, length, offset);
  } else {
    used_ = true;
    if (writing)
      ::io_uring_prep_write_fixed(entry, fd, data, length, offset, slot);
    else
      ::io_uring_prep_read_fixed(entry, fd, data, length, offset, slot);
  }
  ::io_uring_sqe_set_data(entry, &chunk);
}

// Of the piece that holds all of this memory.
int ScratchRing::slot_of(std::byte* memory, size_t bytes) {
  auto piece = pieces_.upper_bound(memory);
  if (piece == pieces_.begin()) return kUnregistered;
  --piece;
  if (memory + bytes > piece->first + piece->second.bytes) return kUnregistered;
  if (piece->second.slot == kUnregistered && refusal_.empty()) enter(piece->first, piece->second);
  return piece->second.slot;
}

// Once refused, nothing more is tried: a refusal costs as much as what it refuses.
void ScratchRing::enter(std::byte* memory, Piece& piece) {
  if (!has_table_) {
    const std::vector<iovec> empty(kSlots);
    if (const int error = ::io_uring_register_buffers(&ring_, empty.data(), kSlots); error < 0)
      return refuse(-error);
    has_table_ = true;
    free_slots_.resize(kSlots);
    std::iota(free_slots_.rbegin(), free_slots_.rend(), 0);
  }
  if (free_slots_.empty() || !set_slot(free_slots_.back(), memory, piece.bytes)) return;
  piece.slot = free_slots_.back();
  free_slots_.pop_back();
}

bool ScratchRing::set_slot(int slot, std::byte* memory, size_t bytes) {
  const iovec buffer{memory, bytes};
  const __u64 no_tag = 0;
  const int count = ::io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(slot),
                                                           &buffer, &no_tag, 1);
  if (count == 1) return true;
  refuse(count < 0 ? -count : EINVAL);
  return false;
}

void ScratchRing::refuse(int error) {
  refusal_ = std::generic_category().message(error);
  if (error == ENOMEM)
    refusal_ += fmt::format("; memory that may be locked (ulimit -l): {}", locked_memory_limit());
}

void ScratchRing::lend(std::byte* memory, size_t bytes) {
  std::lock_guard table(table_mutex_);
  for (size_t done = 0; done < bytes; done += kLargestPiece)
    pieces_[memory + done] = {.bytes = std::min(kLargestPiece, bytes - done)};
}

// Of a piece that is taken back in part, the rest is registered anew when it is touched again.
void ScratchRing::take_back(std::byte* memory, size_t bytes) {
  std::lock_guard table(table_mutex_);
  std::byte* const end = memory + bytes;
  auto piece = pieces_.upper_bound(memory);
  if (piece != pieces_.begin()) --piece;
  while (piece != pieces_.end() && piece->first < end) {
    std::byte* const begin = piece->first;
    std::byte* const last = begin + piece->second.bytes;
    if (last <= memory) {
      ++piece;
      continue;
    }
    const int slot = piece->second.slot;
    piece = pieces_.erase(piece);
    if (slot != kUnregistered && set_slot(slot, nullptr, 0)) free_slots_.push_back(slot);
    if (begin < memory) pieces_[begin] = {.bytes = static_cast<size_t>(memory - begin)};
    if (last > end) pieces_[end] = {.bytes = static_cast<size_t>(last - end)};
  }
}

bool ScratchRing::registers() const {
  std::lock_guard table(table_mutex_);
  return used_;
}

std::string ScratchRing::refusal() const {
  std::lock_guard table(table_mutex_);
  return refusal_;
}

}  // namespace onefold
