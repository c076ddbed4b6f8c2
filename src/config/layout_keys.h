// The keys of a configuration that say how a step is laid out, for the search that finds the
// fastest layout (plan/search.h).
#pragma once

#include "config/config.h"
#include "plan/search.h"

namespace onefold {

// What a document leaves to the search: keys that are missing or "auto". Of a mesh that is given,
// the axes that are "auto"; and no axis where no train_batch_size says what must stay.
Freedom left_open(const Json& root);
// What a document hands to the search: keys that are "auto" and have no other meaning. The batch
// only if its whole is given. Beside axes of the mesh, also how the batch is cut and how a pipeline
// takes its turns, where these keys are missing.
Freedom asked_for(const Json& root);

// The document with these axes in the place of those that are free.
Json with_mesh(Json root, const MeshAxes& axes, const FreeAxes& free);
// The axes that a document names, 1 for the rest, and that of data; 0: it names none.
MeshAxes given_axes(const Json& root);
int64_t given_data(const Json& root);

// Writes the free part of a layout into a document.
void write_layout(Json& root, const EngineOptions& layout, const Freedom& freedom);

}  // namespace onefold
