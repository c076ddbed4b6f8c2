// Causal attention in tiles of queries by keys: scores exist for one tile at a time, so memory
// grows with the sequence, not with its square. Products are the library's on 128x128 tiles (90 %
// of its large-matrix rate; 64x64 gets 65 %), the softmax between them is ours, on a tile that is
// still in cache.
//
// Forward shares out (sequence, head, query tile), with the online softmax of FlashAttention.
// Backward shares out (sequence, key head) and walks its tiles in order: gradients of keys and
// values are summed over queries and over the heads of a group without partial buffers, at the
// price of batch * kv_heads chunks of parallelism.
//
// Tensors of 16 bits are widened tile by tile into a thread's scratch, where results are summed in
// floats and rounded once. Where the processor multiplies bf16 (bf16_unit.h), such tensors are its
// operands as they are, and what the softmax makes is split into three bf16 whose sum it is:
// products stay those of fp32. (By dot products alone three take longer than one of fp32.)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cpp"
#include "kernels/cpu/targets.h"
// clang-format off: foreach_target must come before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <utility>

#include "kernels/cpu/dropout-inl.h"
#include "kernels/cpu/math-inl.h"
#include "kernels/cpu/types.h"

#ifndef ONEFOLD_ATTENTION_TILE_
#define ONEFOLD_ATTENTION_TILE_
namespace onefold::cpu {

constexpr int64_t kTile = 128;
// bf16 that a float is split into, where such are multiplied. Two, which leave out 2^-18 of it,
// were tried: whole models with outlying channels erred by more than their own rounding makes them.
// To pack keys and values once for all queries was tried too, and gained nothing on 16 cores.
constexpr int kParts = 3;

// One tile of scores: rows are queries, columns keys. Row r sees columns [hidden(r), visible(r)).
struct ScoreTile {
  float* data;  // [rows, kTile]
  int64_t rows, cols;
  int64_t visible_in_row0;          // may be <= 0 for rows that see nothing here
  const int32_t* starts = nullptr;  // by row: the first key of its document; null: all see from 0
  int64_t first_key = 0;            // of column 0
  int64_t window = 0;  // columns that a row sees at most, its own being the last; 0: all
  int64_t visible(int64_t row) const { return std::clamp<int64_t>(visible_in_row0 + row, 0, cols); }
  int64_t hidden(int64_t row) const {
    const int64_t document = starts ? starts[row] - first_key : 0;
    const int64_t in_window = window > 0 ? visible_in_row0 + row - window : 0;
    return std::clamp<int64_t>(std::max(document, in_window), 0, visible(row));
  }
};

// Where a tile's dropout multipliers come from: element = first + row * row_step + column.
struct TileDropout {
  float rate = 0;
  PhiloxKey key;
  int64_t sample = 0;
  uint64_t first = 0;
  uint64_t row_step = 0;
};

}  // namespace onefold::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE float RowMax(const float* row, size_t n) {
  const DF d;
  VF top = hn::Set(d, -std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) top = hn::Max(top, hn::LoadU(d, row + i));
  float best = hn::GetLane(hn::MaxOfLanes(d, top));
  for (; i < n; ++i) best = std::max(best, row[i]);
  return best;
}

// row[i] = exp(row[i] - shift); returns the sum.
HWY_INLINE float ExpRow(float* HWY_RESTRICT row, size_t n, float shift) {
  const DF d;
  VF sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  const VF minus = hn::Set(d, shift);
  SweepBy4(n, [&](size_t i, auto io, auto k) HWY_ATTR {
    const VF e = Exp(d, hn::Sub(io.Load(d, row + i), minus));
    io.Store(e, d, row + i);
    sums[k] = hn::Add(sums[k], io.OnlyValid(d, e));
  });
  return Total(sums);
}

HWY_INLINE void ScaleRow(float* HWY_RESTRICT row, size_t n, float factor) {
  const DF d;
  const VF f = hn::Set(d, factor);
  Sweep(n,
        [&](size_t i, auto io) HWY_ATTR { io.Store(hn::Mul(io.Load(d, row + i), f), d, row + i); });
}

// Turns scores into unnormalised probabilities relative to each row's running maximum, and keeps
// the running maximum, sum and result (`out`, scaled down when the maximum grows) of each row in
// step.
void OnlineSoftmax(const ScoreTile& tile, bool first, const TileDropout& dropout, float* maxima,
                   float* sums, float* out, int64_t out_stride, int64_t head_dim) {
  HWY_ALIGN float multipliers[kTile];
  for (int64_t r = 0; r < tile.rows; ++r) {
    float* row = tile.data + r * kTile;
    const auto hidden = static_cast<size_t>(tile.hidden(r)),
               seen = static_cast<size_t>(tile.visible(r));
    std::fill(row, row + hidden, 0.0f);
    std::fill(row + seen, row + tile.cols, 0.0f);
    if (seen == hidden) continue;
    const float top = std::max(maxima[r], RowMax(row + hidden, seen - hidden));
    const float shrink = first ? 0.0f : std::exp(maxima[r] - top);
    sums[r] = sums[r] * shrink + ExpRow(row + hidden, seen - hidden, top);
    maxima[r] = top;
    if (!first && shrink != 1.0f)
      ScaleRow(out + r * out_stride, static_cast<size_t>(head_dim), shrink);
    if (dropout.rate > 0) {
      KeepMask(dropout.key, dropout.sample, dropout.rate)
          .FillMultipliers(dropout.first + static_cast<uint64_t>(r) * dropout.row_step, seen,
                           multipliers);
      for (size_t i = hidden; i < seen; ++i) row[i] *= multipliers[i];
    }
  }
}

// out[r] /= sums[r]; lse[r] = maximum + log(sum).
void FinishRows(int64_t rows, const float* maxima, const float* sums, float* out,
                int64_t out_stride, int64_t head_dim, float* lse) {
  for (int64_t r = 0; r < rows; ++r) {
    ScaleRow(out + r * out_stride, static_cast<size_t>(head_dim), 1.0f / sums[r]);
    lse[r] = maxima[r] + std::log(sums[r]);
  }
}

void ScaleTile(float* tile, int64_t rows, int64_t cols, float factor) {
  for (int64_t r = 0; r < rows; ++r) ScaleRow(tile + r * kTile, static_cast<size_t>(cols), factor);
}

void CapTile(float* tile, int64_t rows, int64_t cols, float cap) {
  const DF d;
  const VF times = hn::Set(d, cap), inverse = hn::Set(d, 1.0f / cap);
  for (int64_t r = 0; r < rows; ++r)
    Sweep(static_cast<size_t>(cols), [&](size_t i, auto io) HWY_ATTR {
      const VF x = io.Load(d, tile + r * kTile + i);
      io.Store(hn::Mul(times, Tanh(d, hn::Mul(x, inverse))), d, tile + r * kTile + i);
    });
}

// Scores fall by the slope for each column that lies before the row's own.
void BiasTile(const ScoreTile& tile, float slope) {
  const DF d;
  const VF factor = hn::Set(d, slope);
  for (int64_t r = 0; r < tile.rows; ++r) {
    float* row = tile.data + r * kTile;
    const int64_t own = tile.visible_in_row0 + r - 1;
    Sweep(static_cast<size_t>(tile.cols), [&](size_t i, auto io) HWY_ATTR {
      const VF behind = hn::Iota(d, static_cast<float>(static_cast<int64_t>(i) - own));
      io.Store(hn::MulAdd(factor, behind, io.Load(d, row + i)), d, row + i);
    });
  }
}

// A tile as the sum of kParts of bf16, which follow each other in `parts`, each as wide as it.
void SplitTile(const float* tile, int64_t rows, int64_t cols, Bf16* parts) {
  const DF d;
  for (int64_t r = 0; r < rows; ++r)
    Sweep(static_cast<size_t>(cols), [&](size_t i, auto io) HWY_ATTR {
      VF rest = io.Load(d, tile + r * kTile + i);
      for (int part = 0; part < kParts; ++part) {
        const auto bits = Narrowed(d, rest, Bf16());
        io.StoreBits(bits, d, parts + (part * kTile + r) * kTile + static_cast<int64_t>(i));
        rest = hn::Sub(rest, Widened(d, bits, Bf16()));
      }
    });
}

// dots[r] = a[r] · b[r]
template <class T>
HWY_INLINE void RowDotsOf(const T* a, int64_t a_stride, const T* b, int64_t b_stride, int64_t rows,
                          size_t n, float* dots) {
  const DF d;
  for (int64_t r = 0; r < rows; ++r) {
    VF sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    SweepBy4(n, [&](size_t i, auto io, auto k) HWY_ATTR {
      sums[k] =
          hn::MulAdd(io.Load(d, a + r * a_stride + i), io.Load(d, b + r * b_stride + i), sums[k]);
    });
    dots[r] = Total(sums);
  }
}

void RowDots(const Tensor& a, const Tensor& b, float* dots) {
  with_type(a.dtype, "attention", [&](auto type) HWY_ATTR {
    using T = decltype(type);
    RowDotsOf<T>(a.as<T>(), a.stride, b.as<T>(), b.stride, a.rows, static_cast<size_t>(a.cols),
                 dots);
  });
}

// Scores become probabilities (with dropout's multipliers: what the values were weighted with), and
// `gradient`, given as dout · values', becomes the gradient of the unscaled scores, before they
// were capped.
void BackwardTile(const ScoreTile& tile, float* gradient, const float* lse, const float* delta,
                  float scale, float cap, const TileDropout& dropout) {
  const DF d;
  HWY_ALIGN float multipliers[kTile];
  for (int64_t r = 0; r < tile.rows; ++r) {
    float* HWY_RESTRICT p = tile.data + r * kTile;
    float* HWY_RESTRICT g = gradient + r * kTile;
    const auto hidden = static_cast<size_t>(tile.hidden(r)),
               seen = static_cast<size_t>(tile.visible(r));
    std::fill(p, p + hidden, 0.0f);
    std::fill(g, g + hidden, 0.0f);
    std::fill(p + seen, p + tile.cols, 0.0f);
    std::fill(g + seen, g + tile.cols, 0.0f);
    const VF shift = hn::Set(d, lse[r]), dot = hn::Set(d, delta[r]), factor = hn::Set(d, scale);
    if (dropout.rate > 0)
      KeepMask(dropout.key, dropout.sample, dropout.rate)
          .FillMultipliers(dropout.first + static_cast<uint64_t>(r) * dropout.row_step, seen,
                           multipliers);
    Sweep(seen - hidden, [&](size_t k, auto io) HWY_ATTR {
      const size_t i = hidden + k;
      const VF score = io.Load(d, p + i);
      VF probability = Exp(d, hn::Sub(score, shift));
      VF dprobability = io.Load(d, g + i);
      VF weight = probability;
      if (dropout.rate > 0) {
        const VF multiplier = io.Load(d, multipliers + i);
        weight = hn::Mul(weight, multiplier);
        dprobability = hn::Mul(dprobability, multiplier);
      }
      io.Store(weight, d, p + i);
      VF dscore = hn::Mul(hn::Mul(probability, hn::Sub(dprobability, dot)), factor);
      if (cap > 0) {
        const VF share = hn::Mul(score, hn::Set(d, 1.0f / cap));
        dscore = hn::NegMulAdd(hn::Mul(share, share), dscore, dscore);
      }
      io.Store(dscore, d, g + i);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/cpu/bf16_unit.h"
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/sgemm.h"

namespace onefold::cpu {
namespace {

HWY_EXPORT(OnlineSoftmax);
HWY_EXPORT(FinishRows);
HWY_EXPORT(ScaleTile);
HWY_EXPORT(CapTile);
HWY_EXPORT(BiasTile);
HWY_EXPORT(SplitTile);
HWY_EXPORT(RowDots);
HWY_EXPORT(BackwardTile);

// One head's rows of a [batch*length, heads*head_dim] tensor.
Tensor head_of(const Tensor& t, int64_t first_row, int64_t rows, int64_t head, int64_t head_dim) {
  return t.row_range(first_row, rows).col_range(head * head_dim, head_dim);
}

// Rows as floats: where they lie, or in `room` if they are of 16 bits.
struct Rows {
  float* data;
  int64_t stride;
};

Rows in_room(const Tensor& rows, float* room) {
  return rows.dtype == DType::f32 ? Rows{rows.f32(), rows.stride} : Rows{room, rows.cols};
}
Rows read(const Tensor& rows, float* room) {
  if (rows.dtype != DType::f32) widen_rows(rows, room, rows.cols);
  return in_room(rows, room);
}
// What was summed in `room` goes where it belongs.
void write(const Tensor& rows, const float* room) {
  if (rows.dtype != DType::f32) narrow_rows(room, rows.cols, rows);
}

// Hands out parts of a thread's scratch.
struct Scratch {
  float* next;
  float* take(int64_t elems) { return std::exchange(next, next + elems); }
};

// Floats of rows of 16 bits of one head, in whole vectors; none for f32.
int64_t room_for(const AttentionShape& s, int64_t rows) {
  return s.dtype == DType::f32 ? 0 : ceil_div(rows * s.head_dim, 16) * 16;
}

// Rows of one head that are multiplied: as floats, or as they are for the processor's bf16
// instructions.
struct Operand {
  Tensor tensor;
  Rows floats;
};

// The products of tiles: of floats, by the library, or of bf16, by the processor's instructions.
class TileProducts {
 public:
  // Floats of scratch.
  static int64_t elems(const AttentionShape& s, bool on_unit) {
    return on_unit && s.dtype == DType::bf16 ? (2 * packed_tile(s) + kParts * kTile * kTile) / 2
                                             : 0;
  }

  TileProducts(const AttentionShape& s, Scratch& scratch)
      : on_unit_(s.dtype == DType::bf16 && has_bf16_tiles()),
        a_(reinterpret_cast<Bf16*>(scratch.take(elems(s, on_unit_)))),
        b_(a_ + packed_tile(s)),
        parts_(b_ + packed_tile(s)) {}

  Operand operand(const Tensor& rows, float* room) const {
    return {rows, on_unit_ ? Rows{} : read(rows, room)};
  }

  // scores [a's rows, b's rows] = factor * a · b'
  void score(float factor, const Operand& a, const Operand& b, float* scores) const {
    const int64_t rows = a.tensor.rows, cols = b.tensor.rows, hd = a.tensor.cols;
    if (!on_unit_)
      return sgemm(false, true, rows, cols, hd, factor, a.floats.data, a.floats.stride,
                   b.floats.data, b.floats.stride, 0, scores, kTile);
    unit_pack(Side::b, b.tensor.as<Bf16>(), b.tensor.stride, false, cols, hd, b_);
    unit_multiply(lines_of(a.tensor.as<Bf16>(), a.tensor.stride, rows, hd), b_, rows, cols, hd,
                  false, scores, kTile);
    if (factor != 1) HWY_DYNAMIC_DISPATCH(ScaleTile)(scores, rows, cols, factor);
  }

  // A tile of floats that weigh() is then called for.
  void take(const ScoreTile& tile, const float* data) const {
    if (on_unit_) HWY_DYNAMIC_DISPATCH(SplitTile)(data, tile.rows, tile.cols, parts_);
  }

  // dst (+)= the tile, or its transpose, · b
  void weigh(const ScoreTile& tile, const float* data, bool transposed, const Operand& b, bool onto,
             const Rows& dst) const {
    const int64_t hd = b.tensor.cols, rows = transposed ? tile.cols : tile.rows,
                  terms = transposed ? tile.rows : tile.cols;
    if (!on_unit_)
      return sgemm(transposed, false, rows, hd, terms, 1, data, kTile, b.floats.data,
                   b.floats.stride, onto ? 1.0f : 0.0f, dst.data, dst.stride);
    unit_pack(Side::b, b.tensor.as<Bf16>(), b.tensor.stride, true, hd, terms, b_);
    for (int part = 0; part < kParts; ++part) {
      const Bf16* const x = parts_ + part * kTile * kTile;
      if (transposed) unit_pack(Side::a, x, kTile, true, rows, terms, a_);
      unit_multiply(transposed ? packed_lines(a_, terms) : lines_of(x, kTile, rows, terms), b_,
                    rows, hd, terms, onto || part > 0, dst.data, dst.stride);
    }
  }

 private:
  // Where they are if they are whole, else packed.
  LinesOfA lines_of(const Bf16* x, int64_t stride, int64_t rows, int64_t terms) const {
    if (rows % kPackedLines == 0 && terms % kPackedTerms == 0) return rows_as_lines(x, stride);
    unit_pack(Side::a, x, stride, false, rows, terms, a_);
    return packed_lines(a_, terms);
  }

  static int64_t packed_tile(const AttentionShape& s) {
    return std::max(packed_elems(kTile, kTile), packed_elems(s.head_dim, kTile));
  }

  bool on_unit_;
  Bf16 *a_, *b_, *parts_;
};

TileDropout tile_dropout(const Dropout& dropout, const AttentionShape& s, int64_t b, int64_t h,
                         int64_t query, int64_t key) {
  if (dropout.rate == 0) return {};
  return {dropout.rate, dropout.key, dropout.samples.i64()[b],
          static_cast<uint64_t>(((s.first_head + h) * s.query_length + query) * s.key_length + key),
          static_cast<uint64_t>(s.key_length)};
}

// The starts of a sequence's rows from `row` on, or null.
const int32_t* starts_from(const AttentionShape& s, int64_t b, int64_t row) {
  return s.starts.empty() ? nullptr : s.starts.i32() + b * s.query_length + row;
}

void forward_query_tile(const AttentionShape& s, int64_t b, int64_t h, Range queries, Tensor q,
                        Tensor k, Tensor v, Tensor out, Tensor lse, const Dropout& dropout,
                        Scratch scratch) {
  const int64_t hd = s.head_dim, kv_head = h / (s.heads / s.kv_heads),
                offset = s.key_length - s.query_length, rows = queries.size();
  const int64_t first_query = b * s.query_length + queries.begin;
  const Tensor keys = head_of(k, b * s.key_length, s.key_length, kv_head, hd),
               values = head_of(v, b * s.key_length, s.key_length, kv_head, hd),
               target = head_of(out, first_query, rows, h, hd);
  float *scores = scratch.take(kTile * kTile), *key_room = scratch.take(room_for(s, kTile)),
        *value_room = scratch.take(room_for(s, kTile)),
        *result_room = scratch.take(room_for(s, kTile)),
        *query_room = scratch.take(room_for(s, kTile));
  const TileProducts products(s, scratch);
  const Operand query = products.operand(head_of(q, first_query, rows, h, hd), query_room);
  const Rows result = in_room(target, result_room);
  const float scale = s.score_scale();
  float maxima[kTile], sums[kTile];
  std::fill_n(maxima, kTile, -std::numeric_limits<float>::infinity());
  std::fill_n(sums, kTile, 0.0f);
  const int64_t last_key = s.causal ? queries.end + offset : s.key_length;
  // No row sees a key before the first row's document and window: starts grow along a sequence.
  const int32_t* starts = starts_from(s, b, queries.begin);
  const int64_t first_key =
      std::max<int64_t>(starts ? starts[0] : 0, s.first_in_window(queries.begin)) / kTile * kTile;
  for (int64_t key = first_key; key < last_key; key += kTile) {
    const int64_t cols = std::min(kTile, last_key - key);
    const ScoreTile tile{scores, rows, cols,    s.causal ? queries.begin + offset - key + 1 : cols,
                         starts, key,  s.window};
    const Operand key_tile = products.operand(keys.row_range(key, tile.cols), key_room),
                  value_tile = products.operand(values.row_range(key, tile.cols), value_room);
    products.score(scale, query, key_tile, scores);
    if (s.soft_cap > 0) HWY_DYNAMIC_DISPATCH(CapTile)(scores, rows, tile.cols, s.soft_cap);
    if (s.alibi > 0) HWY_DYNAMIC_DISPATCH(BiasTile)(tile, s.alibi_slope(h));
    HWY_DYNAMIC_DISPATCH(OnlineSoftmax)
    (tile, key == first_key, tile_dropout(dropout, s, b, h, queries.begin, key), maxima, sums,
     result.data, result.stride, hd);
    products.take(tile, scores);
    products.weigh(tile, scores, false, value_tile, key > first_key, result);
  }
  HWY_DYNAMIC_DISPATCH(FinishRows)
  (rows, maxima, sums, result.data, result.stride, hd,
   lse.f32() + (b * s.heads + h) * lse.stride + queries.begin);
  write(target, result_room);
}

struct BackwardTensors {
  Tensor q, k, v, out, dout, lse, dq, dk, dv;
};

// What a thread needs beside tiles of operands: two tiles of scores, a number for each query, and
// for results of 16 bits their sums: dq's of a head, and dk's and dv's of a tile of keys, or of all
// keys where several heads add to them.
struct BackwardScratch {
  float *scores, *gradient, *delta;
  float *q, *dout, *k, *v;  // a tile of each
  float *dq, *dk, *dv;
  TileProducts products;

  static int64_t key_rows(const AttentionShape& s) {
    return s.heads == s.kv_heads ? kTile : s.key_length;
  }
  static int64_t delta_elems(const AttentionShape& s) { return ceil_div(s.query_length, 16) * 16; }
  static int64_t elems(const AttentionShape& s, bool on_unit) {
    return 2 * kTile * kTile + delta_elems(s) + 4 * room_for(s, kTile) +
           room_for(s, s.query_length) + 2 * room_for(s, key_rows(s)) +
           TileProducts::elems(s, on_unit);
  }
  BackwardScratch(const AttentionShape& s, Scratch all)
      : scores(all.take(kTile * kTile)),
        gradient(all.take(kTile * kTile)),
        delta(all.take(delta_elems(s))),
        q(all.take(room_for(s, kTile))),
        dout(all.take(room_for(s, kTile))),
        k(all.take(room_for(s, kTile))),
        v(all.take(room_for(s, kTile))),
        dq(all.take(room_for(s, s.query_length))),
        dk(all.take(room_for(s, key_rows(s)))),
        dv(all.take(room_for(s, key_rows(s)))),
        products(s, all) {}
};

// One head's tensors, and the key head's that it reads.
struct BackwardHead {
  Tensor q, k, v, out, dout, dq, dk, dv;
  const float* lse;

  BackwardHead(const AttentionShape& s, int64_t b, int64_t h, const BackwardTensors& t) {
    const int64_t kv_head = h / (s.heads / s.kv_heads);
    const auto of = [&](const Tensor& x) {
      return head_of(x, b * s.query_length, s.query_length, h, s.head_dim);
    };
    const auto of_keys = [&](const Tensor& x) {
      return head_of(x, b * s.key_length, s.key_length, kv_head, s.head_dim);
    };
    q = of(t.q), out = of(t.out), dout = of(t.dout), dq = of(t.dq);
    k = of_keys(t.k), v = of_keys(t.v), dk = of_keys(t.dk), dv = of_keys(t.dv);
    lse = t.lse.f32() + (b * s.heads + h) * t.lse.stride;
  }
};

// All tiles of one query head against its key head, which is the `member`-th of its group: the
// first starts the sums of dk and dv, and the last ends them.
void backward_head(const AttentionShape& s, int64_t b, int64_t h, int64_t member,
                   const BackwardTensors& tensors, const Dropout& dropout,
                   const BackwardScratch& room) {
  const BackwardHead t(s, b, h, tensors);
  const int64_t length = s.query_length, group = s.heads / s.kv_heads;
  const float scale = s.score_scale();
  HWY_DYNAMIC_DISPATCH(RowDots)(t.dout, t.out, room.delta);
  for (int64_t key = 0; key < s.key_length; key += kTile) {
    const int64_t cols = std::min(kTile, s.key_length - key),
                  sum = group == 1 ? 0 : room_for(s, key), first_query = s.causal ? key : 0;
    const Tensor dk_tile = t.dk.row_range(key, cols), dv_tile = t.dv.row_range(key, cols);
    const TileProducts& products = room.products;
    const Operand k = products.operand(t.k.row_range(key, cols), room.k),
                  v = products.operand(t.v.row_range(key, cols), room.v);
    const Rows dk = in_room(dk_tile, room.dk + sum), dv = in_room(dv_tile, room.dv + sum);
    for (int64_t query = first_query; query < length; query += kTile) {
      const int64_t rows = std::min(kTile, length - query);
      const int64_t first_key = s.first_in_window(query);
      if (first_key >= key + cols) break;  // windows of later queries begin later
      const ScoreTile tile{
          room.scores, rows,    cols, s.causal ? query - key + 1 : cols, starts_from(s, b, query),
          key,         s.window};
      const bool onto_keys = member > 0 || query > first_query, onto_queries = key > first_key;
      const Operand q = products.operand(t.q.row_range(query, rows), room.q),
                    dout = products.operand(t.dout.row_range(query, rows), room.dout);
      const Rows dq = in_room(t.dq.row_range(query, rows), room.dq + room_for(s, query));
      products.score(scale, q, k, room.scores);
      products.score(1, dout, v, room.gradient);
      if (s.soft_cap > 0) HWY_DYNAMIC_DISPATCH(CapTile)(room.scores, rows, cols, s.soft_cap);
      if (s.alibi > 0) HWY_DYNAMIC_DISPATCH(BiasTile)(tile, s.alibi_slope(h));
      HWY_DYNAMIC_DISPATCH(BackwardTile)
      (tile, room.gradient, t.lse + query, room.delta + query, scale, s.soft_cap,
       tile_dropout(dropout, s, b, h, query, key));
      products.take(tile, room.scores);
      products.weigh(tile, room.scores, true, dout, onto_keys, dv);
      products.take(tile, room.gradient);
      products.weigh(tile, room.gradient, false, k, onto_queries, dq);
      products.weigh(tile, room.gradient, true, q, onto_keys, dk);
    }
    if (member == group - 1) {
      write(dk_tile, dk.data);
      write(dv_tile, dv.data);
    }
  }
  write(t.dq, room.dq);
}

// All of the shape's type, or empty.
void check_types(const AttentionShape& s, std::initializer_list<Tensor> tensors) {
  for (const Tensor& t : tensors)
    if (t.dtype != s.dtype)
      throw TypeError(
          fmt::format("attention: {} beside {}", dtype_name(t.dtype), dtype_name(s.dtype)));
}

// q, k, v of the shape, and scratch as large as its twin says.
void check(const AttentionShape& s, Tensor q, Tensor k, Tensor v, const Dropout& dropout,
           Tensor scratch, int64_t needed) {
  require(s.dtype == DType::f32 || s.dtype == DType::bf16 || s.dtype == DType::f16,
          "attention takes no tensor of {}", dtype_name(s.dtype));
  require(s.heads > 0 && s.kv_heads > 0 && s.heads % s.kv_heads == 0,
          "attention: {} heads over {} key heads", s.heads, s.kv_heads);
  require(q.rows == s.batch * s.query_length && q.cols == s.heads * s.head_dim,
          "attention: queries of {}x{}", q.rows, q.cols);
  for (const Tensor& t : {k, v})
    require(t.rows == s.batch * s.key_length && t.cols == s.kv_heads * s.head_dim,
            "attention: keys or values of {}x{}", t.rows, t.cols);
  require(s.causal ? s.query_length <= s.key_length
                   : s.starts.empty() && s.window == 0 && dropout.rate == 0,
          "attention: {} queries over {} keys", s.query_length, s.key_length);
  require(s.starts.empty() || (s.starts.elems() == q.rows && s.query_length == s.key_length),
          "attention: the starts of {} rows for {} queries over {} keys", s.starts.elems(), q.rows,
          s.key_length);
  require(s.window >= 0 && s.soft_cap >= 0, "attention: a window of {} and scores up to {}",
          s.window, s.soft_cap);
  require(
      s.alibi == 0 || (s.alibi > 0 && s.soft_cap == 0 && s.first_head + s.heads <= s.alibi_heads),
      "attention: a bias of {} for heads {} to {} of {}, with scores up to {}", s.alibi,
      s.first_head, s.first_head + s.heads, s.alibi_heads, s.soft_cap);
  require(dropout.rate >= 0 && dropout.rate < 1, "attention: dropout rate {}", dropout.rate);
  require(scratch.elems() >= needed, "attention: scratch of {} bytes, {} needed", scratch.elems(),
          needed);
}

// In elements of f32.
int64_t forward_scratch_of_thread(const AttentionShape& s, bool on_unit) {
  return kTile * kTile + 4 * room_for(s, kTile) + TileProducts::elems(s, on_unit);
}

}  // namespace

int64_t attention_forward_scratch_bytes(const AttentionShape& s, int threads, bool on_unit) {
  return threads * forward_scratch_of_thread(s, on_unit) * 4;
}

int64_t attention_backward_scratch_bytes(const AttentionShape& s, int threads, bool on_unit) {
  return threads * BackwardScratch::elems(s, on_unit) * 4;
}

void attention_forward(ThreadPool& pool, const AttentionShape& s, Tensor q, Tensor k, Tensor v,
                       Tensor out, Tensor lse, const Dropout& dropout, Tensor scratch) {
  const bool on_unit = has_bf16_unit();
  check(s, q, k, v, dropout, scratch, attention_forward_scratch_bytes(s, pool.threads(), on_unit));
  check_types(s, {q, k, v, out});
  const Chunks tiles{s.query_length, kTile};
  pool.run(s.batch * s.heads * tiles.count(), [&](int64_t chunk, int thread) {
    // The last tiles see the most keys: hand them out first, so that no thread is left with a long
    // one at the end.
    const int64_t tile = tiles.count() - 1 - chunk / (s.batch * s.heads),
                  rest = chunk % (s.batch * s.heads);
    forward_query_tile(s, rest / s.heads, rest % s.heads, tiles[tile], q, k, v, out, lse, dropout,
                       {scratch.as_f32() + thread * forward_scratch_of_thread(s, on_unit)});
  });
}

void attention_backward(ThreadPool& pool, const AttentionShape& s, Tensor q, Tensor k, Tensor v,
                        Tensor out, Tensor dout, Tensor lse, Tensor dq, Tensor dk, Tensor dv,
                        const Dropout& dropout, Tensor scratch) {
  require(!s.causal || s.query_length == s.key_length, "attention backward over a cache");
  const bool on_unit = has_bf16_unit();
  check(s, q, k, v, dropout, scratch, attention_backward_scratch_bytes(s, pool.threads(), on_unit));
  check_types(s, {q, k, v, out, dout, dq, dk, dv});
  const BackwardTensors tensors{q, k, v, out, dout, lse, dq, dk, dv};
  const int64_t group = s.heads / s.kv_heads;
  pool.run(s.batch * s.kv_heads, [&](int64_t chunk, int thread) {
    const int64_t b = chunk / s.kv_heads, kv_head = chunk % s.kv_heads;
    const BackwardScratch mine(s, {scratch.as_f32() + thread * BackwardScratch::elems(s, on_unit)});
    for (int64_t member = 0; member < group; ++member)
      backward_head(s, b, kv_head * group + member, member, tensors, dropout, mine);
  });
}

}  // namespace onefold::cpu
#endif
