#pragma once

#include <string>

#include "engine/options.h"
#include "model/spec.h"

namespace onefold {

// Why a model's ALiBi cannot be computed with these options: a sentence; "" if it can, or the model
// has none.
std::string obstacle_to_alibi(const ModelSpec& spec, const EngineOptions& options);

}  // namespace onefold
