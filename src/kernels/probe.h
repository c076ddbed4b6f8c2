// The machine's ceilings, measured: what the matrix library and the memory reach here and now, on
// this many threads. Rates elsewhere are printed as shares of these, not of a data sheet.
#pragma once

#include "base/thread_pool.h"

namespace onefold {

// The best of the three orientations that training uses, one large product for each thread; median
// of `repeats`.
double measure_gemm_gflops(ThreadPool& pool, int repeats = 7);

// Bytes read and written by the better of an in-place and an out-of-place sum of long vectors;
// median of `repeats`.
double measure_memory_gb_per_s(ThreadPool& pool, int repeats = 7);

}  // namespace onefold
