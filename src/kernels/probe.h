// The machine's ceilings, measured: what matrix products and the memory reach here and now, on
// this many threads. Rates elsewhere are printed as shares of these, not of a data sheet.
#pragma once

#include "base/thread_pool.h"
#include "kernels/kernels.h"

namespace onefold {

// The best of the three orientations that training uses, on large operands of this type; median of
// `repeats`. In f32 each thread has a product of its own. A multiplication and an addition are two
// operations.
double measure_gemm_gflops(ThreadPool& pool, int repeats = 7, DType type = DType::f32);

// Bytes read and written by the better of an in-place and an out-of-place sum of long vectors;
// median of `repeats`.
double measure_memory_gb_per_s(ThreadPool& pool, int repeats = 7);

}  // namespace onefold
