// The machine's ceilings, measured: what the matrix library and the memory reach here and now, on this many threads. Rates
// elsewhere are printed as shares of these, not of a data sheet.
#pragma once

#include "base/thread_pool.h"

namespace onefold {

struct MachineRates {
  double gemm_gflops = 0;        // the best of the three orientations that training uses, one large product for each thread
  double memory_gb_per_s = 0;    // bytes read and written by the best of an in-place and an out-of-place sum
};

// The median of `repeats` runs of about 20 ms each.
double measure_gemm_gflops(ThreadPool& pool, int repeats = 7);
double measure_memory_gb_per_s(ThreadPool& pool, int repeats = 7);

}  // namespace onefold
