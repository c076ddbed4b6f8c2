// The sums of gradients of attention that is computed in parts (device/attention_parts.h).
#pragma once

#include "cuda/ops.h"

namespace onefold::cuda {

// sums (+)= part, whose columns are whole vectors of 8; the last one's go to dst. sums: [rows,
// cols].
void add_attention_part(Matrix part, bool first, float* sums, const Matrix* dst,
                        cudaStream_t stream);

}  // namespace onefold::cuda
