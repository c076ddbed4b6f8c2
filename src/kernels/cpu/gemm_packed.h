// Products of bf16 by the processor's instructions for them: operands are packed once, by all
// threads, and then multiplied tile by tile. An element's bits depend on its operands alone
// (bf16_unit.h), so tiles are cut to suit the number of threads.
#pragma once

#include "base/thread_pool.h"
#include "kernels/kernels.h"

namespace onefold::cpu {

// A large product is cut into slabs of at most so many lines of each operand and so many terms,
// whose packed operands are bounded.
struct SlabLimits {
  int64_t lines = 4096, terms = 3072;
};

// Whether a processor with the instructions computes the product so.
bool packed_gemm_suits(const Gemm& g);
int64_t packed_gemm_scratch_bytes(const Gemm& g, int threads, const SlabLimits& limits = {});
void packed_gemm(ThreadPool& pool, const Gemm& g, const SlabLimits& limits = {});

}  // namespace onefold::cpu
