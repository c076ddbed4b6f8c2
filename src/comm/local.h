// Ranks as threads of one process. They read each other's memory directly, so a gather is one copy
// and a reduction one pass, and the transport needs no memory of its own.
#pragma once

#include "comm/communicator.h"

namespace onefold {

class LocalState;

class LocalGroup {
 public:
  explicit LocalGroup(int ranks, const CommOptions& options = {});

  // Each rank once, on any thread. The communicator may outlive the group object; its channels may
  // outlive the communicator, but a rank whose communicator is gone has left: who waits for it
  // fails.
  std::unique_ptr<Communicator> join(int rank);

 private:
  std::shared_ptr<LocalState> state_;
};

}  // namespace onefold
