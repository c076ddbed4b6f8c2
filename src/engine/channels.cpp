#include "engine/channels.h"

#include "comm/mpi.h"
#include "comm/nccl.h"
#include "device/device_name.h"

namespace onefold {

Channels::Channels(Communicator& communicator, Device& device, Ledger& ledger, bool own_lanes) {
  const bool on_host = device.memory_is_the_hosts();
  for (const Lane lane : kMessageLanes) {
    const auto i = static_cast<size_t>(lane);
    if (own_lanes && lane != Lane::compute) lanes_[i] = device.open_lane();
    if (communicator.ranks() > 1)
      memory_[i] = device.rank_memory(lanes_[i] ? *lanes_[i] : device.compute());
    const int64_t bytes =
        on_host ? communicator.scratch_bytes() : communicator.device_scratch_bytes();
    if (bytes > 0) scratch_[i] = ledger.allocate(Kind::communication, bytes, "messages");
    channels_[i] = memory_[i]
                       ? communicator.open_on(*memory_[i], lane_name(lane), scratch_[i].data())
                       : communicator.open(lane_name(lane), scratch_[i].data());
  }
  // Numbers are gathered and not summed: no scratch.
  if (!on_host) control_ = communicator.open("control", nullptr);
}

int64_t lane_scratch_bytes(const std::string& device, bool over_mpi, int ranks) {
  const DeviceName named = parse_device(device);
  if (named.kind == "cuda") return named.card ? 0 : nccl_scratch_bytes(ranks);
  return over_mpi ? mpi_scratch_bytes(ranks) : 0;
}

}  // namespace onefold
