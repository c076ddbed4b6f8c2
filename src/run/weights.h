// An engine's weights as one safetensors file: every parameter that a run keeps (is_saved) by name,
// written whole or not at all.
#pragma once

#include <string>

#include "engine/engine.h"

namespace onefold {

void save_weights(Engine& engine, const std::string& path);

// Names, shapes and types must match the engine's exactly; a UserError names what does not.
void load_weights(Engine& engine, const std::string& path);

}  // namespace onefold
