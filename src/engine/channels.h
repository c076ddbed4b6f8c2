// The channels of a rank: one for each lane that has messages. What a transport needs for its
// messages comes from the ledger.
#pragma once

#include <array>
#include <memory>

#include "comm/communicator.h"
#include "program/program.h"
#include "tensor/ledger.h"

namespace onefold {

class Channels {
 public:
  Channels(Communicator& communicator, Ledger& ledger) {
    for (const Lane lane : kMessageLanes) {
      const auto i = static_cast<size_t>(lane);
      if (const int64_t bytes = communicator.scratch_bytes(); bytes > 0)
        scratch_[i] = ledger.allocate(Kind::communication, bytes, "messages");
      channels_[i] = communicator.open(lane_name(lane), scratch_[i].data());
    }
  }
  Channel& of(Lane lane) const { return *channels_[static_cast<size_t>(lane)]; }

 private:
  std::array<Buffer, kLanes> scratch_;
  std::array<std::unique_ptr<Channel>, kLanes> channels_;
};

}  // namespace onefold
