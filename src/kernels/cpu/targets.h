// Which SIMD targets the vector kernels are compiled for: SSE4, AVX2 and AVX-512 on x86, NEON on
// Arm. Included before hwy/foreach_target.h in each file, and before hwy/highway.h in each -inl
// header, so that all of them agree. Each further target costs its share of the compile time.
#pragma once

#if defined(__x86_64__)
// Without this the fallback is Highway's emulation in plain C++: one more target to compile, for
// processors older than 2008.
#define HWY_BASELINE_TARGETS HWY_SSE4
#endif

// SSSE3 and AVX3_DL gain these kernels nothing over SSE4 and AVX3. Vectors of unknown length (SVE,
// RVV) cannot be kept in arrays, which the unrolled sums need. A sanitizer looks at how kernels
// touch memory, which two widths show as well as three, in two thirds of the time.
#if defined(ONEFOLD_SANITIZED)
#define ONEFOLD_LEFT_OUT HWY_AVX3
#else
#define ONEFOLD_LEFT_OUT 0
#endif
#define HWY_DISABLED_TARGETS                                                             \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | \
   ONEFOLD_LEFT_OUT)
