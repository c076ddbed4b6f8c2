// Sums and copies of plain host memory: what exchanges between ranks need when data is already in
// reach of the CPU. They run on the calling thread, allocate nothing, and belong to no device.
#pragma once

#include <cstdint>
#include <span>

namespace onefold {

// dst = ((sources[0] + sources[1]) + sources[2]) + ..., in one pass: what reductions over ranks add
// with. dst may be one of the sources.
void ordered_sum(std::span<const float* const> sources, float* dst, int64_t elems);
void ordered_sum(std::span<const double* const> sources, double* dst, int64_t elems);

// memcpy, faster for large blocks that are not used at once. dst may be src.
void copy_bytes(const void* src, void* dst, int64_t bytes);

}  // namespace onefold
