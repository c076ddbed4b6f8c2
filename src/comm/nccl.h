// Ranks with a card each, over NCCL. Another communicator, of threads or MPI, stays the control
// plane: it carries the host's numbers, brings ranks together before each call, so that a rank that
// is missing or makes another call is named as ever, and takes the news where one fails. Sums have
// the fixed order of the other transports: pieces are exchanged, and added here.
#pragma once

#include "comm/communicator.h"
#include "comm/nccl_api.h"

namespace onefold {

struct NcclOptions {
  // NCCL's own reductions: less memory traffic, and sums whose bits depend on the number of ranks,
  // the cards' connections, the size of buckets and so the stage.
  bool library_sums = false;
  const NcclApi* api = nullptr;  // null: that of nccl_library()
};

// UserError if NCCL is missing.
std::shared_ptr<Communicator> over_nccl(std::shared_ptr<Communicator> control,
                                        const NcclOptions& options = {});

// Scratch of each channel of a rank among `ranks`, for plans.
int64_t nccl_scratch_bytes(int ranks);

}  // namespace onefold
