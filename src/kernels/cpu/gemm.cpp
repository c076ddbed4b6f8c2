// Matrix products: oneDNN's single-threaded sgemm on tiles of dst that our own pool shares out. The
// tiles are cut by the shape of dst alone, so the bits cannot depend on the number of threads, and
// what follows the product (bias, residual) is done on each tile while it is still in the core's L2
// cache.
//
// Tried: oneDNN's own threading (bits and rate depend on the thread count; its pool fights ours),
// OpenBLAS (5-8 % slower on AVX-512, equal on AVX2), one tile for each thread (fastest by 1 %, but
// the cut would follow the thread count), Winograd's inner product, one multiplication and two
// additions for two multiplications (1.2 to 1.4 times the rate where adders are idle, but its error
// grows with the largest operands of a row, not with the products: gradients of a peaked softmax
// were wrong).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm.cpp"
#include "kernels/cpu/targets.h"
// clang-format off: foreach_target must come before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// dst[i] += src[i] for each row of a tile; src_stride 0 adds the same row (a bias) everywhere.
void AddRows(float* HWY_RESTRICT dst, int64_t dst_stride, const float* HWY_RESTRICT src,
             int64_t src_stride, int64_t rows, int64_t cols) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < rows; ++r) {
    float* to = dst + r * dst_stride;
    const float* from = src + r * src_stride;
    int64_t c = 0;
    for (; c + lanes <= cols; c += lanes)
      hn::StoreU(hn::Add(hn::LoadU(d, to + c), hn::LoadU(d, from + c)), d, to + c);
    for (; c < cols; ++c) to[c] += from[c];
  }
}

}  // namespace onefold::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/sgemm.h"

namespace onefold::cpu {
namespace {

HWY_EXPORT(AddRows);

struct Tiles {
  int64_t rows, cols, row_count, col_count;
};

// Large tiles amortise packing (each tile packs its share of a and b anew); small ones feed more
// threads. Measured on GPT-2's shapes, 512x384 is within 2 % of the best tile and 256x384 within 4
// %, so tiles shrink only when there would be fewer than eight.
Tiles cut(int64_t m, int64_t n) {
  const auto pieces = [](int64_t total, int64_t piece) { return (total + piece - 1) / piece; };
  Tiles t{512, 384, 0, 0};
  while (t.rows > 64 && pieces(m, t.rows) * pieces(n, t.cols) < 8) t.rows /= 2;
  while (t.cols > 48 && pieces(m, t.rows) * pieces(n, t.cols) < 8) t.cols /= 2;
  t.row_count = pieces(m, t.rows);
  t.col_count = pieces(n, t.cols);
  return t;
}

int64_t terms(const Gemm& g) { return g.a_transposed ? g.a.rows : g.a.cols; }

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
}

}  // namespace

void gemm(ThreadPool& pool, const Gemm& g) {
  check(g);
  const int64_t m = g.dst.rows, n = g.dst.cols, k = terms(g);
  const Tiles tiles = cut(m, n);
  const float* a = g.a.f32();
  const float* b = g.b.f32();
  float* dst = g.dst.f32();
  const float* bias = g.bias.empty() ? nullptr : g.bias.f32();
  const float* residual = g.residual.empty() ? nullptr : g.residual.f32();
  const bool rows_inner =
      m > n;  // neighbouring tiles share the operand that is larger, so that it stays in L3
  pool.run(tiles.row_count * tiles.col_count, [&](int64_t tile, int) {
    const int64_t tr = rows_inner ? tile % tiles.row_count : tile / tiles.col_count;
    const int64_t tc = rows_inner ? tile / tiles.row_count : tile % tiles.col_count;
    const int64_t r0 = tr * tiles.rows, c0 = tc * tiles.cols;
    const int64_t rows = std::min(tiles.rows, m - r0), cols = std::min(tiles.cols, n - c0);
    float* out = dst + r0 * g.dst.stride + c0;
    if (k > 0)
      sgemm(g.a_transposed, g.b_transposed, rows, cols, k, 1.0f,
            a + (g.a_transposed ? r0 : r0 * g.a.stride), g.a.stride,
            b + (g.b_transposed ? c0 * g.b.stride : c0), g.b.stride, g.accumulate ? 1.0f : 0.0f,
            out, g.dst.stride);
    else if (!g.accumulate)  // the library leaves dst as it was, or refuses
      for (int64_t row = 0; row < rows; ++row) std::fill_n(out + row * g.dst.stride, cols, 0.0f);
    if (bias) HWY_DYNAMIC_DISPATCH(AddRows)(out, g.dst.stride, bias + c0, 0, rows, cols);
    if (residual) HWY_DYNAMIC_DISPATCH(AddRows)
    (out, g.dst.stride, residual + r0 * g.residual.stride + c0, g.residual.stride, rows, cols);
  });
}

}  // namespace onefold::cpu
#endif
