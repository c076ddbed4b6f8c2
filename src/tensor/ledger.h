// The ledger is the one owner of memory. Every byte that training holds is booked here by tier and
// by kind, with its peak and the moment of the peak; each tier has a source of memory and a limit
// that is enforced before memory is taken. What is booked is the block that the source hands out,
// not the request. Over dry sources the same books are kept over no memory at all, which is what
// makes a plan equal to the run.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/memory_source.h"
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
    std::swap(tier_, other.tier_);
    std::swap(kind_, other.kind_);
  }

  Ledger* ledger_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;  // of the block
  Tier tier_ = Tier::device;
  Kind kind_ = Kind::workspace;
};

class Ledger {
 public:
  static constexpr int64_t kNoLimit = INT64_MAX;
  static constexpr int64_t kAlignment = 64;  // bytes; a cache line, and the widest SIMD vector

  struct TierSetup {
    MemorySource* source = nullptr;  // null: nothing can be taken from this tier
    int64_t limit_bytes = kNoLimit;
  };
  using Tiers = std::array<TierSetup, kTiers>;

  explicit Ledger(const Tiers& tiers);
  // One tier, the device's.
  explicit Ledger(MemorySource& device, int64_t limit_bytes = kNoLimit)
      : Ledger(Tiers{TierSetup{&device, limit_bytes}, {}, {}}) {}
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // Books and takes a block for `bytes`. `what` names it in errors. Contents are undefined. Throws
  // UserError when the tier's limit would be passed.
  Buffer allocate(Kind kind, int64_t bytes, std::string_view what, Tier tier = Tier::device);

  int64_t held_bytes(Tier tier = Tier::device) const;  // now, over all kinds
  int64_t peak_bytes(Tier tier = Tier::device) const;  // the largest sum over kinds at one moment
  int64_t held_bytes(Kind kind, Tier tier = Tier::device) const;
  int64_t peak_bytes(Kind kind, Tier tier = Tier::device) const;  // this kind's own peak
  // This kind's share when the tier's sum peaked.
  int64_t bytes_at_peak(Kind kind, Tier tier = Tier::device) const;
  std::string peak_moment(Tier tier = Tier::device) const;  // the moment() in force then
  // Blocks that were given back and are kept for later requests; held and kept together never
  // exceed the peak.
  int64_t spare_bytes(Tier tier = Tier::device) const;

  // Says what happens now ("backward block.3.mlp, micro 0"), for the peak's explanation and for
  // errors. Called only when the text is wanted: it must stay callable as long as the ledger lives.
  using Moment = std::function<std::string()>;
  void moment(Moment text);
  void moment(std::string text);

  int64_t limit_bytes(Tier tier = Tier::device) const;

  // A table of kinds, with columns for each tier that was used: at the peak, share, now.
  std::string table() const;

 private:
  friend class Buffer;

  // One tier's books.
  struct Books {
    TierSetup setup;
    std::array<int64_t, kKinds> held{}, own_peak{}, at_peak{};
    int64_t total = 0, peak = 0, spare_bytes = 0;
    Moment peak_moment;
    // Activations and gradients come and go every step, and fresh pages cost a fault each. By
    // address; where blocks may be cut, neighbours are one.
    std::map<std::byte*, int64_t> spare;
  };
  Books& books(Tier tier) { return books_[static_cast<size_t>(tier)]; }
  const Books& books(Tier tier) const { return books_[static_cast<size_t>(tier)]; }

  void give_back(Buffer& buffer);
  void* take(Books& books, Kind kind, int64_t bytes);
  static void* cut_spare(Books& books, Kind kind, int64_t bytes);
  static void* resize_spare(Books& books, int64_t bytes);
  static void drop_spares(Books& books, int64_t bytes);
  static void keep_spare(Books& books, std::byte* block, int64_t bytes);

  mutable std::mutex mutex_;
  std::array<Books, kTiers> books_;
  Moment moment_;
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
  // Untyped scratch of so many bytes (u8); empty for 0.
  Tensor take_bytes(int64_t bytes) { return bytes == 0 ? Tensor{} : take(1, bytes, DType::u8); }
  int64_t high_water_bytes() const { return high_water_; }
  // Where its memory begins; null where it measures.
  const void* base() const { return block_.data(); }
  // Where the top is, and back to it: what was taken since is given back.
  int64_t mark() const { return top_; }
  void release_to(int64_t mark) { top_ = mark; }

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
