// What a launcher of several processes (mpirun, srun, mpiexec) says about them in the environment.
// Open MPI, MPICH and Intel MPI (Hydra), Slurm, and PMIx, which names the rank alone.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace onefold {

// Among all processes, and among those on this machine. What no variable says is missing.
struct Launched {
  std::optional<int> rank, ranks;
  std::optional<int> local_rank, local_ranks;
};
Launched read_launcher();

// Slurm's short form of a number for each node, "2(x3),1" for 2, 2, 2, 1: the number of one node.
// Missing where the text does not have it.
std::optional<int> slurm_count(std::string_view text, int node);

}  // namespace onefold
