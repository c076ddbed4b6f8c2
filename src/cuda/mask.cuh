// Dropout's multipliers on the card: the scalar contract of kernels/cpu/dropout-inl.h.
#pragma once

#include "cuda/ops.h"

namespace onefold::cuda {

// The words of elements 4 * block to 4 * block + 3 of a sample.
__device__ inline PhiloxWords mask_words(const Mask& mask, int64_t sample, uint64_t block) {
  const auto s = static_cast<uint64_t>(sample);
  return philox(mask.key, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                           static_cast<uint32_t>(s), static_cast<uint32_t>(s >> 32)});
}

__device__ inline float multiplier(const Mask& mask, uint32_t word) {
  return static_cast<int32_t>(word >> 8) < mask.threshold ? 0.0f : mask.scale;
}

}  // namespace onefold::cuda
