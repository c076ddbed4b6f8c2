// Whether a run fits its memory limit, known before it starts, and what would make it fit.
#pragma once

#include "engine/engine.h"

namespace onefold {

// Throws UserError when a dry run of these options peaks above options.memory_limit_bytes: it says
// by how much, where the memory goes, and which changes would fit (keeping the global batch),
// cheapest first.
void require_fits(const ModelSpec& spec, const EngineOptions& options);

}  // namespace onefold
