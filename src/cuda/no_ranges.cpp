// Where NVTX's headers are missing.
#include "cuda/ranges.h"

namespace onefold::cuda {

bool ranges_are_shown() { return false; }
NamedRange::NamedRange(const std::string&) : open_(false) {}
NamedRange::~NamedRange() = default;

}  // namespace onefold::cuda
