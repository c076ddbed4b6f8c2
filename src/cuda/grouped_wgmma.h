// Grouped products of 16 bits on Hopper's tensor cores.
#pragma once

#include "cuda/experts.h"

namespace onefold::cuda {

// Whether it was computed: not on other cards, and not of rows that are no whole vectors of 16
// bytes.
bool grouped_gemm_wgmma(const GroupedArgs& args, cudaStream_t stream);

}  // namespace onefold::cuda
