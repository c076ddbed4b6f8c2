// JSON for people: as short as 100 columns allow, one line for each member that fits on one.
#pragma once

#include <string>

#include "base/json.h"

namespace onefold {

// Valid JSON without a line break at its end. An object's own members are on lines of their own;
// below them a line is broken only where it would be too long. Bytes that are no UTF-8 become
// U+FFFD; NaN and infinities, which JSON does not have, null.
std::string json_text(const Json& value);

}  // namespace onefold
