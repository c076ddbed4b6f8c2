// Which of several algorithms for a product is the fastest, among those with the bits of the first:
// each multiplies the same random numbers, and is timed if its result has the first one's bits. So
// the choice, which depends on timing, never changes a result: two runs have the same bits, and so
// has one where there was no memory for a trial.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <vector>

#include "kernels/kernels.h"

namespace onefold::cuda {

// Operands of a trial, shaped as the product's own.
struct TrialOperands {
  const void *a, *b, *added, *bias;
  void* dst;
};

// The number of the algorithm to take; 0, the first, where memory is short. `run(i, operands)`
// enqueues algorithm i, and says whether it could. `reads_added`: the product adds to its result.
int fastest_with_the_first_ones_bits(int algorithms, const Gemm& product, bool reads_added,
                                     const std::function<bool(int, const TrialOperands&)>& run,
                                     cudaStream_t stream);

}  // namespace onefold::cuda
