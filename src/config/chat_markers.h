// The markers of conversations as a configuration (data.chat) and the command line write them:
// {"user": [before, after], "assistant": [before, after], "between": "..."}.
#pragma once

#include "base/json.h"
#include "data/chat.h"

namespace onefold {

// Throws UserError that names the key.
ChatMarkers read_chat_markers(JsonObject object);

}  // namespace onefold
