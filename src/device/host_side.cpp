#include "device/host_side.h"

#include "kernels/kernels.h"

namespace onefold {

HostSide open_host_side(Device& device) {
  if (device.memory_is_the_hosts()) return {};
  HostSide side;
  if (device.dry()) {
    side.kernels = &device.kernels();
    side.lane = open_dry_host_lane(device);
    return side;
  }
  side.pool = std::make_unique<ThreadPool>(device.threads());
  side.own = make_cpu_kernels(*side.pool);
  side.kernels = side.own.get();
  side.lane = std::make_unique<ThreadLane>(/*of_the_host=*/true);
  return side;
}

}  // namespace onefold
