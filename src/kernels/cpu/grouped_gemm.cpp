// Products of groups of rows, each with a matrix of its own: tiles of all groups' results are
// shared out together, so that many small groups feed as many threads as a large one. A tile is cut
// by the shape of its group alone, and computed as gemm.cpp's are: by the library in fp32, where
// operands of 16 bits are widened block by block of their common dimension.
#include <algorithm>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/sgemm.h"

namespace onefold::cpu {
namespace {

// A tile, and terms that are widened at a time: see gemm.cpp, whose tiles they resemble.
constexpr int64_t kRows = 256, kCols = 192, kTerms = 256;

// What a thread needs for operands of 16 bits, in floats.
struct Room {
  int64_t a = 0, b = 0, tile = 0;
  int64_t elems() const { return a + b + tile; }
};

Room room_of(const GroupedGemm& g) {
  if (g.a.dtype == DType::f32) return {};
  const auto padded = [](int64_t elems) { return ceil_div(elems, 16) * 16; };
  const int64_t rows = std::min(kRows, g.a_transposed ? g.a.cols : g.a.rows),
                cols = std::min(kCols, g.dst.cols),
                terms = std::min(kTerms, g.a_transposed ? g.a.rows : g.a.cols);
  return {padded(rows * terms), padded(cols * terms),
          g.dst.dtype == DType::f32 ? 0 : padded(rows * cols)};
}

// The product of one group.
Gemm group_of(const GroupedGemm& g, int64_t group) {
  const int32_t* offsets = g.offsets.i32();
  const int64_t first = offsets[group], count = offsets[group + 1] - first;
  const auto block = [&](const Tensor& all) {
    const int64_t rows = all.rows / g.groups();
    return all.row_range(group * rows, rows);
  };
  Gemm product{.a = g.a.row_range(first, count), .b = {}, .dst = {}};
  product.a_transposed = g.a_transposed;
  product.b_transposed = g.b_transposed;
  product.accumulate = g.accumulate;
  product.b = g.a_transposed ? g.b.row_range(first, count) : block(g.b);
  product.dst = g.a_transposed ? block(g.dst) : g.dst.row_range(first, count);
  return product;
}

struct GroupTiles {
  Chunks rows, cols;
  int64_t count() const { return rows.count() * cols.count(); }
};

// Nearly equal parts, whose width is a multiple of the library's blocks.
Chunks even_parts(int64_t total, int64_t most, int64_t unit) {
  const int64_t parts = std::max<int64_t>(1, ceil_div(total, most));
  return {total, std::max(unit, ceil_div(ceil_div(total, parts), unit) * unit)};
}

GroupTiles tiles_of(const Gemm& g) {
  return {even_parts(g.dst.rows, kRows, 16), even_parts(g.dst.cols, kCols, 48)};
}

void compute(const Gemm& g, const Room& room, Range rows, Range cols, float* scratch) {
  const Tile tile = begin_tile(g, rows, cols, scratch + room.a + room.b);
  const int64_t k = terms(g);
  const auto multiply = [&](const Tensor& a, const Tensor& b, int64_t count, bool onto) {
    sgemm(g.a_transposed, g.b_transposed, rows.size(), cols.size(), count, 1.0f, a.f32(), a.stride,
          b.f32(), b.stride, onto ? 1.0f : 0.0f, tile.data, tile.stride);
  };
  if (k == 0 && !g.accumulate)
    for (int64_t row = 0; row < rows.size(); ++row)
      std::fill_n(tile.data + row * tile.stride, cols.size(), 0.0f);
  else if (k > 0 && g.a.dtype == DType::f32)
    multiply(panel_of(g.a, g.a_transposed, rows, 0, k), panel_of(g.b, !g.b_transposed, cols, 0, k),
             k, g.accumulate);
  else
    for (int64_t begin = 0; begin < k; begin += kTerms) {
      const int64_t count = std::min(kTerms, k - begin);
      const Tensor a = panel_of(g.a, g.a_transposed, rows, begin, count),
                   b = panel_of(g.b, !g.b_transposed, cols, begin, count);
      widen_rows(a, scratch, a.cols);
      widen_rows(b, scratch + room.a, b.cols);
      multiply(matrix(scratch, a.rows, a.cols), matrix(scratch + room.a, b.rows, b.cols), count,
               begin > 0 || g.accumulate);
    }
  end_tile(g, tile);
}

void check(const GroupedGemm& g) {
  const int64_t groups = g.groups();
  const bool fits =
      g.a_transposed
          ? g.b.rows == g.a.rows && g.dst.rows == groups * g.a.cols && g.dst.cols == g.b.cols
          : g.dst.rows == g.a.rows &&
                g.b.rows == groups * (g.b_transposed ? g.dst.cols : g.a.cols) &&
                g.b.cols == (g.b_transposed ? g.a.cols : g.dst.cols);
  require(groups > 0 && fits, "grouped_gemm: a {}x{}{}, b {}x{}{}, dst {}x{}, {} groups", g.a.rows,
          g.a.cols, g.a_transposed ? "'" : "", g.b.rows, g.b.cols, g.b_transposed ? "'" : "",
          g.dst.rows, g.dst.cols, groups);
  require(!(g.a_transposed && g.b_transposed) && (g.a_transposed || !g.accumulate),
          "grouped_gemm: no such product");
  require(g.a.dtype == g.b.dtype && (g.dst.dtype == g.a.dtype || g.dst.dtype == DType::f32),
          "grouped_gemm: {} and {} to {}", dtype_name(g.a.dtype), dtype_name(g.b.dtype),
          dtype_name(g.dst.dtype));
}

void clear_rows(ThreadPool& pool, const GroupedGemm& g) {
  const int64_t used = g.offsets.i32()[g.groups()];
  if (!g.a_transposed && used < g.dst.rows) fill(pool, g.dst.row_range(used, g.dst.rows - used), 0);
}

}  // namespace

int64_t grouped_gemm_scratch_bytes(const GroupedGemm& g, int threads) {
  return threads * room_of(g).elems() * 4;
}

void grouped_gemm(ThreadPool& pool, const GroupedGemm& g) {
  check(g);
  const Room room = room_of(g);
  const int64_t needed = grouped_gemm_scratch_bytes(g, pool.threads());
  require(g.scratch.elems() >= needed, "grouped_gemm: scratch of {} bytes, {} needed",
          g.scratch.elems(), needed);
  int64_t tiles = 0;
  for (int64_t group = 0; group < g.groups(); ++group)
    tiles += tiles_of(group_of(g, group)).count();
  pool.run(tiles, [&](int64_t number, int thread) {
    // A few hundred groups at most: looking for a tile's takes nothing beside its product.
    for (int64_t group = 0; group < g.groups(); ++group) {
      const Gemm product = group_of(g, group);
      const GroupTiles own = tiles_of(product);
      if (number >= own.count()) {
        number -= own.count();
        continue;
      }
      return compute(product, room, own.rows[number / own.cols.count()],
                     own.cols[number % own.cols.count()],
                     g.scratch.as_f32() + thread * room.elems());
    }
  });
  clear_rows(pool, g);
}

}  // namespace onefold::cpu
