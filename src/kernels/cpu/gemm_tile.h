// What the ways of computing a product share: tiles of its result, and what is added to them.
#pragma once

#include "kernels/cpu/chunk.h"
#include "kernels/kernels.h"

namespace onefold::cpu {

// A tile of dst in floats: dst's own memory, or a thread's.
struct Tile {
  Range rows, cols;
  float* data;
  int64_t stride;
};

inline int64_t terms(const Gemm& g) { return g.a_transposed ? g.a.rows : g.a.cols; }

// The part of a (or b) that a tile multiplies, in terms [k, k + count).
inline Tensor panel_of(const Tensor& x, bool terms_first, Range tile, int64_t k, int64_t count) {
  return terms_first ? x.row_range(k, count).col_range(tile.begin, tile.size())
                     : x.row_range(tile.begin, tile.size()).col_range(k, count);
}

// The tile at dst's own place where dst is f32, else at `room`, with what dst held if the product
// is added to it.
Tile begin_tile(const Gemm& g, Range rows, Range cols, float* room);
// What dst of 16 bits holds, as floats.
void load_tile(const Gemm& g, const Tile& tile);
// Adds bias and residual to a tile that holds the product, and rounds it into a dst of 16 bits.
void end_tile(const Gemm& g, const Tile& tile);

}  // namespace onefold::cpu
