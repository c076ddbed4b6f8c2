// Packed, 16 lines by 32 terms are a tile of 1 KiB, and the tiles of 16 lines follow each other. A
// tile of a has a row for each line; one of b a row for each two terms, with the pairs of 16 lines.
#include "kernels/cpu/bf16_unit.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/cpu/bf16_dots.h"
#include "kernels/cpu/sgemm.h"

#if defined(__x86_64__)
#if defined(ONEFOLD_AMX_INTRINSICS)
#include ONEFOLD_AMX_INTRINSICS  // a test's, for processors without the unit
#else
#include <immintrin.h>
#define ONEFOLD_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define ONEFOLD_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define ONEFOLD_AMX __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,amx-tile,amx-bf16")))
#if !defined(__clang__)  // GCC 12's own intrinsics start from undefined vectors
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#endif
#include <sys/syscall.h>
#include <unistd.h>

namespace onefold::cpu {
namespace {

constexpr int64_t kLines = 16, kTerms = kPackedTerms, kTileElems = kPackedStep;
// Of a line that are multiplied at a time: two lines of b stay near the first cache while a passes
// by, and sums are seldom loaded and stored. 24 steps, with what comes next asked for in time, run
// at 1.2 to 1.5 times the rate of 16 without on 16 Sapphire Rapids cores, from the last cache.
constexpr int64_t kSteps = 24;
// Cache lines of b's next lines that are asked for in each step.
constexpr int64_t kAhead = 4;

uint32_t lowest_bits(int64_t count, int64_t most) {
  const int64_t n = std::clamp<int64_t>(count, 0, most);
  return n == 32 ? 0xFFFFFFFFu : (1u << n) - 1;
}

// Lane j of row i changes places with lane i of row j.
ONEFOLD_AVX512 inline void transpose(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  // Quarter q of r[4 i + j] is now column 4 q + j of rows 4 i to 4 i + 3.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i top02 = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88);
    const __m512i top13 = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xDD);
    const __m512i low02 = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
    const __m512i low13 = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xDD);
    t[j] = _mm512_shuffle_i32x4(top02, low02, 0x88);
    t[4 + j] = _mm512_shuffle_i32x4(top13, low13, 0x88);
    t[8 + j] = _mm512_shuffle_i32x4(top02, low02, 0xDD);
    t[12 + j] = _mm512_shuffle_i32x4(top13, low13, 0xDD);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

// 16 lines of 32 terms; x has a row for each line.
ONEFOLD_AVX512 inline void load_lines(const uint16_t* x, int64_t stride, int64_t lines,
                                      int64_t terms, __m512i (&r)[16]) {
  const __mmask32 mask = lowest_bits(terms, 32);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i)
    r[i] = i < lines ? _mm512_maskz_loadu_epi16(mask, x + i * stride) : _mm512_setzero_si512();
}

// 16 pairs of terms of 16 lines; x has a row for each term. A pair are neighbours, or terms i and
// 16 + i.
ONEFOLD_AVX512 inline void load_pairs(const uint16_t* x, int64_t stride, bool neighbours,
                                      int64_t lines, int64_t terms, __m512i (&r)[16]) {
  const auto mask = static_cast<__mmask16>(lowest_bits(lines, 16));
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const int64_t one = neighbours ? 2 * i : i, other = neighbours ? 2 * i + 1 : i + 16;
    __m256i first = _mm256_setzero_si256(), second = first;
    if (one < terms) first = _mm256_maskz_loadu_epi16(mask, x + one * stride);
    if (other < terms) second = _mm256_maskz_loadu_epi16(mask, x + other * stride);
    r[i] = _mm512_or_si512(_mm512_cvtepu16_epi32(first),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16));
  }
}

ONEFOLD_AVX512 void pack(Side side, const uint16_t* x, int64_t stride, bool by_terms, int64_t lines,
                         int64_t terms, uint16_t* dst) {
  for (int64_t line = 0; line < lines || line % kPackedLines != 0; line += kLines)
    for (int64_t term = 0; term < terms; term += kTerms, dst += kTileElems) {
      __m512i r[16];
      if (by_terms)
        load_pairs(x + term * stride + line, stride, side != Side::b_of_split, lines - line,
                   terms - term, r);
      else
        load_lines(x + line * stride + term, stride, lines - line, terms - term, r);
      if (by_terms == (side == Side::a)) transpose(r);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) _mm512_store_si512(dst + i * kTerms, r[i]);
    }
}

// What the unit's eight registers hold: 16 rows of 64 bytes each.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

const uint16_t* bits(const Bf16* x) { return reinterpret_cast<const uint16_t*>(x); }

// To the first cache, or to the second.
ONEFOLD_AVX512 inline void ask_for_tile(const uint16_t* tile, int64_t bytes) {
#pragma GCC unroll 16
  for (int64_t i = 0; i < kLines; ++i)
    _mm_prefetch(reinterpret_cast<const char*>(tile) + i * bytes, _MM_HINT_T0);
}
ONEFOLD_AVX512 inline void ask_for_lines(const uint16_t* from) {
#pragma GCC unroll 4
  for (int64_t i = 0; i < kAhead; ++i)
    _mm_prefetch(reinterpret_cast<const char*>(from) + i * 64, _MM_HINT_T1);
}

// 32 by 32 elements from `steps` tiles of each of two lines of tiles, of all parts: an operand that
// is not split is loaded once for them. `ahead`: of b, what will be multiplied soon; moves on.
// Parts were written just now, and are not asked for.
template <bool kAsks>
ONEFOLD_AMX void multiply_block(const LinesOfA& lines, const LinesOfB& columns, int64_t steps,
                                int parts, bool onto, float* c, int64_t c_stride,
                                const uint16_t*& ahead) {
  const int64_t a_bytes = lines.stride * 2, a_step = lines.step, next = columns.next;
  const int64_t bytes = c_stride * 4;
  float* const below = c + kLines * c_stride;
  if (onto) {
    _tile_loadd(0, c, bytes);
    _tile_loadd(1, c + kLines, bytes);
    _tile_loadd(2, below, bytes);
    _tile_loadd(3, below + kLines, bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const uint16_t *a = bits(lines.data), *a_below = a + lines.next, *b = bits(columns.data);
  for (int64_t step = 0; step < steps; ++step, a += a_step, a_below += a_step, b += kTileElems) {
    _tile_loadd(6, b, 64);
    _tile_loadd(4, a, a_bytes);
    _tile_loadd(7, b + next, 64);
    if constexpr (kAsks) ask_for_tile(a + a_step, a_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, a_below, a_bytes);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kAsks) {
      ask_for_tile(a_below + a_step, a_bytes);
      ask_for_lines(ahead);
      ahead += kAhead * 32;
    }
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    for (int part = 1; part < parts; ++part) {
      if (lines.part != 0) {
        _tile_loadd(4, a + part * lines.part, a_bytes);
        _tile_loadd(5, a_below + part * lines.part, a_bytes);
      }
      if (columns.part != 0) {
        _tile_loadd(6, b + part * columns.part, 64);
        _tile_loadd(7, b + part * columns.part + next, 64);
      }
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, bytes);
  _tile_stored(1, c + kLines, bytes);
  _tile_stored(2, below, bytes);
  _tile_stored(3, below + kLines, bytes);
}

void copy_rows(const float* src, int64_t src_stride, float* dst, int64_t dst_stride, int64_t rows,
               int64_t cols) {
  for (int64_t row = 0; row < rows; ++row)
    std::memcpy(dst + row * dst_stride, src + row * src_stride, static_cast<size_t>(cols) * 4);
}

ONEFOLD_AMX void begin_tiles() {
  // Static, as the intrinsic does not tell the compiler that all of it is read.
  static constexpr TileShapes kShapes;
  _tile_loadconfig(&kShapes);
}
ONEFOLD_AMX void end_tiles() { _tile_release(); }

// Blocks of 32 by 32, `steps_at_once` tiles of a line at a time. `block` computes one.
template <class Block>
void multiply(const LinesOfA& a, const LinesOfB& b, int64_t m, int64_t n, int64_t terms, int parts,
              bool onto, float* c, int64_t c_stride, int64_t steps_at_once, const Block& block) {
  alignas(64) float edge[32 * 32];
  const int64_t all_steps = (terms + kTerms - 1) / kTerms;
  for (int64_t step = 0; step < all_steps; step += steps_at_once) {
    const int64_t steps = std::min(steps_at_once, all_steps - step);
    const bool add = onto || step > 0;
    for (int64_t col = 0; col < n; col += 32) {
      LinesOfB from_b = b;
      from_b.data += col / kLines * b.next + step * kTileElems;
      // While the first half of a passes by, the first of b's next two lines of tiles is asked for.
      const int64_t soon = std::min(col + 32, (n - 1) / 32 * 32) / kLines;
      const uint16_t* ahead = bits(b.data) + soon * b.next + step * kTileElems;
      for (int64_t row = 0; row < m; row += 32) {
        if (row == m / 64 * 32) ahead = bits(b.data) + (soon + 1) * b.next + step * kTileElems;
        LinesOfA from_a = a;
        from_a.data += row / kLines * a.next + step * a.step;
        float* const to = c + row * c_stride + col;
        const int64_t rows = std::min<int64_t>(32, m - row), cols = std::min<int64_t>(32, n - col);
        if (rows == 32 && cols == 32) {
          block(from_a, from_b, steps, parts, add, to, c_stride, ahead);
        } else {
          if (add) copy_rows(to, c_stride, edge, 32, rows, cols);
          block(from_a, from_b, steps, parts, add, edge, 32, ahead);
          copy_rows(edge, 32, to, c_stride, rows, cols);
        }
      }
    }
  }
}

// The same by dot products.
void dots_of_parts(const LinesOfA& a, const LinesOfB& b, int64_t steps, int parts, bool onto,
                   float* c, int64_t c_stride, const uint16_t*&) {
  const int64_t at_once = parts == 1 ? steps : 1;
  for (int64_t step = 0; step < steps; step += at_once)
    for (int part = 0; part < parts; ++part) {
      LinesOfA lines = a;
      lines.data += part * a.part + step * a.step;
      dots_block(lines, bits(b.data) + part * b.part + step * kTileElems, b.next, at_once,
                 onto || step + part > 0, c, c_stride);
    }
}

// The upper halves of two vectors' lanes, in turn.
ONEFOLD_AVX512 inline __m512i upper_halves(__m512 first, __m512 second) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(first), 16),
                         _mm512_and_si512(_mm512_castps_si512(second), upper));
}

// What is left of each float without its upper half: the difference is exact.
ONEFOLD_AVX512 inline __m512 rest_of(__m512 x) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  return _mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), upper)));
}

// With the upper half rounded to the nearest, away from zero where two are as near.
ONEFOLD_AVX512 inline __m512 with_rounded_half(__m512 x) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000)));
}

// Two rows of 32 columns at a time. A part is the upper half of what is left; the last of two is
// rounded, as three have all bits either way.
template <int kParts>
ONEFOLD_AVX512 void split(const float* x, int64_t stride, int64_t rows, int64_t cols,
                          const SplitRows& to, const SplitTerms& to_terms) {
  const int64_t next = to_terms.terms / kTerms * kTileElems,
                first = to_terms.first / kTerms * kTileElems;
  for (int64_t col = 0; col < cols; col += 2 * kLines) {
    const auto left = static_cast<__mmask16>(lowest_bits(cols - col, 16)),
               right = static_cast<__mmask16>(lowest_bits(cols - col - 16, 16));
    for (int64_t row = 0; row < kTerms; row += 2) {
      const float *const from = x + row * stride + col, *const below = from + stride;
      const bool has_row = row < rows, has_below = row + 1 < rows;
      __m512 a0 = _mm512_maskz_loadu_ps(has_row ? left : 0, from),
             a1 = _mm512_maskz_loadu_ps(has_row ? right : 0, from + kLines),
             b0 = _mm512_maskz_loadu_ps(has_below ? left : 0, below),
             b1 = _mm512_maskz_loadu_ps(has_below ? right : 0, below + kLines);
#pragma GCC unroll 3
      for (int part = 0; part < kParts; ++part) {
        if (kParts < kAllParts && part == kParts - 1) {
          a0 = with_rounded_half(a0), a1 = with_rounded_half(a1);
          b0 = with_rounded_half(b0), b1 = with_rounded_half(b1);
        }
        if (to.data) {
          Bf16* const at = to.data + part * to.part + row * to.stride + col;
          _mm512_storeu_si512(at, upper_halves(a0, a1));
          _mm512_storeu_si512(at + to.stride, upper_halves(b0, b1));
        }
        if (to_terms.data) {
          Bf16* const at =
              to_terms.data + part * to_terms.part + col / kLines * next + first + row * kLines;
          _mm512_store_si512(at, upper_halves(a0, b0));
          _mm512_store_si512(at + next, upper_halves(a1, b1));
        }
        a0 = rest_of(a0), a1 = rest_of(a1), b0 = rest_of(b0), b1 = rest_of(b1);
      }
    }
  }
}

ONEFOLD_BF16 void store_transposed(const float* x, int64_t stride, int64_t rows, int64_t cols,
                                   Bf16* dst, int64_t dst_stride) {
  for (int64_t row = 0; row < rows; row += kLines)
    for (int64_t col = 0; col < cols; col += kLines) {
      const auto in = static_cast<__mmask16>(lowest_bits(cols - col, 16)),
                 out = static_cast<__mmask16>(lowest_bits(rows - row, 16));
      __m512i r[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i)
        r[i] = _mm512_castps_si512(
            _mm512_maskz_loadu_ps(row + i < rows ? in : 0, x + (row + i) * stride + col));
      transpose(r);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i)
        if (col + i < cols)
          _mm256_mask_storeu_epi16(
              dst + (col + i) * dst_stride + row, out,
              __builtin_bit_cast(__m256i, _mm512_cvtneps_pbh(_mm512_castsi512_ps(r[i]))));
    }
}

#if defined(ONEFOLD_AMX_INTRINSICS)
bool has_tiles() { return true; }
#else
bool has_tiles() {
  static const bool has = [] {
    if (!library_has_amx()) return false;
    // Linux gives a process these registers when it asks: ARCH_REQ_XCOMP_PERM of the tiles' data.
    constexpr long kRequest = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  }();
  return has;
}
#endif

}  // namespace

bool has_bf16_unit() { return has_tiles() || has_bf16_dots(); }
bool has_bf16_tiles() { return has_tiles(); }

void unit_pack(Side side, const Bf16* x, int64_t stride, bool by_terms, int64_t lines,
               int64_t terms, Bf16* dst) {
  pack(side, bits(x), stride, by_terms, lines, terms, reinterpret_cast<uint16_t*>(dst));
}

LinesOfA packed_lines(const Bf16* packed_a, int64_t terms) {
  return {packed_a, kTerms, kTileElems, (terms + kTerms - 1) / kTerms * kTileElems};
}

LinesOfA rows_as_lines(const Bf16* x, int64_t stride, int64_t part) {
  return {x, stride, kTerms, kLines * stride, part};
}

LinesOfB packed_columns(const Bf16* packed_b, int64_t terms, int64_t part) {
  return {packed_b, (terms + kTerms - 1) / kTerms * kTileElems, part};
}

UnitTurn::UnitTurn() {
  if (has_tiles()) begin_tiles();
}
UnitTurn::~UnitTurn() {
  if (has_tiles()) end_tiles();
}

void unit_multiply(const LinesOfA& a, const LinesOfB& b, int64_t m, int64_t n, int64_t terms,
                   bool onto, float* c, int64_t c_stride, int parts) {
  if (has_tiles())
    multiply(a, b, m, n, terms, parts, onto, c, c_stride, kSteps,
             parts == 1 ? multiply_block<true> : multiply_block<false>);
  else
    multiply(a, b, m, n, terms, parts, onto, c, c_stride, kDotSteps, dots_of_parts);
}

void unit_split(const float* x, int64_t stride, int64_t rows, int64_t cols, const SplitRows& to,
                const SplitTerms& to_terms, int parts) {
  (parts == kAllParts ? split<kAllParts> : split<kTwoParts>)(x, stride, rows, cols, to, to_terms);
}

void unit_store_transposed(const float* x, int64_t stride, int64_t rows, int64_t cols, Bf16* dst,
                           int64_t dst_stride) {
  store_transposed(x, stride, rows, cols, dst, dst_stride);
}

}  // namespace onefold::cpu

#else

namespace onefold::cpu {
namespace {
[[noreturn]] void no_unit() { internal_error("no instructions for bf16 on this processor"); }
}  // namespace

bool has_bf16_unit() { return false; }
bool has_bf16_tiles() { return false; }
void unit_pack(Side, const Bf16*, int64_t, bool, int64_t, int64_t, Bf16*) { no_unit(); }
LinesOfA packed_lines(const Bf16*, int64_t) { no_unit(); }
LinesOfA rows_as_lines(const Bf16*, int64_t, int64_t) { no_unit(); }
LinesOfB packed_columns(const Bf16*, int64_t, int64_t) { no_unit(); }
UnitTurn::UnitTurn() { no_unit(); }
UnitTurn::~UnitTurn() = default;
void unit_multiply(const LinesOfA&, const LinesOfB&, int64_t, int64_t, int64_t, bool, float*,
                   int64_t, int) {
  no_unit();
}
void unit_split(const float*, int64_t, int64_t, int64_t, const SplitRows&, const SplitTerms&, int) {
  no_unit();
}
void unit_store_transposed(const float*, int64_t, int64_t, int64_t, Bf16*, int64_t) { no_unit(); }

}  // namespace onefold::cpu
#endif
