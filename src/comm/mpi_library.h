// Finds the MPI plugin and loads it once.
#pragma once

#include <string>

#include "comm/mpi_api.h"

namespace onefold {

struct MpiLibrary {
  const MpiApi* api = nullptr;  // null: `problem` holds the reason and what to do
  std::string problem;
};
const MpiLibrary& mpi_library();

}  // namespace onefold
