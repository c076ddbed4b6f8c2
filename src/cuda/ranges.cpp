#include "cuda/ranges.h"

#include <nvtx3/nvToolsExt.h>

#include <cstdlib>

namespace onefold::cuda {

// How profilers announce themselves to NVTX: by the library that takes the calls.
bool ranges_are_shown() {
  static const bool shown = std::getenv("NVTX_INJECTION64_PATH") != nullptr;
  return shown;
}

NamedRange::NamedRange(const std::string& name) : open_(!name.empty() && ranges_are_shown()) {
  if (open_) nvtxRangePushA(name.c_str());
}

NamedRange::~NamedRange() {
  if (open_) nvtxRangePop();
}

}  // namespace onefold::cuda
