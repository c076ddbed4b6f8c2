// Causal attention in tiles of queries by keys: scores exist for one tile at a time, so memory
// grows with the sequence, not with its square. Products are the library's on 128x128 tiles (90 %
// of its large-matrix rate; 64x64 gets 65 %), the softmax between them is ours, on a tile that is
// still in cache.
//
// Forward shares out (sequence, head, query tile), with the online softmax of FlashAttention.
// Backward shares out (sequence, key head) and walks its tiles in order: gradients of keys and
// values are summed over queries and over the heads of a group without partial buffers. Where these
// are too few pieces, a group's heads are divided too, with sums of their own (GroupParts).
//
// Tensors of 16 bits are widened tile by tile into a thread's scratch, where results are summed in
// floats and rounded once. On a matrix unit tensors of bf16 have an attention of their own
// (attention_unit.h).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "kernels/cpu/attention_heads.h"
#include "kernels/cpu/attention_unit.h"
#include "kernels/cpu/bf16_unit.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/sgemm.h"

namespace onefold::cpu {
namespace {

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

// Floats of rows of 16 bits of one head, in whole vectors; none for f32.
int64_t room_for(const AttentionShape& s, int64_t rows) {
  return s.dtype == DType::f32 ? 0 : ThreadScratch::whole(rows * s.head_dim);
}

// The tile's scores = factor * a · b'
void score(const ScoreTile& tile, float factor, const Rows& a, const Rows& b, int64_t head_dim,
           float* dst) {
  sgemm(false, true, tile.rows, tile.cols, head_dim, factor, a.data, a.stride, b.data, b.stride, 0,
        dst, kTile);
}

// dst (+)= what the tile holds, or its transpose, · b
void weigh(const ScoreTile& tile, const float* data, bool transposed, const Rows& b,
           int64_t head_dim, bool onto, const Rows& dst) {
  sgemm(transposed, false, transposed ? tile.cols : tile.rows, head_dim,
        transposed ? tile.rows : tile.cols, 1, data, kTile, b.data, b.stride, onto ? 1.0f : 0.0f,
        dst.data, dst.stride);
}

void forward_query_tile(const AttentionShape& s, const QueryTile& t, const Dropout& dropout,
                        ThreadScratch scratch) {
  const int64_t hd = s.head_dim, rows = t.queries.size();
  float *scores = scratch.take(kTile * kTile), *key_room = scratch.take(room_for(s, kTile)),
        *value_room = scratch.take(room_for(s, kTile)),
        *result_room = scratch.take(room_for(s, kTile)),
        *query_room = scratch.take(room_for(s, kTile));
  const Rows q = read(t.q, query_room), result = in_room(t.out, result_room);
  float maxima[kTile], sums[kTile];
  std::fill_n(maxima, kTile, -std::numeric_limits<float>::infinity());
  std::fill_n(sums, kTile, 0.0f);
  for (int64_t key = t.first_key; key < t.last_key; key += kTile) {
    const int64_t cols = std::min(kTile, t.last_key - key);
    const ScoreTile tile = score_tile(s, scores, t.batch, t.queries.begin, rows, key, cols);
    const Rows k = read(t.k.row_range(key, cols), key_room),
               v = read(t.v.row_range(key, cols), value_room);
    score(tile, s.score_scale(), q, k, hd, scores);
    adjust_scores(s, tile, t.head);
    online_softmax(tile, 1, key == t.first_key,
                   tile_dropout(dropout, s, t.batch, t.head, t.queries.begin, key), maxima, sums,
                   result.data, result.stride, hd);
    weigh(tile, scores, false, v, hd, key > t.first_key, result);
  }
  finish_rows(rows, maxima, sums, result.data, result.stride, hd, t.lse);
  write(t.out, result_room);
}

// What a thread needs beside tiles of operands: two tiles of scores, a number for each query, and
// for results of 16 bits their sums: dq's of a head, and dk's and dv's of a tile of keys, or of all
// keys where several heads add to them.
struct BackwardScratch {
  float *scores, *gradient, *delta;
  float *q, *dout, *k, *v;  // a tile of each
  float *dq, *dk, *dv;

  static int64_t key_rows(const AttentionShape& s) {
    if (group_parts(s).count > 1) return 0;
    return s.heads == s.kv_heads ? kTile : s.key_length;
  }
  // dk's or dv's of a part of a group.
  static int64_t part_elems(const AttentionShape& s) {
    return ThreadScratch::whole(s.key_length * s.head_dim);
  }
  static int64_t elems(const AttentionShape& s) {
    return 2 * kTile * kTile + ThreadScratch::whole(s.query_length) + 4 * room_for(s, kTile) +
           room_for(s, s.query_length) + 2 * room_for(s, key_rows(s));
  }
  BackwardScratch(const AttentionShape& s, ThreadScratch all)
      : scores(all.take(kTile * kTile)),
        gradient(all.take(kTile * kTile)),
        delta(all.take(s.query_length)),
        q(all.take(room_for(s, kTile))),
        dout(all.take(room_for(s, kTile))),
        k(all.take(room_for(s, kTile))),
        v(all.take(room_for(s, kTile))),
        dq(all.take(room_for(s, s.query_length))),
        dk(all.take(room_for(s, key_rows(s)))),
        dv(all.take(room_for(s, key_rows(s)))) {}
};

// All tiles of one query head against its key head. Of the heads that add to the same sums of dk
// and dv, the first starts them; the last rounds them, unless there are other parts' sums.
void backward_head(const AttentionShape& s, const GroupPart& part, int64_t h,
                   const BackwardTensors& tensors, const Dropout& dropout,
                   const BackwardScratch& room) {
  const int64_t b = part.batch;
  const BackwardHead t(s, b, h, tensors);
  const int64_t hd = s.head_dim, group = s.heads / s.kv_heads;
  const float scale = s.score_scale();
  row_dots(t.dout, t.out, room.delta);
  for (int64_t key = 0; key < s.key_length; key += kTile) {
    const int64_t cols = std::min(kTile, s.key_length - key), first_query = s.causal ? key : 0;
    const Tensor dk_tile = t.dk.row_range(key, cols), dv_tile = t.dv.row_range(key, cols);
    const Rows k = read(t.k.row_range(key, cols), room.k),
               v = read(t.v.row_range(key, cols), room.v);
    const auto sums_of = [&](const Tensor& tile, float* sums) {
      if (!part.whole) return Rows{sums + key * hd, hd};
      return in_room(tile, sums + (group == 1 ? 0 : room_for(s, key)));
    };
    const Rows dk = sums_of(dk_tile, room.dk), dv = sums_of(dv_tile, room.dv);
    for (int64_t query = first_query; query < s.query_length; query += kTile) {
      const int64_t rows = std::min(kTile, s.query_length - query);
      const int64_t first_key = s.first_in_window(query);
      if (first_key >= key + cols) break;  // windows of later queries begin later
      const ScoreTile tile = score_tile(s, room.scores, b, query, rows, key, cols);
      const bool onto_keys = h > part.first || query > first_query, onto_queries = key > first_key;
      const Rows q = read(t.q.row_range(query, rows), room.q),
                 dout = read(t.dout.row_range(query, rows), room.dout),
                 dq = in_room(t.dq.row_range(query, rows), room.dq + room_for(s, query));
      score(tile, scale, q, k, hd, room.scores);
      score(tile, 1, dout, v, hd, room.gradient);
      adjust_scores(s, tile, h);
      backward_tile(tile, 1, room.gradient, t.lse + query, room.delta + query, scale, s.soft_cap,
                    tile_dropout(dropout, s, b, h, query, key));
      weigh(tile, room.scores, true, dout, hd, onto_keys, dv);
      weigh(tile, room.gradient, false, k, hd, onto_queries, dq);
      weigh(tile, room.gradient, true, q, hd, onto_keys, dk);
    }
    if (part.whole && h == part.last - 1) {
      write(dk_tile, dk.data);
      write(dv_tile, dv.data);
    }
  }
  write(t.dq, room.dq);
}

// What the parts of a group have summed, as gradients of keys and values.
void write_group_parts(ThreadPool& pool, const AttentionShape& s, const GroupParts& parts,
                       const BackwardTensors& tensors, float* all_sums) {
  const Chunks tiles{s.key_length, kTile};
  const int64_t sums = BackwardScratch::part_elems(s);
  pool.run(s.batch * s.kv_heads * tiles.count(), [&](int64_t chunk, int) {
    const int64_t piece = chunk / tiles.count();
    const Range keys = tiles[chunk % tiles.count()];
    const GroupPart part(s, parts, piece * parts.count);
    const BackwardHead head(s, part.batch, part.first, tensors);
    float* from = all_sums + piece * parts.count * 2 * sums + keys.begin * s.head_dim;
    for (const Tensor& dst : {head.dk, head.dv}) {
      add_group_parts(from, keys.size() * s.head_dim, parts.count, 2 * sums);
      narrow_rows(from, s.head_dim, dst.row_range(keys.begin, keys.size()));
      from += sums;
    }
  });
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
int64_t forward_scratch_of_thread(const AttentionShape& s) {
  return kTile * kTile + 4 * room_for(s, kTile);
}

// Whether a processor with instructions for bf16 might use its unit: plans do not know which.
bool may_use_unit(const AttentionShape& s, bool multiplies_bf16) {
  return multiplies_bf16 && s.dtype == DType::bf16;
}
bool uses_unit(const AttentionShape& s) { return s.dtype == DType::bf16 && has_bf16_tiles(); }

}  // namespace

int64_t attention_forward_scratch_bytes(const AttentionShape& s, int threads, bool on_unit) {
  int64_t elems = forward_scratch_of_thread(s);
  if (may_use_unit(s, on_unit)) elems = std::max(elems, unit_attention_forward_elems(s));
  return threads * elems * 4;
}

int64_t attention_backward_scratch_bytes(const AttentionShape& s, int threads, bool on_unit) {
  const int64_t parts = group_parts(s).count;
  int64_t elems = threads * BackwardScratch::elems(s);
  if (parts > 1) elems += s.batch * s.kv_heads * parts * 2 * BackwardScratch::part_elems(s);
  if (may_use_unit(s, on_unit)) elems = std::max(elems, unit_attention_backward_elems(s, threads));
  return elems * 4;
}

void attention_forward(ThreadPool& pool, const AttentionShape& s, Tensor q, Tensor k, Tensor v,
                       Tensor out, Tensor lse, const Dropout& dropout, Tensor scratch) {
  check(s, q, k, v, dropout, scratch,
        attention_forward_scratch_bytes(s, pool.threads(), has_bf16_unit()));
  check_types(s, {q, k, v, out});
  const ForwardTensors tensors{q, k, v, out, lse};
  if (uses_unit(s)) return unit_attention_forward(pool, s, tensors, dropout, scratch.as_f32());
  const Chunks tiles{s.query_length, kTile};
  pool.run(s.batch * s.heads * tiles.count(), [&](int64_t chunk, int thread) {
    // The last tiles see the most keys: hand them out first, so that no thread is left with a long
    // one at the end.
    const int64_t tile = tiles.count() - 1 - chunk / (s.batch * s.heads),
                  rest = chunk % (s.batch * s.heads);
    forward_query_tile(s, {s, rest / s.heads, rest % s.heads, tiles[tile], tensors}, dropout,
                       {scratch.as_f32() + thread * forward_scratch_of_thread(s)});
  });
}

void attention_backward(ThreadPool& pool, const AttentionShape& s, Tensor q, Tensor k, Tensor v,
                        Tensor out, Tensor dout, Tensor lse, Tensor dq, Tensor dk, Tensor dv,
                        const Dropout& dropout, Tensor scratch) {
  require(!s.causal || s.query_length == s.key_length, "attention backward over a cache");
  check(s, q, k, v, dropout, scratch,
        attention_backward_scratch_bytes(s, pool.threads(), has_bf16_unit()));
  check_types(s, {q, k, v, out, dout, dq, dk, dv});
  const BackwardTensors tensors{q, k, v, out, dout, lse, dq, dk, dv};
  if (uses_unit(s)) return unit_attention_backward(pool, s, tensors, dropout, scratch.as_f32());
  const GroupParts parts = group_parts(s);
  const int64_t sums = BackwardScratch::part_elems(s);
  float* const all_sums = scratch.as_f32() + pool.threads() * BackwardScratch::elems(s);
  pool.run(s.batch * s.kv_heads * parts.count, [&](int64_t chunk, int thread) {
    const GroupPart part(s, parts, chunk);
    BackwardScratch mine(s, {scratch.as_f32() + thread * BackwardScratch::elems(s)});
    if (!part.whole) mine.dk = all_sums + chunk * 2 * sums, mine.dv = mine.dk + sums;
    for (int64_t h = part.first; h < part.last; ++h)
      backward_head(s, part, h, tensors, dropout, mine);
  });
  if (parts.count > 1) write_group_parts(pool, s, parts, tensors, all_sums);
}

}  // namespace onefold::cpu
