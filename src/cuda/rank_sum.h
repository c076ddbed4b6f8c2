// The sum over ranks on the card, as comm/rank_sum.h has it on the host: rank_sum.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace onefold::cuda {

enum class SumType : uint8_t { f32, f64, bf16, f16 };

inline constexpr int kMostRanks = 448;  // their addresses are arguments of the kernel
struct RankSources {
  const void* at[kMostRanks];
  int count;
};

// dst = ((sources[0] + sources[1]) + sources[2]) + ..., element by element; of 16-bit elements in
// fp32, rounded once. dst may be one of the sources.
void rank_sum(SumType type, const RankSources& sources, void* dst, int64_t elems,
              cudaStream_t stream);

}  // namespace onefold::cuda
