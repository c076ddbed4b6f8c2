// The named presets, before their derived sizes are filled in.
#pragma once

#include <string>

#include "model/spec.h"

namespace onefold {

// 0 in a size still means "derive it": overrides go on top of this, then complete().
ModelSpec open_preset(const std::string& name, const std::string& where);

}  // namespace onefold
