#include "kernels/cpu/bf16_dots.h"

#include <cstring>

#include "base/error.h"
#include "kernels/cpu/sgemm.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define ONEFOLD_DOTS __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))

namespace onefold::cpu {
namespace {

constexpr int64_t kLines = 16, kPairs = 16, kTileElems = kLines * 2 * kPairs;
// Lines of a at a time: 16 sums are under way, where an instruction begins every cycle and takes
// six. More would load b less often, which is not what the time goes into.
constexpr int kRows = 8;

// Two terms of a line, in every lane.
ONEFOLD_DOTS inline __m512bh pair_of(const uint16_t* line) {
  int pair;
  std::memcpy(&pair, line, sizeof(pair));
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}

ONEFOLD_DOTS inline __m512bh pairs_of(const uint16_t* b) {
  return reinterpret_cast<__m512bh>(_mm512_load_si512(b));
}

// kRows by 32 elements.
ONEFOLD_DOTS inline void multiply_rows(const uint16_t* a, int64_t stride, int64_t a_step,
                                       const uint16_t* b, int64_t next, int64_t steps, bool onto,
                                       float* c, int64_t c_stride) {
  __m512 left[kRows], right[kRows];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
    left[row] = onto ? _mm512_loadu_ps(c + row * c_stride) : _mm512_setzero_ps();
    right[row] = onto ? _mm512_loadu_ps(c + row * c_stride + kLines) : _mm512_setzero_ps();
  }
  for (int64_t step = 0; step < steps; ++step, a += a_step, b += kTileElems) {
#pragma GCC unroll 4
    for (int64_t pair = 0; pair < kPairs; ++pair) {
      const __m512bh b_left = pairs_of(b + pair * 2 * kLines),
                     b_right = pairs_of(b + next + pair * 2 * kLines);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const __m512bh x = pair_of(a + row * stride + 2 * pair);
        left[row] = _mm512_dpbf16_ps(left[row], x, b_left);
        right[row] = _mm512_dpbf16_ps(right[row], x, b_right);
      }
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
    _mm512_storeu_ps(c + row * c_stride, left[row]);
    _mm512_storeu_ps(c + row * c_stride + kLines, right[row]);
  }
}

}  // namespace

bool has_bf16_dots() {
  static const bool has = library_has_bf16_dots();
  return has;
}

ONEFOLD_DOTS void dots_block(const LinesOfA& lines, const uint16_t* b, int64_t next, int64_t steps,
                             bool onto, float* c, int64_t c_stride) {
  const auto* const a = reinterpret_cast<const uint16_t*>(lines.data);
  for (int64_t row = 0; row < 2 * kLines; row += kRows)
    multiply_rows(a + row / kLines * lines.next + row % kLines * lines.stride, lines.stride,
                  lines.step, b, next, steps, onto, c + row * c_stride, c_stride);
}

}  // namespace onefold::cpu

#else

namespace onefold::cpu {

bool has_bf16_dots() { return false; }
void dots_block(const LinesOfA&, const uint16_t*, int64_t, int64_t, bool, float*, int64_t) {
  internal_error("no dot products of bf16 on this processor");
}

}  // namespace onefold::cpu
#endif
