#include "device/disk.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace onefold {
namespace {

static_assert(kDiskBlock == Files::kScratchBlock);
constexpr auto kBlock = static_cast<size_t>(kDiskBlock);

// Addresses begin one block up: none is null.
void* address_of(int64_t at) { return reinterpret_cast<void*>(at + kDiskBlock); }
int64_t place_of(const void* address) { return reinterpret_cast<int64_t>(address) - kDiskBlock; }

// How much of a transfer can go straight: whole blocks, if it begins at one on both sides.
size_t straight_bytes(int64_t at, const void* memory, size_t length) {
  const bool aligned = at % kDiskBlock == 0 && reinterpret_cast<uintptr_t>(memory) % kBlock == 0;
  return aligned ? length / kBlock * kBlock : 0;
}

// Memory that begins at a block.
class Bounce {
 public:
  static constexpr size_t kBytes = size_t{1} << 20;
  Bounce() : memory_(static_cast<std::byte*>(std::aligned_alloc(kBlock, kBytes))) {
    if (!memory_) throw std::bad_alloc();
  }
  ~Bounce() { std::free(memory_); }
  Bounce(const Bounce&) = delete;
  Bounce& operator=(const Bounce&) = delete;
  std::byte* data() const { return memory_; }

 private:
  std::byte* memory_;
};

// Cuts [at, at + length) at the borders of buffers, and calls piece(first block, blocks' bytes,
// offset within, bytes of it).
template <class Piece>
void for_each_piece(int64_t at, size_t length, const Piece& piece) {
  size_t done = 0;
  while (done < length) {
    const int64_t place = at + static_cast<int64_t>(done), first = place / kDiskBlock * kDiskBlock;
    const auto within = static_cast<size_t>(place - first);
    const size_t bytes = std::min(length - done, Bounce::kBytes - within);
    piece(first, (within + bytes + kBlock - 1) / kBlock * kBlock, within, bytes, done);
    done += bytes;
  }
}

}  // namespace

Disk::Disk(std::string folder, Files::Requests requests) : folder_(std::move(folder)) {
  make_folders(folder_);
  if (const std::error_code error = files().open_scratch(folder_, requests, file_))
    user_error("cannot make a file for offloaded state in {}: {}", folder_, error.message());
}

void* Disk::take(int64_t bytes) {
  std::lock_guard lock(mutex_);
  if (const auto found = free_.find(bytes); found != free_.end()) {
    const int64_t at = found->second;
    free_.erase(found);
    return address_of(at);
  }
  if (const std::error_code error = file_->reserve(end_ + bytes)) {
    int64_t left = 0;
    const bool known = !files().free_bytes(folder_, left);
    user_error(
        "no room for {} more of offloaded state in {}: {}{}; {} are there already. Free "
        "some, or name a folder on another disk (nvme_path)",
        format_bytes(bytes), folder_, error.message(),
        known ? fmt::format(", {} are free", format_bytes(left)) : "", format_bytes(end_));
  }
  const int64_t at = end_;
  end_ += bytes;
  return address_of(at);
}

void Disk::give_back(void* block, int64_t bytes) {
  std::lock_guard lock(mutex_);
  free_.emplace(bytes, place_of(block));
}

// Calls that move fewer bytes than asked go on where they stopped; one that moves none is tried a
// few times.
template <class Transfer>
void Disk::transfer(const char* verb, int64_t at, size_t length, const Transfer& call) const {
  constexpr int kMostTries = 8;
  int idle = 0;
  for (size_t done = 0; done < length;) {
    size_t count = 0;
    const std::error_code error = call(at + static_cast<int64_t>(done), done, count);
    if (error)
      user_error(
          "cannot {} offloaded state in {}: {}. The run ends; what was saved before is whole", verb,
          folder_, error.message());
    count = count / kBlock * kBlock;
    idle = count > 0 ? 0 : idle + 1;
    if (idle == kMostTries)
      user_error(
          "cannot {} offloaded state in {}: the disk takes no more bytes. The run ends; "
          "what was saved before is whole",
          verb, folder_);
    done += count;
  }
}

void Disk::read_blocks(int64_t at, std::span<std::byte> dst) const {
  transfer("read", at, dst.size(), [&](int64_t place, size_t done, size_t& count) {
    return file_->read_at(place, dst.subspan(done), count);
  });
  read_ += static_cast<int64_t>(dst.size());
}

void Disk::write_blocks(int64_t at, std::span<const std::byte> src) {
  transfer("write", at, src.size(), [&](int64_t place, size_t done, size_t& count) {
    return file_->write_at(place, src.subspan(done), count);
  });
  written_ += static_cast<int64_t>(src.size());
}

void Disk::read(const void* from, std::span<std::byte> dst) const {
  int64_t at = place_of(from);
  const size_t straight = straight_bytes(at, dst.data(), dst.size());
  if (straight > 0) read_blocks(at, dst.first(straight));
  at += static_cast<int64_t>(straight);
  dst = dst.subspan(straight);
  if (dst.empty()) return;
  const Bounce bounce;
  for_each_piece(at, dst.size(),
                 [&](int64_t first, size_t blocks, size_t within, size_t bytes, size_t done) {
                   read_blocks(first, {bounce.data(), blocks});
                   std::memcpy(dst.data() + done, bounce.data() + within, bytes);
                 });
}

// Blocks that are written in part keep the rest.
void Disk::write(void* to, std::span<const std::byte> src) {
  int64_t at = place_of(to);
  const size_t straight = straight_bytes(at, src.data(), src.size());
  if (straight > 0) write_blocks(at, src.first(straight));
  at += static_cast<int64_t>(straight);
  src = src.subspan(straight);
  if (src.empty()) return;
  const Bounce bounce;
  for_each_piece(at, src.size(),
                 [&](int64_t first, size_t blocks, size_t within, size_t bytes, size_t done) {
                   if (within > 0 || bytes < blocks) read_blocks(first, {bounce.data(), blocks});
                   std::memcpy(bounce.data() + within, src.data() + done, bytes);
                   write_blocks(first, {bounce.data(), blocks});
                 });
}

}  // namespace onefold
