// Products of bf16 by instructions that the processor has for them, on the calling thread: Intel's
// matrix unit (AMX), or the dot products of AVX512_BF16. An operand is packed first, and may then
// be used by many products.
//
// Every element is one sum in fp32 over the terms in their order, two at a time, whatever it is
// computed with: its bits depend on its row of a and its column of b alone. The instructions take
// subnormal numbers for zeros.
#pragma once

#include <cstdint>

#include "base/half.h"

namespace onefold::cpu {

// Whether the processor has such instructions and the system lets this process use them.
bool has_bf16_unit();
// Whether they are tiles' (AMX): many times as fast as products of fp32, and not just twice.
bool has_bf16_tiles();

// A line is a row of a, or a column of b. Lines are packed in multiples of 32, terms too; what is
// added is zero.
inline constexpr int64_t kPackedLines = 32, kPackedTerms = 32;

inline constexpr int64_t packed_elems(int64_t lines, int64_t terms) {
  return (lines + kPackedLines - 1) / kPackedLines * kPackedLines *
         ((terms + kPackedTerms - 1) / kPackedTerms * kPackedTerms);
}

// The last: b, of an a that unit_split has made rows of. Those have a term beside the 16th after
// it, and so must this, whose rows are terms.
enum class Side { a, b, b_of_split };

// Lines [0, lines) and terms [0, terms) of an operand whose rows, `stride` apart, are lines, or
// terms if by_terms. dst: packed_elems(), aligned to 64 bytes.
void unit_pack(Side side, const Bf16* x, int64_t stride, bool by_terms, int64_t lines,
               int64_t terms, Bf16* dst);

// Elements of 16 packed lines from 32 terms to the next 32.
inline constexpr int64_t kPackedStep = 16 * kPackedTerms;

// Lines of an operand, from a multiple of 32 on. In elements. `part`: from one to the next of the
// parts that it is split into.
struct LinesOfA {  // packed, or where they are
  const Bf16* data;
  int64_t stride;  // from a line to the next
  int64_t step;    // from 32 terms to the next 32
  int64_t next;    // from 16 lines to the next 16
  int64_t part = 0;
};
struct LinesOfB {  // packed
  const Bf16* data;
  int64_t next;
  int64_t part = 0;
};
LinesOfA packed_lines(const Bf16* packed_a, int64_t terms);
// The rows of a matrix. Lines and terms must be multiples of 32: what is beyond would be read.
LinesOfA rows_as_lines(const Bf16* x, int64_t stride, int64_t part = 0);
LinesOfB packed_columns(const Bf16* packed_b, int64_t terms, int64_t part = 0);

// The calling thread may multiply while it has one of these.
class UnitTurn {
 public:
  UnitTurn();
  ~UnitTurn();
  UnitTurn(const UnitTurn&) = delete;
  UnitTurn& operator=(const UnitTurn&) = delete;
};

// c (+)= a · b for m by n elements, or the sum of so many parts' products: of every 32 terms, in
// the parts' order.
void unit_multiply(const LinesOfA& a, const LinesOfB& b, int64_t m, int64_t n, int64_t terms,
                   bool onto, float* c, int64_t c_stride, int parts = 1);

// bf16 that a float is split into. Three have as many bits as it; two leave out up to 2^-16 of it,
// of which the last is rounded to the nearest.
inline constexpr int kAllParts = 3, kTwoParts = 2;

// Where the parts of floats go, if data is given: rows, for rows_as_lines with Side::b_of_split;
// and packed as b's terms from `first` on, of `terms` in all, both multiples of 32.
struct SplitRows {
  Bf16* data = nullptr;
  int64_t stride = 0, part = 0;
};
struct SplitTerms {
  Bf16* data = nullptr;
  int64_t terms = 0, first = 0, part = 0;
};
// At most 32 rows. Zeros are added up to 32 rows, and up to a multiple of 32 columns. For
// processors with tiles.
void unit_split(const float* x, int64_t stride, int64_t rows, int64_t cols, const SplitRows& to,
                const SplitTerms& to_terms, int parts);

// dst [cols, rows] = x' of floats, rounded to the nearest even. For processors with tiles.
void unit_store_transposed(const float* x, int64_t stride, int64_t rows, int64_t cols, Bf16* dst,
                           int64_t dst_stride);

}  // namespace onefold::cpu
