// A device brings everything that computes and holds: kernels, a source of memory for each tier,
// lanes and a clock. Nothing above this layer knows which one runs. Host code reaches a device's
// memory through write() and read() alone.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/thread_pool.h"
#include "device/hardware.h"
#include "device/lane.h"
#include "kernels/kernels.h"
#include "kernels/rank_memory.h"
#include "tensor/ledger.h"

namespace onefold {

class Device {
 public:
  virtual ~Device() = default;

  virtual const char* name() const = 0;
  virtual Kernels& kernels() = 0;
  virtual MemorySource* memory(Tier tier) = 0;  // null: the device lacks this tier
  // Of a card: what its driver says is in use, by whomever, and what of it this device has mapped
  // for its ledgers. Both 0 on others.
  struct DriverMemory {
    int64_t used_bytes = 0, mapped_bytes = 0;
  };
  virtual DriverMemory driver_memory() { return {}; }

  // The lane that kernels() computes on; there is one.
  virtual LaneQueue& compute() = 0;
  // A lane of its own for work beside computation.
  virtual std::unique_ptr<LaneQueue> open_lane() = 0;
  // One whose jobs may wait for another rank, and do not hold up whoever posts them.
  virtual std::unique_ptr<LaneQueue> open_message_lane() { return open_lane(); }
  // Copies between this device's memory and the host tier's, as a job of the lane.
  virtual Ticket copy(LaneQueue& lane, JobLabel label, void* dst, const void* src,
                      int64_t bytes) = 0;
  // The same at once, from any thread, in no lane's order.
  virtual void copy_now(void* dst, const void* src, int64_t bytes) = 0;
  virtual double now() const = 0;  // seconds on the clock that spans are measured by
  // Whether a profiler shows the names of jobs, so that they are worth making without a trace too.
  virtual bool shows_names() const { return false; }

  virtual int threads() const = 0;  // of the host that work for this rank
  // Idle between calls; null on a device that starts no thread.
  virtual ThreadPool* pool() { return nullptr; }
  virtual bool dry() const { return false; }
  // Whether host code may read and write its memory.
  virtual bool memory_is_the_hosts() const { return false; }
  // What ranks exchange its memory with, in the order of a lane: compute(), or one that was opened.
  // Null where host code may do it, and on a dry device.
  virtual std::unique_ptr<RankMemory> rank_memory(LaneQueue& /*lane*/) { return nullptr; }

  // Writes a contiguous tensor: `make(first, piece)` fills its elements from `first` on, on the
  // host, piece by piece; on the calling thread in order, or shared out over many threads. Not
  // called on a dry device.
  using Make = std::function<void(int64_t first, std::span<std::byte> piece)>;
  enum class Calls : uint8_t { in_order, shared_out };
  virtual void write(Tensor dst, const Make& make, Calls calls = Calls::in_order) = 0;
  // Reads a contiguous tensor, when all that was posted to compute() is done: `take(first, piece)`
  // gets its elements in order, on the calling thread. Not called on a dry device.
  using Take = std::function<void(int64_t first, std::span<const std::byte> piece)>;
  virtual void read(Tensor src, const Take& take) = 0;
  // The same beside computation, on any thread, of a tensor that is complete and that nothing
  // writes meanwhile. What must pass through the host's memory passes through `staging`, a block of
  // the host tier; a device without that tier needs none.
  virtual void read_beside(Tensor src, const Take& take, std::span<std::byte> /*staging*/) {
    read(src, take);
  }
};

// Values of the tensor's own type, copied to the device or back.
template <typename T>
void upload(Device& device, std::span<const T> values, Tensor dst) {
  device.write(dst, [&](int64_t first, std::span<std::byte> piece) {
    std::memcpy(piece.data(), values.data() + first, piece.size());
  });
}
template <typename T>
void download(Device& device, Tensor src, std::span<T> values) {
  device.read(src, [&](int64_t first, std::span<const std::byte> piece) {
    std::memcpy(values.data() + first, piece.data(), piece.size());
  });
}

// The one place where devices are chosen: cpu, cuda (the first card) or cuda:N. `threads` of 0: as
// many as the cores that this process may use.
std::unique_ptr<Device> open_device(const std::string& name, int threads);

// Stands for the described hardware: books memory, advances virtual time, computes nothing, starts
// no thread. `threads` of 0: the described cores.
// `scratch`: what kernels take, if not what the described device's would.
std::unique_ptr<Device> open_dry_device(const Hardware& hardware, int threads,
                                        std::shared_ptr<const KernelScratch> scratch = nullptr);
// Of a dry device: a lane on which the host's cores compute.
std::unique_ptr<LaneQueue> open_dry_host_lane(Device& dry);

}  // namespace onefold
