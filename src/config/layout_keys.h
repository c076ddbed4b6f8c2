// The keys of a configuration that say how a step is laid out, for the search that finds the
// fastest layout (plan/search.h).
#pragma once

#include "config/config.h"
#include "plan/search.h"

namespace onefold {

// What a document leaves to the search: keys that are missing or "auto".
Freedom left_open(const Json& root);
// What a document hands to the search: keys that are "auto" and have no other meaning. The batch
// only if its whole is given.
Freedom asked_for(const Json& root);

// Writes the free part of a layout into a document.
void write_layout(Json& root, const EngineOptions& layout, const Freedom& freedom);

}  // namespace onefold
