// What both kinds of attention, of floats and on a matrix unit, know of a head and its tiles.
#pragma once

#include <utility>

#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/chunk.h"

namespace onefold::cpu {

struct ForwardTensors {
  Tensor q, k, v, out, lse;
};

struct BackwardTensors {
  Tensor q, k, v, out, dout, lse, dq, dk, dv;
};

// Hands out parts of a thread's scratch, each from a multiple of 64 bytes on.
struct ThreadScratch {
  float* next;
  static int64_t whole(int64_t elems) { return ceil_div(elems, 16) * 16; }
  float* take(int64_t elems) { return std::exchange(next, next + whole(elems)); }
};

// One head's rows of a [batch*length, heads*head_dim] tensor.
inline Tensor head_of(const Tensor& t, int64_t first_row, int64_t rows, int64_t head,
                      int64_t head_dim) {
  return t.row_range(first_row, rows).col_range(head * head_dim, head_dim);
}

// A tile of queries of one head, and the keys that any of them sees.
struct QueryTile {
  int64_t batch, head;
  Range queries;
  Tensor q, k, v, out;  // out and q of the tile, k and v of all keys
  float* lse;
  int64_t first_key, last_key;  // the first is a tile's

  QueryTile(const AttentionShape& s, int64_t b, int64_t h, Range of, const ForwardTensors& t)
      : batch(b), head(h), queries(of) {
    const int64_t kv_head = h / (s.heads / s.kv_heads), row = b * s.query_length + of.begin;
    q = head_of(t.q, row, of.size(), h, s.head_dim);
    out = head_of(t.out, row, of.size(), h, s.head_dim);
    k = head_of(t.k, b * s.key_length, s.key_length, kv_head, s.head_dim);
    v = head_of(t.v, b * s.key_length, s.key_length, kv_head, s.head_dim);
    lse = t.lse.f32() + (b * s.heads + h) * t.lse.stride + of.begin;
    // No row sees a key before the first row's document and window: starts grow along a sequence.
    const int64_t document = s.starts.empty() ? 0 : s.starts.i32()[row];
    first_key = std::max(document, s.first_in_window(of.begin)) / kTile * kTile;
    last_key = s.causal ? of.end + s.key_length - s.query_length : s.key_length;
  }
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

// How the query heads of a group are divided where sequences and key heads are too few pieces of
// work for many threads: parts of so many heads sum gradients of keys and values on their own, and
// these sums are added up in order. By shape alone, so that bits do not depend on threads, and
// within a bound of memory.
struct GroupParts {
  int64_t heads, count;
};
inline GroupParts group_parts(const AttentionShape& s) {
  constexpr int64_t kPieces = 64, kMostBytes = int64_t{64} << 20;
  const int64_t group = s.heads / s.kv_heads, pieces = s.batch * s.kv_heads,
                bytes = pieces * s.key_length * s.head_dim * 2 * 4;  // of each part's sums
  const int64_t most = std::min(group, kMostBytes / std::max<int64_t>(1, bytes)),
                wanted = ceil_div(kPieces, std::max<int64_t>(1, pieces)),
                count = std::max<int64_t>(1, std::min(most, wanted));
  const int64_t heads = ceil_div(group, count);
  return {heads, ceil_div(group, heads)};
}

// One part of a group: the heads that it sums over.
struct GroupPart {
  int64_t batch, kv_head, first, last;  // of query heads
  bool whole;                           // the only part

  GroupPart(const AttentionShape& s, const GroupParts& parts, int64_t number) {
    const int64_t piece = number / parts.count, part = number % parts.count,
                  group = s.heads / s.kv_heads;
    batch = piece / s.kv_heads, kv_head = piece % s.kv_heads;
    first = kv_head * group + part * parts.heads;
    last = kv_head * group + std::min(group, (part + 1) * parts.heads);
    whole = parts.count == 1;
  }
};

// Adds what other parts have summed to the first part's sums, in order: `next` elements apart.
inline void add_group_parts(float* sums, int64_t elems, int64_t count, int64_t next) {
  for (int64_t part = 1; part < count; ++part)
    for (int64_t i = 0; i < elems; ++i) sums[i] += sums[part * next + i];
}

// Scores of queries from `query` on by keys from `key` on.
inline ScoreTile score_tile(const AttentionShape& s, float* data, int64_t b, int64_t query,
                            int64_t rows, int64_t key, int64_t cols) {
  return {data,
          rows,
          cols,
          s.causal ? query + s.key_length - s.query_length - key + 1 : cols,
          s.starts.empty() ? nullptr : s.starts.i32() + b * s.query_length + query,
          key,
          s.window};
}

inline TileDropout tile_dropout(const Dropout& dropout, const AttentionShape& s, int64_t b,
                                int64_t h, int64_t query, int64_t key) {
  if (dropout.rate == 0) return {};
  return {dropout.rate, dropout.key, dropout.samples.i64()[b],
          static_cast<uint64_t>(((s.first_head + h) * s.query_length + query) * s.key_length + key),
          static_cast<uint64_t>(s.key_length)};
}

// What is done to scores, as their products left them, before the softmax.
inline void adjust_scores(const AttentionShape& s, const ScoreTile& tile, int64_t h) {
  if (s.soft_cap > 0) cap_tile(tile, s.soft_cap);
  if (s.alibi > 0) bias_tile(tile, s.alibi_slope(h));
}

}  // namespace onefold::cpu
