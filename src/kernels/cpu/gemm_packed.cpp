// All of a product is one list of chunks: a slab's lines are packed, then its tiles multiplied,
// then the next slab's lines are packed into the other buffer, and so on. A chunk waits for what it
// needs of those before it, so that a thread that is done early goes on with the next slab's
// packing instead of waiting for the slowest. Whole rows of a are multiplied where they are. Where
// the terms take several slabs and dst is of 16 bits, sums wait in scratch.
//
// Tried, on 16 Sapphire Rapids cores and GPT-2's shapes, from warm caches: oneDNN's matmul on tiles
// (5.0 TFLOP/s), and operands packed anew for each tile (4.9). With a barrier after each slab's
// packing all of a step's products take 2 % longer for 1024 tokens, and 19 % for 8192. With a tile
// for each thread they take 15 and 2 % longer than with more and smaller ones; with a packed, 4 and
// 6 %.
#include "kernels/cpu/gemm_packed.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "kernels/cpu/bf16_unit.h"
#include "kernels/cpu/gemm_tile.h"

namespace onefold::cpu {
namespace {

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
// threads. Beside its multiplications, a tile costs what reading its packed operands does; and as
// threads are not equally fast, one tile more is waited for at the end.
TileSize tile_size(int64_t rows, int64_t cols, int threads) {
  constexpr int64_t kSizes[] = {32, 64, 96, 128, 192, 256, 384, 512, 640, 768};
  constexpr int64_t kMost = 512 * 384, kReading = 64;
  TileSize best{32, 32};
  int64_t least = INT64_MAX;
  for (const int64_t r : kSizes)
    for (const int64_t c : kSizes) {
      if (r * c > kMost) continue;
      const TileSize size{even_part(rows, r), even_part(cols, c)};
      const int64_t tiles = ceil_div(rows, size.rows) * ceil_div(cols, size.cols);
      const int64_t cost =
          (tiles + threads) * (size.rows * size.cols + kReading * (size.rows + size.cols));
      if (cost < least) least = cost, best = size;
    }
  return best;
}

// Where everything of a product is in its scratch, and what its chunks are.
struct Layout {
  Chunks rows, cols, terms;  // slabs
  TileSize tile;
  bool whole_rows;                    // of a: multiplied where they are, if their terms are whole
  bool sums_wait;                     // for the next terms
  int64_t tile_rows, tile_cols;       // tiles of a whole slab
  int64_t packs_a, packs_b;           // chunks of packing
  int64_t a, b, sums, thread, flags;  // bytes: a packed operand; sums of a slab; a thread's tile;
                                      // the flags of a slab

  Layout(const Gemm& g, int threads, const SlabLimits& limits)
      : rows{g.dst.rows, even_part(g.dst.rows, limits.lines)},
        cols{g.dst.cols, even_part(g.dst.cols, limits.lines)},
        terms{cpu::terms(g), even_part(cpu::terms(g), limits.terms)},
        tile(tile_size(std::min(rows.size, g.dst.rows), std::min(cols.size, g.dst.cols), threads)),
        whole_rows(!g.a_transposed && g.a.rows % kPackedLines == 0),
        sums_wait(g.dst.dtype != DType::f32 && terms.count() > 1),
        tile_rows(ceil_div(rows.size, tile.rows)),
        tile_cols(ceil_div(cols.size, tile.cols)),
        packs_a(all_in_place() ? 0 : ceil_div(rows.size, kPackLines)),
        packs_b(ceil_div(cols.size, kPackLines)),
        a(all_in_place() ? 0 : 2 * packed_elems(rows.size, terms.size)),
        b(2 * packed_elems(cols.size, terms.size)),
        sums(sums_wait ? 4 * rows.size * cols.size : 0),
        thread(g.dst.dtype == DType::f32 || sums_wait ? 0 : 4 * tile.rows * tile.cols),
        flags(ceil_div(packs_a + packs_b + tile_rows * tile_cols, 64) * 64) {}

  bool all_in_place() const { return whole_rows && terms.total % kPackedTerms == 0; }
  int64_t slabs() const { return rows.count() * cols.count() * terms.count(); }
  int64_t buffers() const { return slabs() > 1 ? 2 : 1; }  // of each operand
  // From the beginning of scratch, in this order: flags, operands, sums, tiles.
  int64_t packed_at() const { return slabs() * flags; }
  int64_t sums_at() const { return packed_at() + buffers() * (a + b); }
  int64_t bytes(int threads) const { return sums_at() + sums + threads * thread; }
};

struct Slab {
  int64_t row, col, term;  // numbers
  Range rows, cols, terms;
  bool a_in_place;
  bool packs_a, packs_b;  // else they are packed already
};

// The slabs of a product, one after the other, with as many chunks each.
class Product {
 public:
  Product(const Gemm& g, const Layout& layout) : g_(g), layout_(layout) {
    scratch_ = static_cast<std::byte*>(g.scratch.data);
    std::memset(scratch_, 0, static_cast<size_t>(layout.packed_at()));
  }

  int64_t chunks() const { return layout_.slabs() * chunks_of_slab(); }

  void run(int64_t chunk, int thread) {
    const int64_t number = chunk / chunks_of_slab();
    const Slab slab = slab_of(number);
    int64_t at = chunk % chunks_of_slab();
    if (at < layout_.packs_b) return pack(Side::b, number, slab, at);
    at -= layout_.packs_b;
    if (at < layout_.packs_a) return pack(Side::a, number, slab, at);
    multiply(number, slab, at - layout_.packs_a, thread);
  }

 private:
  int64_t chunks_of_slab() const {
    return layout_.packs_a + layout_.packs_b + layout_.tile_rows * layout_.tile_cols;
  }

  // Terms change first, then rows, then columns. An operand is packed when its lines or terms
  // change.
  Slab slab_of(int64_t number) const {
    const int64_t terms = layout_.terms.count(), rows = layout_.rows.count();
    Slab slab{number / terms % rows, number / terms / rows, number % terms, {}, {}, {}, {}, {}, {}};
    slab.rows = layout_.rows[slab.row];
    slab.cols = layout_.cols[slab.col];
    slab.terms = layout_.terms[slab.term];
    const bool first = number == 0, new_terms = terms > 1;
    slab.a_in_place = layout_.whole_rows && slab.terms.size() % kPackedTerms == 0;
    slab.packs_a = !slab.a_in_place && (first || new_terms || rows > 1);
    slab.packs_b = first || new_terms || slab.row == 0;
    return slab;
  }
  // The number of times that an operand was packed before this slab: which of two buffers it is in.
  int64_t packings(Side side, int64_t number) const {
    const int64_t terms = layout_.terms.count(), rows = layout_.rows.count();
    if (terms > 1) return number;
    return side == Side::a ? (rows > 1 ? number : 0) : number / rows;
  }
  Bf16* operand(Side side, int64_t number) const {
    const int64_t buffer = packings(side, number) % layout_.buffers();
    const int64_t at =
        side == Side::a ? buffer * layout_.a : layout_.buffers() * layout_.a + buffer * layout_.b;
    return reinterpret_cast<Bf16*>(scratch_ + layout_.packed_at() + at);
  }

  // What is done of a slab: lines of b and of a that are packed, and tiles.
  std::atomic_ref<uint8_t> flag(int64_t number, int64_t of_slab) const {
    return std::atomic_ref<uint8_t>(
        *reinterpret_cast<uint8_t*>(scratch_ + number * layout_.flags + of_slab));
  }
  void set(int64_t number, int64_t of_slab) const {
    flag(number, of_slab).store(1, std::memory_order_release);
  }
  // Chunks are handed out in order, so what is waited for is being computed or done.
  void wait(int64_t number, int64_t of_slab) const {
    for (int spin = 0; flag(number, of_slab).load(std::memory_order_acquire) == 0; ++spin)
      if (spin < 1000)
        relax();
      else
        std::this_thread::yield();
  }
  int64_t tile_flag(int64_t row, int64_t col) const {
    return layout_.packs_b + layout_.packs_a + col * layout_.tile_rows + row;
  }
  void wait_for_tiles(int64_t number) const {
    for (int64_t i = 0; i < layout_.tile_rows * layout_.tile_cols; ++i)
      wait(number, layout_.packs_b + layout_.packs_a + i);
  }
  void wait_for_lines(int64_t number, int64_t first_flag, Range lines) const {
    for (int64_t i = lines.begin / kPackLines; i * kPackLines < lines.end; ++i)
      wait(number, first_flag + i);
  }

  void pack(Side side, int64_t number, const Slab& slab, int64_t chunk) {
    const bool is_a = side == Side::a;
    const int64_t at = is_a ? layout_.packs_b + chunk : chunk;
    const Range of_slab = is_a ? slab.rows : slab.cols;
    const Chunks chunks{of_slab.size(), kPackLines};
    if ((is_a ? slab.packs_a : slab.packs_b) && chunk < chunks.count()) {
      // What the buffer held was read by earlier slabs than the last. Those before these two were
      // waited for when these were packed.
      for (int64_t ago = layout_.buffers(); ago <= layout_.buffers() + 1; ++ago)
        if (number >= ago) wait_for_tiles(number - ago);
      const Range lines = chunks[chunk];
      const bool by_terms = is_a ? g_.a_transposed : !g_.b_transposed;
      const Tensor part = panel_of(is_a ? g_.a : g_.b, by_terms,
                                   {of_slab.begin + lines.begin, of_slab.begin + lines.end},
                                   slab.terms.begin, slab.terms.size());
      unit_pack(side, part.as<Bf16>(), part.stride, by_terms, lines.size(), slab.terms.size(),
                operand(side, number) + packed_elems(lines.begin, slab.terms.size()));
    }
    set(number, at);
  }

  void multiply(int64_t number, const Slab& slab, int64_t chunk, int thread) {
    const Chunks tile_rows{slab.rows.size(), layout_.tile.rows},
        tile_cols{slab.cols.size(), layout_.tile.cols};
    const int64_t r = chunk % layout_.tile_rows, c = chunk / layout_.tile_rows;
    if (r < tile_rows.count() && c < tile_cols.count()) {
      const Range row = tile_rows[r], col = tile_cols[c];
      const int64_t packed_a = packed_with(Side::a, number),
                    packed_b = packed_with(Side::b, number);
      if (!slab.a_in_place) wait_for_lines(packed_a, layout_.packs_b, row);
      wait_for_lines(packed_b, 0, col);
      // The same place in dst, or in the sums that wait.
      if (layout_.terms.count() > 1 && number > 0) wait(number - 1, tile_flag(r, c));
      multiply_tile(number, slab, row, col, thread);
    }
    set(number, tile_flag(r, c));
  }
  // The slab with which an operand of this one was packed.
  int64_t packed_with(Side side, int64_t number) const {
    const int64_t rows = layout_.rows.count();
    if (layout_.terms.count() > 1) return number;
    return side == Side::a ? (rows > 1 ? number : 0) : number / rows * rows;
  }

  void multiply_tile(int64_t number, const Slab& slab, Range row, Range col, int thread) {
    const bool first = slab.terms.begin == 0, last = slab.terms.end == layout_.terms.total;
    const Range dst_rows{slab.rows.begin + row.begin, slab.rows.begin + row.end},
        dst_cols{slab.cols.begin + col.begin, slab.cols.begin + col.end};
    auto* const room = reinterpret_cast<float*>(scratch_ + layout_.sums_at());
    Tile tile;
    if (layout_.sums_wait) {
      tile = {dst_rows, dst_cols, room + row.begin * layout_.cols.size + col.begin,
              layout_.cols.size};
      if (first && g_.accumulate) load_tile(g_, tile);
    } else {
      tile = begin_tile(g_, dst_rows, dst_cols, room + thread * layout_.thread / 4);
    }
    const int64_t terms = slab.terms.size();
    const LinesOfA lines =
        slab.a_in_place
            ? rows_as_lines(panel_of(g_.a, false, dst_rows, slab.terms.begin, terms).as<Bf16>(),
                            g_.a.stride)
            : packed_lines(operand(Side::a, number) + packed_elems(row.begin, terms), terms);
    const LinesOfB columns =
        packed_columns(operand(Side::b, number) + packed_elems(col.begin, terms), terms);
    const UnitTurn turn;
    unit_multiply(lines, columns, row.size(), col.size(), terms, g_.accumulate || !first, tile.data,
                  tile.stride);
    if (last) end_tile(g_, tile);
  }

  const Gemm& g_;
  const Layout& layout_;
  std::byte* scratch_;
};

}  // namespace

bool packed_gemm_suits(const Gemm& g) {
  return g.a.dtype == DType::bf16 && g.dst.elems() > 0 && terms(g) > 0;
}

int64_t packed_gemm_scratch_bytes(const Gemm& g, int threads, const SlabLimits& limits) {
  return Layout(g, threads, limits).bytes(threads);
}

void packed_gemm(ThreadPool& pool, const Gemm& g, const SlabLimits& limits) {
  const Layout layout(g, pool.threads(), limits);
  Product product(g, layout);
  pool.run(product.chunks(), [&](int64_t chunk, int thread) { product.run(chunk, thread); });
}

}  // namespace onefold::cpu
