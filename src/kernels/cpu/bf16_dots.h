// The blocks of bf16_unit.h by the dot products of AVX512_BF16, for processors without tiles.
#pragma once

#include "kernels/cpu/bf16_unit.h"

namespace onefold::cpu {

bool has_bf16_dots();

// Of a line that are multiplied at a time, in steps of 32 terms: two lines of b's tiles stay in a
// first cache of 32 KiB.
inline constexpr int64_t kDotSteps = 12;

// 32 by 32 elements from `steps` tiles of each of two lines of tiles; of b the other one begins
// `next` elements after the first.
void dots_block(const LinesOfA& a, const uint16_t* b, int64_t next, int64_t steps, bool onto,
                float* c, int64_t c_stride);

}  // namespace onefold::cpu
