// Ranks as threads of one process. They read each other's memory directly, so a gather is one copy
// and a reduction one pass, and the transport needs no memory of its own. That may be the memory of
// one card that they share: then a call waits for its lane's stream before the ranks meet, and
// again before they part.
#pragma once

#include "comm/communicator.h"

namespace onefold {

class LocalState;

class LocalGroup {
 public:
  explicit LocalGroup(int ranks, const CommOptions& options = {});

  // Each rank once, on any thread. The communicator may outlive the group object, and its channels
  // may outlive the communicator. A rank whose communicator is destroyed has left the group: calls
  // of other ranks that wait for it fail.
  std::unique_ptr<Communicator> join(int rank);

 private:
  std::shared_ptr<LocalState> state_;
};

}  // namespace onefold
