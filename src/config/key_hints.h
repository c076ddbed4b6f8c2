// Keys by the names that they have elsewhere: in other trainers' files and command lines, or
// without their section. An error about an unknown one names ours.
#pragma once

#include <string>
#include <string_view>

namespace onefold {

// The whole key, such as "run.steps" for "steps" or "max-steps"; "" if none is known by that name.
std::string key_known_as(std::string_view name);

}  // namespace onefold
