// A tile is computed in bands of 32 queries: scores, probabilities and their parts of one band stay
// in the first cache, and of a tile on the diagonal only what is seen is multiplied. Sums over
// queries (gradients of keys and values) wait for all bands of a tile, so that the unit adds up 128
// queries without loading and storing sums in between. Those gradients are computed transposed:
// split, a band lies in memory as their second operand must, and transposing a head's queries once
// is less work than transposing every band.
//
// Forward's probabilities are split into three bf16, which have all their bits; backward's, and the
// gradients of scores, into two, which leave out up to 2^-16: whole models in bf16 on hostile data
// err no more by that (docs/numerics.md). Tried, and more than the models' own rounding there: two
// forward; one for gradients of scores, or for all of them.
#include "kernels/cpu/attention_unit.h"

#include <limits>

#include "kernels/cpu/bf16_unit.h"
#include "kernels/cpu/convert.h"

namespace onefold::cpu {
namespace {

constexpr int kForwardParts = kAllParts, kBackwardParts = kTwoParts;
constexpr int64_t kBand = 32;
constexpr int64_t kBandElems = kBand * kTile, kTileElems = kTile * kTile;
// Columns of a band whose parts are multiplied by keys or values at a time: beside the scores they
// fit in the first cache, which all 128 do not.
constexpr int64_t kPiece = 64, kPieceElems = kBand * kPiece;

int64_t whole_blocks(int64_t n) { return ceil_div(n, kPackedLines) * kPackedLines; }

Bf16* take_bf16(ThreadScratch& scratch, int64_t elems) {
  return reinterpret_cast<Bf16*>(scratch.take(ceil_div(elems, 2)));
}

const Bf16* data_of(const Tensor& t) { return t.as<Bf16>(); }

// Rows as a first operand: where they are if they are whole, else packed in `room`.
LinesOfA lines_of(const Tensor& rows, Bf16* room) {
  if (rows.rows % kPackedLines == 0 && rows.cols % kPackedTerms == 0)
    return rows_as_lines(data_of(rows), rows.stride);
  unit_pack(Side::a, data_of(rows), rows.stride, false, rows.rows, rows.cols, room);
  return packed_lines(room, rows.cols);
}

// Rows as a second operand: as its lines, or as its terms, of what is split.
LinesOfB pack_lines(const Tensor& rows, Bf16* room) {
  unit_pack(Side::b, data_of(rows), rows.stride, false, rows.rows, rows.cols, room);
  return packed_columns(room, rows.cols);
}
LinesOfB pack_terms(const Tensor& rows, Bf16* room) {
  unit_pack(Side::b_of_split, data_of(rows), rows.stride, true, rows.cols, rows.rows, room);
  return packed_columns(room, rows.rows);
}

// The band of a tile's rows from `first` on, with the columns that any of them sees.
ScoreTile band_of(const ScoreTile& tile, int64_t first, float* data) {
  ScoreTile band = tile;
  band.data = data;
  band.rows = std::min(kBand, tile.rows - first);
  band.visible_in_row0 += first;
  if (tile.starts) band.starts += first;
  band.cols = band.visible(band.rows - 1);
  return band;
}

// A band's scores, or a gradient of theirs = a · b', in whole blocks.
void score(const ScoreTile& band, const LinesOfA& a, const LinesOfB& b, int64_t head_dim,
           float* dst) {
  unit_multiply(a, b, kBand, whole_blocks(band.cols), head_dim, false, dst, kTile);
}

// What scores are still to be multiplied with, after what is done to them before the softmax.
float scale_left(const AttentionShape& s, const ScoreTile& band, int64_t h) {
  if (s.soft_cap == 0 && s.alibi == 0) return s.score_scale();
  scale_tile(band, s.score_scale());
  adjust_scores(s, band, h);
  return 1;
}

// c [rows, wide] (+)= x · b, x being floats in the band's place, which are split to `room`, and to
// `pairs` if given.
void multiply_split(const ScoreTile& band, const float* x, int parts, const LinesOfB& b,
                    SplitTerms pairs, Bf16* room, bool onto, float* c, int64_t wide) {
  for (int64_t col = 0; col < band.cols; col += kPiece) {
    const int64_t cols = std::min(kPiece, band.cols - col);
    unit_split(x + col, kTile, band.rows, cols, {room, kPiece, kPieceElems}, pairs, parts);
    if (pairs.data) pairs.data += packed_elems(kPiece, pairs.terms);
    LinesOfB terms = b;
    terms.data += col / kPackedTerms * kPackedStep;
    unit_multiply(rows_as_lines(room, kPiece, kPieceElems), terms, kBand, wide, cols,
                  onto || col > 0, c, wide, parts);
  }
}

// ---------------------------------------------------------------------------------------- forward

struct ForwardScratch {
  float *scores, *result;
  Bf16 *parts, *q, *k, *v;

  static int64_t packed_tile(const AttentionShape& s) { return packed_elems(kTile, s.head_dim); }
  static int64_t elems(const AttentionShape& s) {
    return kBandElems + kTile * whole_blocks(s.head_dim) +
           (kForwardParts * kPieceElems + packed_elems(kBand, s.head_dim) + 2 * packed_tile(s)) / 2;
  }
  ForwardScratch(const AttentionShape& s, ThreadScratch all)
      : scores(all.take(kBandElems)),
        result(all.take(kTile * whole_blocks(s.head_dim))),
        parts(take_bf16(all, kForwardParts * kPieceElems)),
        q(take_bf16(all, packed_elems(kBand, s.head_dim))),
        k(take_bf16(all, packed_tile(s))),
        v(take_bf16(all, packed_tile(s))) {}
};

void forward_query_tile(const AttentionShape& s, const QueryTile& t, const Dropout& dropout,
                        const ForwardScratch& room) {
  const int64_t hd = s.head_dim, wide = whole_blocks(hd), rows = t.queries.size();
  float maxima[kTile], sums[kTile];
  std::fill_n(maxima, kTile, -std::numeric_limits<float>::infinity());
  std::fill_n(sums, kTile, 0.0f);
  for (int64_t key = t.first_key; key < t.last_key; key += kTile) {
    const int64_t cols = std::min(kTile, t.last_key - key);
    const ScoreTile tile = score_tile(s, room.scores, t.batch, t.queries.begin, rows, key, cols);
    const LinesOfB k = pack_lines(t.k.row_range(key, cols), room.k),
                   v = pack_terms(t.v.row_range(key, cols), room.v);
    const bool first_tile = key == t.first_key;
    for (int64_t first = 0; first < rows; first += kBand) {
      const ScoreTile band = band_of(tile, first, room.scores);
      if (band.cols == 0) continue;  // never in the first tile
      score(band, lines_of(t.q.row_range(first, band.rows), room.q), k, hd, band.data);
      const float scale = scale_left(s, band, t.head);
      float* const result = room.result + first * wide;
      online_softmax(band, scale, first_tile,
                     tile_dropout(dropout, s, t.batch, t.head, t.queries.begin + first, key),
                     maxima + first, sums + first, result, wide, hd);
      multiply_split(band, band.data, kForwardParts, v, {}, room.parts, !first_tile, result, wide);
    }
  }
  finish_rows(rows, maxima, sums, room.result, wide, hd, t.lse);
  narrow_rows(room.result, wide, t.out);
}

// --------------------------------------------------------------------------------------- backward

// Of one head at a time: queries and gradients of results, packed transposed; sums of dq. Of a tile
// of keys: they and values, packed, and the transposed sums of dk and dv, of all keys where several
// heads add to them. Of a tile of scores: probabilities and gradients of scores, split.
struct UnitBackwardScratch {
  float *scores, *gradient, *delta, *dq, *dk, *dv;
  Bf16 *queries, *douts;
  Bf16 *q, *dout, *k, *v, *k_terms;
  Bf16 *gradient_lines, *weight_pairs, *gradient_pairs;

  static int64_t query_tiles(const AttentionShape& s) { return ceil_div(s.query_length, kTile); }
  // Whose sums of dk and dv a thread keeps: one's, or all where several heads add to them; none
  // where parts of a group do.
  static int64_t key_tiles(const AttentionShape& s) {
    if (group_parts(s).count > 1) return 0;
    return s.heads == s.kv_heads ? 1 : ceil_div(s.key_length, kTile);
  }
  // dk's or dv's of a part of a group.
  static int64_t part_elems(const AttentionShape& s) {
    return ceil_div(s.key_length, kTile) * floats(s);
  }
  // Of a tile of a head's rows.
  static int64_t packed_tile(const AttentionShape& s) { return packed_elems(s.head_dim, kTile); }
  static int64_t floats(const AttentionShape& s) { return whole_blocks(s.head_dim) * kTile; }

  static int64_t elems(const AttentionShape& s) {
    return 2 * kBandElems + ThreadScratch::whole(s.query_length) + query_tiles(s) * floats(s) +
           2 * key_tiles(s) * floats(s) +
           ((2 * query_tiles(s) + 3) * packed_tile(s) + 2 * packed_elems(kBand, s.head_dim) +
            kBackwardParts * (kPieceElems + 2 * kTileElems)) /
               2;
  }
  UnitBackwardScratch(const AttentionShape& s, ThreadScratch all)
      : scores(all.take(kBandElems)),
        gradient(all.take(kBandElems)),
        delta(all.take(s.query_length)),
        dq(all.take(query_tiles(s) * floats(s))),
        dk(all.take(key_tiles(s) * floats(s))),
        dv(all.take(key_tiles(s) * floats(s))),
        queries(take_bf16(all, query_tiles(s) * packed_tile(s))),
        douts(take_bf16(all, query_tiles(s) * packed_tile(s))),
        q(take_bf16(all, packed_elems(kBand, s.head_dim))),
        dout(take_bf16(all, packed_elems(kBand, s.head_dim))),
        k(take_bf16(all, packed_tile(s))),
        v(take_bf16(all, packed_tile(s))),
        k_terms(take_bf16(all, packed_tile(s))),
        gradient_lines(take_bf16(all, kBackwardParts * kPieceElems)),
        weight_pairs(take_bf16(all, kBackwardParts * kTileElems)),
        gradient_pairs(take_bf16(all, kBackwardParts * kTileElems)) {}
};

void store_transposed(const float* sums, const Tensor& dst) {
  unit_store_transposed(sums, kTile, dst.cols, dst.rows, dst.as<Bf16>(), dst.stride);
}

// One query head against its key head. Of the heads that add to the same sums of dk and dv, the
// first starts them; the last rounds them, unless there are other parts' sums.
class UnitBackwardHead {
 public:
  UnitBackwardHead(const AttentionShape& s, const GroupPart& part, int64_t h,
                   const BackwardTensors& tensors, const Dropout& dropout,
                   const UnitBackwardScratch& room)
      : s_(s),
        b_(part.batch),
        h_(h),
        starts_(h == part.first),
        rounds_(part.whole && h == part.last - 1),
        wide_(whole_blocks(s.head_dim)),
        t_(s, part.batch, h, tensors),
        dropout_(dropout),
        room_(room) {}

  void run() {
    row_dots(t_.dout, t_.out, room_.delta);
    for (int64_t query = 0; query < s_.query_length; query += kTile) {
      const int64_t rows = std::min(kTile, s_.query_length - query);
      pack_transposed(t_.q.row_range(query, rows), queries_at(query));
      pack_transposed(t_.dout.row_range(query, rows), douts_at(query));
    }
    for (int64_t key = 0; key < s_.key_length; key += kTile) key_tile(key);
    narrow_rows(room_.dq, wide_, t_.dq);
  }

 private:
  Bf16* queries_at(int64_t query) const {
    return room_.queries + query / kTile * UnitBackwardScratch::packed_tile(s_);
  }
  Bf16* douts_at(int64_t query) const {
    return room_.douts + query / kTile * UnitBackwardScratch::packed_tile(s_);
  }
  void pack_transposed(const Tensor& rows, Bf16* dst) const {
    unit_pack(Side::a, data_of(rows), rows.stride, true, rows.cols, rows.rows, dst);
  }

  void key_tile(int64_t key) {
    const int64_t cols = std::min(kTile, s_.key_length - key), group = s_.heads / s_.kv_heads,
                  sum = group == 1 ? 0 : key / kTile * UnitBackwardScratch::floats(s_);
    const Tensor keys = t_.k.row_range(key, cols);
    const LinesOfB k = pack_lines(keys, room_.k), k_terms = pack_terms(keys, room_.k_terms),
                   v = pack_lines(t_.v.row_range(key, cols), room_.v);
    float *const dk = room_.dk + sum, *const dv = room_.dv + sum;
    const int64_t first_query = s_.causal ? key : 0;
    for (int64_t query = first_query; query < s_.query_length; query += kTile) {
      const int64_t rows = std::min(kTile, s_.query_length - query);
      const int64_t first_key = s_.first_in_window(query);
      if (first_key >= key + cols) break;  // windows of later queries begin later
      const ScoreTile tile = score_tile(s_, nullptr, b_, query, rows, key, cols);
      for (int64_t first = 0; first < rows; first += kBand)
        band(tile, query, first, k, v, k_terms, key > first_key);
      const bool onto = !starts_ || query > first_query;
      add_over_queries(tile, douts_at(query), room_.weight_pairs, onto, dv);
      add_over_queries(tile, queries_at(query), room_.gradient_pairs, onto, dk);
    }
    if (!rounds_) return;
    store_transposed(dk, t_.dk.row_range(key, cols));
    store_transposed(dv, t_.dv.row_range(key, cols));
  }

  // Probabilities and gradients of scores of a band, split; and what they add to dq.
  void band(const ScoreTile& tile, int64_t query, int64_t first, const LinesOfB& k,
            const LinesOfB& v, const LinesOfB& k_terms, bool onto) const {
    const ScoreTile band = band_of(tile, first, room_.scores);
    const int64_t row = query + first;
    score(band, lines_of(t_.q.row_range(row, band.rows), room_.q), k, s_.head_dim, band.data);
    score(band, lines_of(t_.dout.row_range(row, band.rows), room_.dout), v, s_.head_dim,
          room_.gradient);
    const float scale = scale_left(s_, band, h_);
    backward_tile(band, scale, room_.gradient, t_.lse + row, room_.delta + row, s_.score_scale(),
                  s_.soft_cap, tile_dropout(dropout_, s_, b_, h_, row, tile.first_key));
    const int64_t terms = whole_blocks(tile.rows);
    unit_split(band.data, kTile, band.rows, band.cols, {},
               {room_.weight_pairs, terms, first, kTileElems}, kBackwardParts);
    multiply_split(band, room_.gradient, kBackwardParts, k_terms,
                   {room_.gradient_pairs, terms, first, kTileElems}, room_.gradient_lines, onto,
                   room_.dq + row * wide_, wide_);
  }

  // dst' [head_dim, keys] (+)= x' · the tile, x being packed transposed. On the diagonal, 32 keys
  // at a time, from the first query that sees any of them on.
  void add_over_queries(const ScoreTile& tile, const Bf16* x, const Bf16* pairs, bool onto,
                        float* dst) const {
    const int64_t terms = whole_blocks(tile.rows), cols = whole_blocks(tile.cols);
    const bool diagonal = tile.visible(0) < tile.cols;
    for (int64_t col = 0; col < cols; col += diagonal ? kPackedLines : cols) {
      const int64_t unseen = diagonal ? col : 0;
      LinesOfA a = packed_lines(x, terms);
      LinesOfB b = packed_columns(pairs + packed_elems(col, terms), terms, kTileElems);
      a.data += unseen / kPackedTerms * a.step;
      b.data += unseen / kPackedTerms * kPackedStep;
      unit_multiply(a, b, wide_, diagonal ? kPackedLines : cols, terms - unseen, onto, dst + col,
                    kTile, kBackwardParts);
    }
  }

  const AttentionShape& s_;
  const int64_t b_, h_;
  const bool starts_, rounds_;
  const int64_t wide_;
  const BackwardHead t_;
  const Dropout& dropout_;
  const UnitBackwardScratch& room_;
};

}  // namespace

int64_t unit_attention_forward_elems(const AttentionShape& s) { return ForwardScratch::elems(s); }
int64_t unit_attention_backward_elems(const AttentionShape& s, int threads) {
  const int64_t parts = group_parts(s).count;
  return threads * UnitBackwardScratch::elems(s) +
         (parts > 1 ? s.batch * s.kv_heads * parts * 2 * UnitBackwardScratch::part_elems(s) : 0);
}

void unit_attention_forward(ThreadPool& pool, const AttentionShape& s, const ForwardTensors& t,
                            const Dropout& dropout, float* scratch) {
  const Chunks tiles{s.query_length, kTile};
  pool.run(s.batch * s.heads * tiles.count(), [&](int64_t chunk, int thread) {
    // The last tiles see the most keys, and are handed out first.
    const int64_t tile = tiles.count() - 1 - chunk / (s.batch * s.heads),
                  rest = chunk % (s.batch * s.heads);
    const UnitTurn turn;
    forward_query_tile(s, {s, rest / s.heads, rest % s.heads, tiles[tile], t}, dropout,
                       {s, {scratch + thread * ForwardScratch::elems(s)}});
  });
}

void unit_attention_backward(ThreadPool& pool, const AttentionShape& s, const BackwardTensors& t,
                             const Dropout& dropout, float* scratch) {
  const GroupParts parts = group_parts(s);
  const int64_t sums = UnitBackwardScratch::part_elems(s);
  float* const all_sums = scratch + pool.threads() * UnitBackwardScratch::elems(s);
  pool.run(s.batch * s.kv_heads * parts.count, [&](int64_t chunk, int thread) {
    const GroupPart part(s, parts, chunk);
    UnitBackwardScratch mine(s, {scratch + thread * UnitBackwardScratch::elems(s)});
    if (!part.whole) mine.dk = all_sums + chunk * 2 * sums, mine.dv = mine.dk + sums;
    const UnitTurn turn;
    for (int64_t h = part.first; h < part.last; ++h)
      UnitBackwardHead(s, part, h, t, dropout, mine).run();
  });
  if (parts.count == 1) return;
  const Chunks tiles{s.key_length, kTile};
  pool.run(s.batch * s.kv_heads * tiles.count(), [&](int64_t chunk, int) {
    const int64_t piece = chunk / tiles.count(), tile = chunk % tiles.count();
    const GroupPart part(s, parts, piece * parts.count);
    const BackwardHead head(s, part.batch, part.first, t);
    float* dk = all_sums + piece * parts.count * 2 * sums + tile * UnitBackwardScratch::floats(s);
    for (const Tensor& dst : {head.dk, head.dv}) {
      add_group_parts(dk, UnitBackwardScratch::floats(s), parts.count, 2 * sums);
      store_transposed(dk, dst.row_range(tiles[tile].begin, tiles[tile].size()));
      dk += sums;
    }
  });
}

}  // namespace onefold::cpu
