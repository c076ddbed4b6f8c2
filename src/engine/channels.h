// The lanes of a rank beside computation, and the channels of a rank: one for each
// lane that has messages. What a transport needs for them comes from the ledger.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "device/device.h"
#include "program/program.h"
#include "tensor/ledger.h"

namespace onefold {

class Channels {
 public:
  // Without `own_lanes`, everything travels in the order of computation.
  Channels(Communicator& communicator, Device& device, Ledger& ledger, bool own_lanes);

  Channel& of(Lane lane) const { return *channels_[static_cast<size_t>(lane)]; }
  // For the host's numbers, where lanes carry those of a device. All ranks' threads of control use
  // it, and no lane.
  Channel& control() const { return control_ ? *control_ : of(Lane::compute); }
  // Null: on the compute lane.
  LaneQueue* own_lane(Lane lane) const { return lanes_[static_cast<size_t>(lane)].get(); }

 private:
  std::array<Buffer, kLanes> scratch_;
  std::array<std::unique_ptr<RankMemory>, kLanes> memory_;
  std::array<std::unique_ptr<Channel>, kLanes> channels_;
  std::unique_ptr<Channel> control_;
  std::array<std::unique_ptr<LaneQueue>, kLanes> lanes_;  // last: their jobs use the rest
};

// Scratch of each lane's channel on this device, for plans.
int64_t lane_scratch_bytes(const std::string& device, bool over_mpi, int ranks);

}  // namespace onefold
