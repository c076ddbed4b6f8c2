// One matrix product on the calling thread: c = alpha * op(a) · op(b) + beta * c, row-major,
// strides in elements. The only door to the BLAS-like library; gemm.cpp and attention.cpp call it
// from within their chunks.
#pragma once

#include <cstdint>

namespace onefold::cpu {

void sgemm(bool a_transposed, bool b_transposed, int64_t m, int64_t n, int64_t k, float alpha,
           const float* a, int64_t a_stride, const float* b, int64_t b_stride, float beta, float* c,
           int64_t c_stride);

// Whether the library takes the processor for one with a matrix unit for bf16 (AMX). The
// environment variable ONEDNN_MAX_CPU_ISA (AVX512_CORE_BF16, say) makes it do without.
bool library_has_amx();
// The same of dot products of bf16 (AVX512_BF16).
bool library_has_bf16_dots();

}  // namespace onefold::cpu
