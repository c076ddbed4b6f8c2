// The ledger is the one owner of memory. Every byte that training holds is booked here by tier and
// by kind, with its peak and the moment of the peak; a limit is enforced before memory is taken. On
// the dry device the same books are kept over no memory at all, which is what makes a plan equal to
// the run.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace onefold {

enum class Tier : uint8_t { device, host, disk };
enum class Kind : uint8_t {
  parameters,
  gradients,
  optimizer,
  activations,
  workspace,
  communication,
  data
};

inline constexpr int kTiers = 3;
inline constexpr int kKinds = 7;
const char* tier_name(Tier tier);
const char* kind_name(Kind kind);

class Ledger;

// A booked block of memory, given back when the handle dies. `data` is null on the dry device.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer();

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  explicit operator bool() const { return ledger_ != nullptr; }

  // The first rows*cols elements as a tensor.
  Tensor as(int64_t rows, int64_t cols, DType dtype = DType::f32) const {
    require(rows * cols * dtype_bytes(dtype) <= bytes_, "view of {}x{} over a block of {} bytes",
            rows, cols, bytes_);
    return matrix(data_, rows, cols, dtype);
  }

 private:
  friend class Ledger;
  void swap(Buffer& other) noexcept {
    std::swap(ledger_, other.ledger_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(block_bytes_, other.block_bytes_);
    std::swap(tier_, other.tier_);
    std::swap(kind_, other.kind_);
  }

  Ledger* ledger_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t block_bytes_ = 0;  // of the memory behind it, which may be a little larger
  Tier tier_ = Tier::device;
  Kind kind_ = Kind::workspace;
};

class Ledger {
 public:
  enum class Memory { real, dry };
  static constexpr int64_t kNoLimit = INT64_MAX;
  static constexpr int64_t kAlignment = 64;  // bytes; a cache line, and the widest SIMD vector

  explicit Ledger(Memory memory = Memory::real, int64_t limit_bytes = kNoLimit);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // Books and takes `bytes` (rounded up to the alignment). `what` names the block in errors.
  // Contents are undefined. Throws UserError when the limit would be passed, with the table of what
  // is held.
  Buffer allocate(Kind kind, int64_t bytes, std::string_view what, Tier tier = Tier::device);

  int64_t held_bytes() const;  // now, over all kinds, device tier
  int64_t peak_bytes() const;  // the largest sum over kinds at one moment, device tier
  int64_t held_bytes(Kind kind, Tier tier = Tier::device) const;
  int64_t peak_bytes(Kind kind, Tier tier = Tier::device) const;  // this kind's own peak
  int64_t bytes_at_peak(Kind kind,
                        Tier tier = Tier::device) const;  // this kind's share when the sum peaked
  const std::string& peak_moment() const { return peak_moment_; }  // the moment() in force then

  // Names what happens now ("backward block.3, micro 0"), for the peak's explanation.
  void moment(std::string name) { moment_ = std::move(name); }

  Memory memory() const { return memory_; }
  int64_t limit_bytes() const { return limit_bytes_; }

  // A table of kinds: at the peak, own peak, now.
  std::string table() const;

 private:
  friend class Buffer;
  void give_back(Buffer& buffer);
  void take(Buffer& buffer);

  using Books = std::array<std::array<int64_t, kKinds>, kTiers>;
  const Memory memory_;
  const int64_t limit_bytes_;
  mutable std::mutex mutex_;
  Books held_{}, own_peak_{}, at_peak_{};
  int64_t total_ = 0;
  int64_t peak_ = 0;
  std::string moment_ = "start", peak_moment_;
  // Blocks given back and kept for the next request of about the same size: activations come and go
  // every step in a few sizes, and fresh pages cost a fault each. They are freed before a different
  // size is taken from the system.
  std::multimap<int64_t, void*> spare_;
};

// Scratch memory for kernels and temporaries of one unit, as a stack over one block: take() moves
// the top, a Scope gives everything taken within it back. Its capacity is learned by a dry run,
// which records the high-water mark.
class Arena {
 public:
  // A measuring arena: hands out null views and records how much would have been needed.
  Arena() = default;
  explicit Arena(Buffer block) : block_(std::move(block)) {}

  Tensor take(int64_t rows, int64_t cols, DType dtype = DType::f32);
  int64_t high_water_bytes() const { return high_water_; }

  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), top_(arena.top_) {}
    ~Scope() { arena_.top_ = top_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    int64_t top_;
  };

 private:
  Buffer block_;
  int64_t top_ = 0;
  int64_t high_water_ = 0;
};

}  // namespace onefold
