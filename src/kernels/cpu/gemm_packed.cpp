// A large product is cut into slabs, one after the other, whose packed operands are bounded. Where
// the terms take several slabs and dst is of 16 bits, sums wait in scratch.
//
// Tried, on 16 Sapphire Rapids cores and GPT-2's shapes, from warm caches: oneDNN's matmul on tiles
// (5.0 TFLOP/s), and operands packed anew for each tile (4.9). A large product packed once has 5.2
// to 5.8, and tiles that do not matter for the bits.
#include "kernels/cpu/gemm_packed.h"

#include <algorithm>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm_tile.h"

namespace onefold::cpu {
namespace {

// Of a slab, at most.
constexpr int64_t kSlabLines = 4096, kSlabTerms = 3072;
// Lines of an operand that a thread packs at a time.
constexpr int64_t kPackLines = 2 * kPackedLines;

// The size of nearly equal parts of `total`, each at most `most`: a multiple of 32.
int64_t even_part(int64_t total, int64_t most) {
  const int64_t parts = std::max<int64_t>(1, ceil_div(total, most));
  return std::max<int64_t>(1, ceil_div(ceil_div(total, parts), kPackedLines)) * kPackedLines;
}

struct TileSize {
  int64_t rows, cols;
};

// Of those that fit in a core's second cache, the tile whose product takes least time on so many
// threads. Beside its multiplications, a tile costs what reading its packed operands does.
TileSize tile_size(int64_t rows, int64_t cols, int threads) {
  constexpr int64_t kSizes[] = {32, 64, 96, 128, 192, 256, 384, 512, 640, 768};
  constexpr int64_t kMost = 512 * 384, kReading = 128;
  TileSize best{32, 32};
  int64_t least = INT64_MAX;
  for (const int64_t r : kSizes)
    for (const int64_t c : kSizes) {
      if (r * c > kMost) continue;
      const TileSize size{even_part(rows, r), even_part(cols, c)};
      const int64_t tiles = ceil_div(rows, size.rows) * ceil_div(cols, size.cols);
      const int64_t cost =
          ceil_div(tiles, threads) * (size.rows * size.cols + kReading * (size.rows + size.cols));
      if (cost < least) least = cost, best = size;
    }
  return best;
}

struct Layout {
  Chunks rows, cols, terms;  // slabs
  TileSize tile;
  bool sums_wait;              // for the next terms
  int64_t a, b, sums, thread;  // bytes: packed operands; sums of a slab; a thread's tile

  Layout(const Gemm& g, int threads)
      : rows{g.dst.rows, even_part(g.dst.rows, kSlabLines)},
        cols{g.dst.cols, even_part(g.dst.cols, kSlabLines)},
        terms{cpu::terms(g), even_part(cpu::terms(g), kSlabTerms)},
        tile(tile_size(std::min(rows.size, g.dst.rows), std::min(cols.size, g.dst.cols), threads)),
        sums_wait(g.dst.dtype != DType::f32 && terms.count() > 1),
        a(2 * packed_elems(rows.size, terms.size)),
        b(2 * packed_elems(cols.size, terms.size)),
        sums(sums_wait ? 4 * rows.size * cols.size : 0),
        thread(g.dst.dtype == DType::f32 || sums_wait ? 0 : 4 * tile.rows * tile.cols) {}

  int64_t bytes(int threads) const { return a + b + sums + threads * thread; }
};

// A slab's operands, packed by all threads; one that is there already stays.
class Packed {
 public:
  Packed(const Gemm& g, const Layout& layout, std::byte* scratch)
      : g_(g),
        a_(reinterpret_cast<Bf16*>(scratch)),
        b_(reinterpret_cast<Bf16*>(scratch + layout.a)) {}

  void pack(ThreadPool& pool, Range rows, Range cols, Range terms) {
    const bool new_a = held_rows_ != rows.begin || held_terms_ != terms.begin,
               new_b = held_cols_ != cols.begin || held_terms_ != terms.begin;
    held_rows_ = rows.begin, held_cols_ = cols.begin, held_terms_ = terms.begin;
    const Chunks of_a{new_a ? rows.size() : 0, kPackLines},
        of_b{new_b ? cols.size() : 0, kPackLines};
    pool.run(of_a.count() + of_b.count(), [&](int64_t chunk, int) {
      if (chunk < of_a.count())
        pack_lines(Side::a, g_.a, g_.a_transposed, rows, of_a[chunk], terms, a_);
      else
        pack_lines(Side::b, g_.b, !g_.b_transposed, cols, of_b[chunk - of_a.count()], terms, b_);
    });
  }

  // From a line of the slab on.
  const Bf16* a(int64_t line, int64_t terms) const { return a_ + packed_elems(line, terms); }
  const Bf16* b(int64_t line, int64_t terms) const { return b_ + packed_elems(line, terms); }

 private:
  static void pack_lines(Side side, const Tensor& x, bool by_terms, Range slab, Range lines,
                         Range terms, Bf16* dst) {
    const Range from{slab.begin + lines.begin, slab.begin + lines.end};
    const Tensor part = panel_of(x, by_terms, from, terms.begin, terms.size());
    amx_pack(side, part.as<Bf16>(), part.stride, by_terms, lines.size(), terms.size(),
             dst + packed_elems(lines.begin, terms.size()));
  }

  const Gemm& g_;
  Bf16 *a_, *b_;
  int64_t held_rows_ = -1, held_cols_ = -1, held_terms_ = -1;
};

void multiply_slab(ThreadPool& pool, const Gemm& g, const Layout& layout, const Packed& packed,
                   Range rows, Range cols, Range terms, std::byte* scratch) {
  const Chunks tile_rows{rows.size(), layout.tile.rows}, tile_cols{cols.size(), layout.tile.cols};
  const bool first = terms.begin == 0, last = terms.end == layout.terms.total;
  pool.run(tile_rows.count() * tile_cols.count(), [&](int64_t chunk, int thread) {
    const Range row = tile_rows[chunk % tile_rows.count()],
                col = tile_cols[chunk / tile_rows.count()];
    const Range dst_rows{rows.begin + row.begin, rows.begin + row.end},
        dst_cols{cols.begin + col.begin, cols.begin + col.end};
    std::byte* const room = scratch + layout.a + layout.b;
    Tile tile;
    if (layout.sums_wait) {
      tile = {dst_rows, dst_cols,
              reinterpret_cast<float*>(room) + row.begin * layout.cols.size + col.begin,
              layout.cols.size};
      if (first && g.accumulate) load_tile(g, tile);
    } else {
      tile = begin_tile(g, dst_rows, dst_cols,
                        reinterpret_cast<float*>(room + thread * layout.thread));
    }
    amx_multiply(packed.a(row.begin, terms.size()), packed.b(col.begin, terms.size()), row.size(),
                 col.size(), terms.size(), g.accumulate || !first, tile.data, tile.stride);
    if (last) end_tile(g, tile);
  });
}

}  // namespace

bool packed_gemm_suits(const Gemm& g) {
  return g.a.dtype == DType::bf16 && g.dst.elems() > 0 && terms(g) > 0 && has_amx();
}

int64_t packed_gemm_scratch_bytes(const Gemm& g, int threads) {
  return Layout(g, threads).bytes(threads);
}

void packed_gemm(ThreadPool& pool, const Gemm& g) {
  const Layout layout(g, pool.threads());
  auto* const scratch = static_cast<std::byte*>(g.scratch.data);
  Packed packed(g, layout, scratch);
  for (int64_t col = 0; col < layout.cols.count(); ++col)
    for (int64_t row = 0; row < layout.rows.count(); ++row)
      for (int64_t term = 0; term < layout.terms.count(); ++term) {
        const Range rows = layout.rows[row], cols = layout.cols[col], terms = layout.terms[term];
        packed.pack(pool, rows, cols, terms);
        multiply_slab(pool, g, layout, packed, rows, cols, terms, scratch);
      }
}

}  // namespace onefold::cpu
