// How large tensors are read for describing and comparing.
#pragma once

#include <cstdint>

namespace onefold {

inline constexpr int64_t kBlockElems = int64_t{1} << 18;  // of one chunk of work: 2 MiB as doubles
inline constexpr int64_t kReleaseElems = int64_t{1} << 23;  // after which mapped pages are let go

}  // namespace onefold
