// Ranks as processes under mpirun or srun, over MPI. Sums have the same fixed order as between
// threads, so they have the same bits: pieces are exchanged and added here, and MPI's own
// reductions are not used. The MPI library is loaded at its first use; see mpi_api.h.
#pragma once

#include "comm/communicator.h"

namespace onefold {

// Whether a launcher of MPI has started this process, as its environment variables show.
bool mpi_launched();

// For display: the library and its version, or what is missing and what to do.
std::string mpi_status();

// Scratch of each channel of a rank among `ranks`, for plans.
int64_t mpi_scratch_bytes(int ranks);

// Initializes MPI and joins all ranks; once in a process. The communicator must outlive its
// channels. Its destructor waits until all ranks have reached theirs. During a failure it leaves
// MPI as it is instead, so that the launcher detects the exit and ends the other ranks.
std::unique_ptr<Communicator> join_mpi(const CommOptions& options);

}  // namespace onefold
