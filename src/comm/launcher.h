// The ranks that a launcher of several processes (mpirun, srun, mpiexec) describes in environment
// variables: those of Open MPI, of MPICH and Intel MPI (Hydra), of Slurm, and of PMIx, which gives
// the rank alone.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace onefold {

// Among all processes, and among those on this machine. Empty where no variable is set.
struct Launched {
  std::optional<int> rank, ranks;
  std::optional<int> local_rank, local_ranks;
};
Launched read_launcher();

// Slurm's short form of a number for each node, "2(x3),1" for 2, 2, 2, 1: the number of one node.
// Empty where the text does not have it.
std::optional<int> slurm_count(std::string_view text, int node);

}  // namespace onefold
