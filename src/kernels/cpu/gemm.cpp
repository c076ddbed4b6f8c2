// Matrix products: oneDNN's single-threaded sgemm on tiles of dst that our own pool shares out. The
// tiles are cut by the shape of dst alone, so the bits cannot depend on the number of threads, and
// what follows the product (bias, residual) is done on each tile while it is still in the core's L2
// cache.
//
// Operands of bf16 are multiplied by instructions for them where the processor has such
// (gemm_packed.h).
// Other operands of 16 bits are widened, block by block of their common dimension, to panels of
// floats that the same sgemm multiplies: right on every processor, at the price of one conversion
// of an operand for each tile that it has part in (1 to 5 % of the time). A result of 16 bits is
// summed in a tile of floats and rounded once. One row (a token to generate) is multiplied by our
// own dot products instead: each weight is used once, and widening it into memory took twice fp32's
// time.
//
// Tried: oneDNN's own threading (bits and rate depend on the thread count; its pool fights ours),
// its bf16 product on processors with AVX512_BF16 alone (0.6 of fp32's rate on Sapphire Rapids),
// OpenBLAS (5-8 % slower on AVX-512, equal on AVX2), one tile for each thread (fastest by 1 %, but
// the cut would follow the thread count), Winograd's inner product, one multiplication and two
// additions for two multiplications (1.2 to 1.4 times the rate where adders are idle, but its error
// grows with the largest operands of a row, not with the products: gradients of a peaked softmax
// were wrong).
#include <algorithm>

#include "kernels/cpu/bf16_unit.h"
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/gemm_packed.h"
#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/sgemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

// dst[i] += src[i] for each row of a tile; src_stride 0 adds the same row (a bias) everywhere.
template <class T>
HWY_INLINE void AddRowsOf(float* HWY_RESTRICT dst, int64_t dst_stride, const T* HWY_RESTRICT src,
                          int64_t src_stride, int64_t rows, int64_t cols) {
  const DF d;
  for (int64_t r = 0; r < rows; ++r) {
    float* to = dst + r * dst_stride;
    const T* from = src + r * src_stride;
    Sweep(static_cast<size_t>(cols), [&](size_t i, auto io) HWY_ATTR {
      io.Store(hn::Add(io.Load(d, to + i), io.Load(d, from + i)), d, to + i);
    });
  }
}

void AddRows(float* dst, int64_t dst_stride, const Tensor& src, int64_t src_stride, int64_t rows) {
  with_type(src.dtype, "gemm", [&](auto type) HWY_ATTR {
    AddRowsOf(dst, dst_stride, src.as<decltype(type)>(), src_stride, rows, src.cols);
  });
}

// dst[i] (+)= a · b[i], each in four sums of one vector.
template <class T>
HWY_INLINE void DotRowsOf(const T* a, const T* b, int64_t b_stride, int64_t rows, size_t n,
                          bool onto, float* dst) {
  const DF d;
  for (int64_t row = 0; row < rows; ++row) {
    const T* other = b + row * b_stride;
    VF sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    SweepBy4(n, [&](size_t i, auto io, auto k) HWY_ATTR {
      sums[k] = hn::MulAdd(io.Load(d, a + i), io.Load(d, other + i), sums[k]);
    });
    dst[row] = onto ? dst[row] + Total(sums) : Total(sums);
  }
}

void DotRows(const Tensor& a, const Tensor& b, bool onto, float* dst) {
  with_type(a.dtype, "gemm", [&](auto type) HWY_ATTR {
    using T = decltype(type);
    DotRowsOf<T>(a.as<T>(), b.as<T>(), b.stride, b.rows, static_cast<size_t>(b.cols), onto, dst);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onefold::cpu {
namespace {

HWY_EXPORT(AddRows);
HWY_EXPORT(DotRows);

struct Tiles {
  int64_t rows, cols, row_count, col_count;
};

// Nearly equal parts of `total`, each at most `most` and a multiple of `unit`.
int64_t even_part(int64_t total, int64_t most, int64_t unit) {
  const int64_t parts = std::max<int64_t>(1, ceil_div(total, most));
  return std::max<int64_t>(1, ceil_div(ceil_div(total, parts), unit)) * unit;
}

// Large tiles amortise packing (each tile packs its share of a and b anew); small ones feed more
// threads. Cut so that 16 threads would take least time, whatever their number is. On two threads
// and GPT-2's shapes 512x384 is within 2 % of the best tile and 256x384 within 4 %, as if a row or
// column packed cost 10 elements. Where rows are whole pages apart (a width of 1024, 2048, 4096) it
// costs 40: there 256x96 takes 1.25 times as long as 256x288. The library's own blocks have 48
// columns.
Tiles cut(int64_t m, int64_t n) {
  constexpr int64_t kRows[] = {64, 128, 192, 256, 384, 512}, kCols[] = {48, 96, 144, 192, 288, 384};
  constexpr int64_t kThreads = 16, kPacking = 20;
  Tiles best{64, 48, 0, 0};
  int64_t least = INT64_MAX;
  for (const int64_t r : kRows)
    for (const int64_t c : kCols) {
      const int64_t rows = even_part(m, r, 16), cols = even_part(n, c, 48);
      const int64_t tiles = ceil_div(m, rows) * ceil_div(n, cols);
      const int64_t cost = ceil_div(tiles, kThreads) * (rows * cols + kPacking * (rows + cols));
      if (cost < least) least = cost, best.rows = rows, best.cols = cols;
    }
  best.row_count = ceil_div(m, best.rows);
  best.col_count = ceil_div(n, best.cols);
  return best;
}

// The library's bits differ with the height and width of what it is given, so a run of rows is made
// of tiles of the whole product.
Tiles tiles_of(const Gemm& g) {
  Tiles tiles = cut(std::max(g.of_rows, g.dst.rows), g.dst.cols);
  tiles.row_count = ceil_div(g.dst.rows, tiles.rows);
  return tiles;
}

void check(const Gemm& g) {
  const int64_t m = g.dst.rows, n = g.dst.cols, k = terms(g);
  require((g.a_transposed ? g.a.cols : g.a.rows) == m &&
              (g.b_transposed ? g.b.rows : g.b.cols) == n &&
              (g.b_transposed ? g.b.cols : g.b.rows) == k,
          "gemm: a {}x{}{}, b {}x{}{}, dst {}x{}", g.a.rows, g.a.cols, g.a_transposed ? "'" : "",
          g.b.rows, g.b.cols, g.b_transposed ? "'" : "", m, n);
  require(g.bias.empty() || g.bias.elems() == n, "gemm: a bias of {} for {} columns",
          g.bias.elems(), n);
  require(g.residual.empty() || (g.residual.rows == m && g.residual.cols == n),
          "gemm: residual of another shape");
  const DType type = g.a.dtype;
  for (const Tensor& t : {g.b, g.bias, g.residual})
    require(t.empty() || t.dtype == type, "gemm: {} beside {}", dtype_name(t.dtype),
            dtype_name(type));
  require(g.dst.dtype == type || g.dst.dtype == DType::f32, "gemm: {} to {}", dtype_name(type),
          dtype_name(g.dst.dtype));
  require(type == DType::f32 || type == DType::bf16 || type == DType::f16,
          "gemm takes no tensor of {}", dtype_name(type));
}

void multiply(const Gemm& g, const Tile& tile, const Tensor& a, const Tensor& b, int64_t k,
              bool onto) {
  sgemm(g.a_transposed, g.b_transposed, tile.rows.size(), tile.cols.size(), k, 1.0f, a.f32(),
        a.stride, b.f32(), b.stride, onto ? 1.0f : 0.0f, tile.data, tile.stride);
}

// Terms that are widened at a time: panels of 512 by 256 floats stay in a core's L2 cache.
constexpr int64_t kTerms = 256;

// Whether DotRows does it.
bool one_row(const Gemm& g) {
  return g.a.dtype != DType::f32 && std::max(g.of_rows, g.dst.rows) == 1 && !g.a_transposed &&
         g.b_transposed;
}

bool packed(const Gemm& g, bool on_unit) { return on_unit && packed_gemm_suits(g) && !one_row(g); }

// What a thread needs for operands of 16 bits, in floats: a panel of each operand, and a tile.
struct Room {
  int64_t a = 0, b = 0, tile = 0;
  int64_t elems() const { return a + b + tile; }
};

Room room_of(const Gemm& g) {
  if (g.a.dtype == DType::f32) return {};
  const Tiles tiles = tiles_of(g);
  const int64_t rows = std::min(tiles.rows, g.dst.rows), cols = std::min(tiles.cols, g.dst.cols);
  const auto padded = [](int64_t elems) { return ceil_div(elems, 16) * 16; };
  const int64_t terms_at_once = one_row(g) ? 0 : std::min(kTerms, terms(g));
  return {padded(rows * terms_at_once), padded(cols * terms_at_once),
          g.dst.dtype == DType::f32 ? 0 : padded(rows * cols)};
}

// The product of operands of 16 bits: panels are widened and multiplied one after the other.
void multiply_widened(const Gemm& g, const Tile& tile, float* a_room, float* b_room) {
  const int64_t k = terms(g);
  for (int64_t begin = 0; begin < k; begin += kTerms) {
    const int64_t count = std::min(kTerms, k - begin);
    const Tensor a = panel_of(g.a, g.a_transposed, tile.rows, begin, count),
                 b = panel_of(g.b, !g.b_transposed, tile.cols, begin, count);
    widen_rows(a, a_room, a.cols);
    widen_rows(b, b_room, b.cols);
    multiply(g, tile, matrix(a_room, a.rows, a.cols), matrix(b_room, b.rows, b.cols), count,
             begin > 0 || g.accumulate);
  }
}

void compute(const Gemm& g, Range rows, Range cols, float* scratch) {
  const Room room = room_of(g);
  const Tile tile = begin_tile(g, rows, cols, scratch + room.a + room.b);
  const int64_t k = terms(g);
  if (k == 0 && !g.accumulate)  // the library leaves dst as it was, or refuses
    for (int64_t row = 0; row < rows.size(); ++row)
      std::fill_n(tile.data + row * tile.stride, cols.size(), 0.0f);
  else if (k > 0 && g.a.dtype == DType::f32)
    multiply(g, tile, panel_of(g.a, g.a_transposed, rows, 0, k),
             panel_of(g.b, !g.b_transposed, cols, 0, k), k, g.accumulate);
  else if (one_row(g))
    HWY_DYNAMIC_DISPATCH(DotRows)
  (g.a, panel_of(g.b, false, cols, 0, k), g.accumulate, tile.data);
  else multiply_widened(g, tile, scratch, scratch + room.a);
  end_tile(g, tile);
}

}  // namespace

Tile begin_tile(const Gemm& g, Range rows, Range cols, float* room) {
  const Tensor out = panel_of(g.dst, false, rows, cols.begin, cols.size());
  if (out.dtype == DType::f32) return {rows, cols, out.f32(), out.stride};
  const Tile tile{rows, cols, room, cols.size()};
  if (g.accumulate) load_tile(g, tile);
  return tile;
}

void load_tile(const Gemm& g, const Tile& tile) {
  widen_rows(panel_of(g.dst, false, tile.rows, tile.cols.begin, tile.cols.size()), tile.data,
             tile.stride);
}

void end_tile(const Gemm& g, const Tile& tile) {
  const auto& [rows, cols, data, stride] = tile;
  const auto add_rows = HWY_DYNAMIC_DISPATCH(AddRows);
  if (!g.bias.empty())
    add_rows(data, stride, g.bias.flat().col_range(cols.begin, cols.size()), 0, rows.size());
  if (!g.residual.empty())
    add_rows(data, stride, panel_of(g.residual, false, rows, cols.begin, cols.size()),
             g.residual.stride, rows.size());
  if (g.dst.dtype != DType::f32)
    narrow_rows(data, stride, panel_of(g.dst, false, rows, cols.begin, cols.size()));
}

int64_t gemm_row_unit(int64_t rows, int64_t cols) { return cut(rows, cols).rows; }

int64_t gemm_scratch_bytes(const Gemm& g, int threads, bool on_unit) {
  if (packed(g, on_unit)) return packed_gemm_scratch_bytes(g, threads);
  return threads * room_of(g).elems() * 4;
}

void gemm(ThreadPool& pool, const Gemm& g) {
  check(g);
  const bool on_unit = has_bf16_unit();
  const int64_t needed = gemm_scratch_bytes(g, pool.threads(), on_unit);
  require(g.scratch.elems() >= needed, "gemm: scratch of {} bytes, {} needed", g.scratch.elems(),
          needed);
  if (packed(g, on_unit)) return packed_gemm(pool, g);
  const Tiles tiles = tiles_of(g);
  const int64_t room = room_of(g).elems();
  const Chunks rows{g.dst.rows, tiles.rows}, cols{g.dst.cols, tiles.cols};
  // Neighbouring tiles share the operand that is larger, so that it stays in L3.
  const bool rows_inner = g.dst.rows > g.dst.cols;
  pool.run(tiles.row_count * tiles.col_count, [&](int64_t tile, int thread) {
    const int64_t row = rows_inner ? tile % tiles.row_count : tile / tiles.col_count;
    const int64_t col = rows_inner ? tile / tiles.row_count : tile % tiles.col_count;
    compute(g, rows[row], cols[col], g.scratch.as_f32() + thread * room);
  });
}

}  // namespace onefold::cpu
#endif
