// The model card of a run, README.md in its folder: the facts of run.json for people.
#pragma once

#include <string>

#include "base/json.h"

namespace onefold {

// By this line a card that Onefold wrote is told from a README that somebody else did.
inline constexpr const char* kCardMark = "<!-- Written by onefold train from run.json. -->";

// `run` is run.json as Provenance writes it, `folder` where it lies.
std::string model_card(const Json& run, const std::string& folder);

}  // namespace onefold
