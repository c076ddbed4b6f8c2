// The host's cores as a second place of computation beside a device that has memory of its own:
// they work on the host tier while the device computes.
#pragma once

#include <memory>

#include "device/device.h"

namespace onefold {

struct HostSide {
  // Its own: the device's works for the thread that hands out a program.
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Kernels> own;
  Kernels* kernels = nullptr;       // that the lane's jobs call
  std::unique_ptr<LaneQueue> lane;  // null: the device computes in the host's memory itself
};

// On a dry device, virtual time.
HostSide open_host_side(Device& device);

}  // namespace onefold
