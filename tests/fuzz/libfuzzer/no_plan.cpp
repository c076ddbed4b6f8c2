// The readers are fuzzed without the engine: a batch that is left open fits.
#include "config/sections.h"

namespace onefold {

int64_t planned_bytes(const Config&, int) { return 0; }

}  // namespace onefold
