// Finds NCCL's library and loads it once.
#pragma once

#include <string>

#include "comm/nccl_api.h"

namespace onefold {

struct NcclLibrary {
  const NcclApi* api = nullptr;  // null: `problem` holds the reason and what to do
  std::string problem;
};
const NcclLibrary& nccl_library();

}  // namespace onefold
