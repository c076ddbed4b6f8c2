// Products of bf16 on a matrix unit: operands are packed once, by all threads, and then multiplied
// tile by tile. An element's bits depend on its operands alone (amx.h), so tiles are cut to suit
// the number of threads.
#pragma once

#include "base/thread_pool.h"
#include "kernels/kernels.h"

namespace onefold::cpu {

// Whether this processor computes the product so.
bool packed_gemm_suits(const Gemm& g);
int64_t packed_gemm_scratch_bytes(const Gemm& g, int threads);
void packed_gemm(ThreadPool& pool, const Gemm& g);

}  // namespace onefold::cpu
