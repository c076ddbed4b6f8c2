// What the two forms of export share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "inspect/hf_export.h"

namespace onefold {

// The family to write a model as: the one asked for, else the source's, else the first that can
// express it. UserError if it cannot.
HfFamily export_family(const ModelSpec& spec, const ModelExtras& extras,
                       std::optional<HfFamily> wanted);
// UserError if the disk of a path has less than this free.
void require_export_space(const std::string& path, int64_t bytes);

}  // namespace onefold
