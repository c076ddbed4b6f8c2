// How work is cut into chunks for the thread pool. What is summed is cut by shape alone, never by
// the number of threads: sums over rows have one partial result for each row chunk, added up in
// chunk order, so their bits are the same on any number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/cpu/types.h"

namespace onefold::cpu {

// Elements of a chunk: long enough (128 KiB of f32) to hide the cost of handing it out, short
// enough to balance a few megabytes over many cores.
inline constexpr int64_t kChunkElems = 32 * 1024;

// And the least that is worth handing out.
inline constexpr int64_t kLeastElems = 4 * 1024;

// A piece of a row begins at a multiple of this: of a cache line's elements, and of a block of
// 8-bit codes.
inline constexpr int64_t kPieceElems = 1024;

inline constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// [0, total) in pieces of `size`, the last one shorter.
struct Chunks {
  int64_t total, size;
  int64_t count() const { return ceil_div(total, size); }
  Range operator[](int64_t i) const { return {i * size, std::min(total, (i + 1) * size)}; }
};

// [0, total) in pieces of at most `most` and a multiple of `unit`, as many for each thread: where
// each element or row is computed on its own, bits do not depend on the cut.
inline Chunks even_chunks(const ThreadPool& pool, int64_t total, int64_t most, int64_t unit = 1) {
  const int64_t rounds = std::max<int64_t>(1, ceil_div(total, most * pool.threads()));
  const int64_t size = ceil_div(ceil_div(total, rounds * pool.threads()), unit) * unit;
  return {total, std::max(unit, size)};
}

// Whole rows, at most about kChunkElems elements in each chunk: for kernels that treat each row on
// its own.
inline Chunks row_chunks(const ThreadPool& pool, int64_t rows, int64_t cols) {
  const auto of_elems = [&](int64_t elems) {
    return std::max<int64_t>(1, elems / std::max<int64_t>(1, cols));
  };
  const Chunks even = even_chunks(pool, rows, of_elems(kChunkElems));
  return {rows, std::max(even.size, of_elems(kLeastElems))};
}

// Row chunks for a sum over rows: at most 64 partial results, and at least 16 rows behind each so
// that adding up the partials stays a small part of the work.
inline Chunks sum_chunks(int64_t rows) { return {rows, std::max<int64_t>(16, ceil_div(rows, 64))}; }

// Calls work(row, begin, end) for pieces that cover [rows, cols], from many threads. Long rows are
// cut into several pieces, short ones are taken together: only for elementwise kernels, whose bits
// do not depend on the cuts.
template <typename Work>
void for_each_piece(ThreadPool& pool, int64_t rows, int64_t cols, const Work& work) {
  if (rows == 0 || cols == 0) return;
  const Chunks columns =
      rows == 1 ? even_chunks(pool, cols, kChunkElems, kPieceElems) : Chunks{cols, kChunkElems};
  const Chunks bands = row_chunks(pool, rows, cols);
  pool.run(bands.count() * columns.count(), [&](int64_t chunk, int) {
    const Range band = bands[chunk / columns.count()];
    const Range piece = columns[chunk % columns.count()];
    for (int64_t row = band.begin; row < band.end; ++row) work(row, piece.begin, piece.end);
  });
}

// dst (+)= the sum over chunks of their partial results, in chunk order. Partials are `spacing`
// apart.
inline void add_partials(ThreadPool& pool, const float* partials, int64_t chunks, int64_t spacing,
                         bool accumulate, Tensor dst) {
  constexpr int64_t kColumns = 1024;
  const Chunks columns{dst.elems(), kColumns};
  pool.run(columns.count(), [&](int64_t piece, int) {
    const Range range = columns[piece];
    float sums[kColumns] = {};
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const float* partial = partials + chunk * spacing + range.begin;
      for (int64_t i = 0; i < range.size(); ++i) sums[i] += partial[i];
    }
    with_type(dst.dtype, "a sum over rows", [&](auto type) {
      using T = decltype(type);
      T* out = dst.as<T>() + range.begin;
      for (int64_t i = 0; i < range.size(); ++i)
        out[i] = narrowed<T>(accumulate ? widened(out[i]) + sums[i] : sums[i]);
    });
  });
}

}  // namespace onefold::cpu
