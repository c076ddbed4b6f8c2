#include "tensor/ledger.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "base/text.h"

namespace onefold {
namespace {

// Blocks at least this large come straight from the system and on huge pages where it grants them.
constexpr int64_t kHugePage = int64_t{2} << 20;

int64_t rounded(int64_t bytes) {
  return (bytes + Ledger::kAlignment - 1) / Ledger::kAlignment * Ledger::kAlignment;
}

}  // namespace

const char* tier_name(Tier tier) {
  static constexpr const char* kNames[kTiers] = {"device", "host", "disk"};
  return kNames[static_cast<int>(tier)];
}

const char* kind_name(Kind kind) {
  static constexpr const char* kNames[kKinds] = {
      "parameters", "gradients", "optimizer", "activations", "workspace", "communication", "data"};
  return kNames[static_cast<int>(kind)];
}

Buffer::~Buffer() {
  if (ledger_) ledger_->give_back(*this);
}

Ledger::Ledger(Memory memory, int64_t limit_bytes) : memory_(memory), limit_bytes_(limit_bytes) {}

Ledger::~Ledger() {
  for (auto& [bytes, block] : spare_) ::munmap(block, static_cast<size_t>(bytes));
}

Buffer Ledger::allocate(Kind kind, int64_t bytes, std::string_view what, Tier tier) {
  require(bytes >= 0, "allocation of {} bytes for {}", bytes, what);
  bytes = rounded(bytes);
  std::lock_guard lock(mutex_);
  const auto t = static_cast<size_t>(tier), k = static_cast<size_t>(kind);
  if (tier == Tier::device && total_ + bytes > limit_bytes_)
    user_error(
        "out of memory: {} for {} ({}) would pass the limit of {}: {} are held, at \"{}\". Lower "
        "the micro-batch or the "
        "sequence length, or raise the limit (run.memory)",
        format_bytes(bytes), what, kind_name(kind), format_bytes(limit_bytes_),
        format_bytes(total_), moment_);
  Buffer buffer;
  buffer.bytes_ = bytes;
  if (memory_ == Memory::real && bytes > 0) take(buffer);
  buffer.ledger_ = this;
  buffer.tier_ = tier;
  buffer.kind_ = kind;
  held_[t][k] += bytes;
  own_peak_[t][k] = std::max(own_peak_[t][k], held_[t][k]);
  if (tier == Tier::device) total_ += bytes;
  if (total_ > peak_) {
    peak_ = total_;
    at_peak_ = held_;
    peak_moment_ = moment_;
  }
  return buffer;
}

void Ledger::take(Buffer& buffer) {
  const int64_t bytes = buffer.bytes_;
  // An eighth more is close enough: a block's gradients then take over what its activations left.
  const auto spare = spare_.lower_bound(bytes);
  if (spare != spare_.end() && spare->first <= bytes + bytes / 8) {
    buffer.block_bytes_ = spare->first;
    buffer.data_ = spare->second;
    spare_.erase(spare);
    return;
  }
  // Spares may stay as long as the process holds no more than at its peak.
  int64_t spare_bytes = 0;
  for (const auto& [size, block] : spare_) spare_bytes += size;
  const int64_t bound = std::max(peak_, total_ + bytes);
  for (auto it = spare_.begin(); it != spare_.end() && total_ + bytes + spare_bytes > bound;) {
    ::munmap(it->second, static_cast<size_t>(it->first));
    spare_bytes -= it->first;
    it = spare_.erase(it);
  }
  void* block = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED)
    user_error("the system refused {} of memory; {} are held", format_bytes(bytes),
               format_bytes(total_));
  if (bytes >= kHugePage) ::madvise(block, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  buffer.data_ = block;
  buffer.block_bytes_ = bytes;
}

void Ledger::give_back(Buffer& buffer) {
  std::lock_guard lock(mutex_);
  held_[static_cast<size_t>(buffer.tier_)][static_cast<size_t>(buffer.kind_)] -= buffer.bytes_;
  if (buffer.tier_ == Tier::device) total_ -= buffer.bytes_;
  if (buffer.data_) spare_.emplace(buffer.block_bytes_, buffer.data_);
}

int64_t Ledger::held_bytes() const {
  std::lock_guard lock(mutex_);
  return total_;
}

int64_t Ledger::peak_bytes() const {
  std::lock_guard lock(mutex_);
  return peak_;
}

int64_t Ledger::held_bytes(Kind kind, Tier tier) const {
  std::lock_guard lock(mutex_);
  return held_[static_cast<size_t>(tier)][static_cast<size_t>(kind)];
}

int64_t Ledger::peak_bytes(Kind kind, Tier tier) const {
  std::lock_guard lock(mutex_);
  return own_peak_[static_cast<size_t>(tier)][static_cast<size_t>(kind)];
}

int64_t Ledger::bytes_at_peak(Kind kind, Tier tier) const {
  std::lock_guard lock(mutex_);
  return at_peak_[static_cast<size_t>(tier)][static_cast<size_t>(kind)];
}

std::string Ledger::table() const {
  std::string text =
      fmt::format("  {:<14}{:>14}{:>9}{:>14}\n", "memory", "at the peak", "share", "now");
  std::lock_guard lock(mutex_);
  for (int k = 0; k < kKinds; ++k) {
    const int64_t at_peak = at_peak_[0][static_cast<size_t>(k)];
    if (own_peak_[0][static_cast<size_t>(k)] == 0) continue;
    text += fmt::format(
        "  {:<14}{:>14}{:>8.1f}%{:>14}\n", kind_name(static_cast<Kind>(k)), format_bytes(at_peak),
        100.0 * static_cast<double>(at_peak) / static_cast<double>(std::max<int64_t>(peak_, 1)),
        format_bytes(held_[0][static_cast<size_t>(k)]));
  }
  text += fmt::format("  {:<14}{:>14}{:>9}{:>14}   peak at: {}\n", "total", format_bytes(peak_), "",
                      format_bytes(total_), peak_moment_);
  return text;
}

Tensor Arena::take(int64_t rows, int64_t cols, DType dtype) {
  const int64_t bytes = rounded(rows * cols * dtype_bytes(dtype));
  const int64_t at = top_;
  top_ += bytes;
  high_water_ = std::max(high_water_, top_);
  if (!block_) return matrix(nullptr, rows, cols, dtype);
  require(top_ <= block_.bytes(), "scratch of {} bytes at {} passes the planned {}", bytes, at,
          block_.bytes());
  void* data = block_.data() ? static_cast<char*>(block_.data()) + at : nullptr;
  return matrix(data, rows, cols, dtype);
}

}  // namespace onefold
