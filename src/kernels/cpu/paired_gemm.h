// Matrix products with a third fewer multiplications: see paired_gemm.cpp.
#pragma once

#include "base/thread_pool.h"
#include "kernels/kernels.h"

namespace onefold::cpu {

// Whether a product is large enough: for smaller ones packing costs more than pairing saves.
bool pairing_gains(int64_t m, int64_t n, int64_t k);

// As gemm(), with scratch of paired_gemm_scratch() elements. Sizes have been checked.
void paired_gemm(ThreadPool& pool, const Gemm& args);
int64_t paired_gemm_scratch(int64_t m, int64_t n, int64_t k, int threads);

}  // namespace onefold::cpu
