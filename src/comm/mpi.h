// Ranks as processes under mpirun or srun, over MPI. Sums have the same fixed order as between
// threads, so they have the same bits: pieces are exchanged and added here, and MPI's own
// reductions are not used. The MPI library is loaded when it is first asked for; see mpi_api.h.
#pragma once

#include "comm/communicator.h"

namespace onefold {

// Whether this process was started by a launcher of MPI: it has said so in the environment.
bool mpi_launched();

// For people: the library and its version, or what is missing and what to do.
std::string mpi_status();

// What each channel of a rank among `ranks` would work with: for plans.
int64_t mpi_scratch_bytes(int ranks);

// Initializes MPI and joins all ranks; once in a process. The communicator must outlive its
// channels. Its destructor waits until all ranks are done, unless the process is failing: then it
// leaves MPI as it is, so that the launcher sees the exit and ends the other ranks.
std::unique_ptr<Communicator> join_mpi(const CommOptions& options);

}  // namespace onefold
