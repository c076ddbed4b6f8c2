// The memory of one rank beside the device's own: the host's and a disk's, how bytes travel between
// them and the device, and how host code reaches what lives there.
#pragma once

#include <memory>
#include <string>

#include "device/device.h"
#include "device/lent_memory.h"

namespace onefold {

// Bytes that are to travel between a tier and the device.
struct Transfer {
  Tier tier = Tier::host;
  void* there = nullptr;  // on the tier
  void* here = nullptr;   // on the device
  int64_t bytes = 0;
};

class Tiers {
 public:
  // `folder`: where the disk tier's file is made; empty: there is none. A dry device's tiers are
  // dry.
  Tiers(Device& device, const std::string& folder, Files::Requests requests = {});

  // Where there is a disk, what it can reach of the memory is lent to it.
  MemorySource* source(Tier tier) const;
  const Disk* disk() const { return disk_.get(); }
  // What travels between a disk and this device passes through the host's memory, by the work of a
  // thread: it needs lanes that are threads, and should have a place to pass through.
  bool pass_through_host() const { return has_disk_ && !device_.memory_is_the_hosts(); }
  std::unique_ptr<LaneQueue> open_lane() const;

  // To the device, or back, as a job of the lane: of open_lane(), or the device's computation.
  enum class Way : uint8_t { in, out };
  Ticket copy(LaneQueue& lane, JobLabel label, const Transfer& transfer, Way way,
              std::span<std::byte> through = {}) const;

  // As Device::write() and read(), of a tensor that lives on this tier.
  void write(Tier tier, Tensor dst, const Device::Make& make,
             Device::Calls calls = Device::Calls::in_order) const;
  void read(Tier tier, Tensor src, const Device::Take& take) const;
  void fill_with_zeros(Tier tier, Tensor dst) const;

 private:
  void share_out(Tensor dst, const Device::Make& make) const;
  void pass(const Transfer& transfer, Way way, std::span<std::byte> through) const;

  Device& device_;
  const bool has_disk_;
  std::unique_ptr<Disk> disk_;
  std::unique_ptr<LentMemory> host_;  // what the disk reaches; null without one
};

}  // namespace onefold
