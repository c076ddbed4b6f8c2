// Token and position embeddings. Backward adds up the rows of each token in row order, on one
// thread for each token, so no two threads write the same row and the bits do not depend on their
// number.
#include <cstring>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/positions.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/embedding.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

void AddRows(const float* a, const float* b, size_t n, float* dst) {
  const DF d;
  Sweep(n, [&](size_t i, auto io)
               HWY_ATTR { io.Store(hn::Add(io.Load(d, a + i), io.Load(d, b + i)), d, dst + i); });
}

// dst (+)= the sum of rows rows[0], rows[1], ... of x, in that order.
void SumRows(const Tensor& x, const int32_t* rows, int64_t count, bool accumulate, float* dst) {
  const DF d;
  const float* base = x.f32();
  Sweep(static_cast<size_t>(x.cols), [&](size_t i, auto io) HWY_ATTR {
    VF sum = accumulate ? io.Load(d, dst + i) : hn::Zero(d);
    for (int64_t r = 0; r < count; ++r)
      sum = hn::Add(sum, io.Load(d, base + rows[r] * x.stride + i));
    io.Store(sum, d, dst + i);
  });
}

// The same for rows first, first + step, ...
void SumStridedRows(const Tensor& x, int64_t first, int64_t step, bool accumulate, float* dst) {
  const DF d;
  const float* base = x.f32();
  Sweep(static_cast<size_t>(x.cols), [&](size_t i, auto io) HWY_ATTR {
    VF sum = accumulate ? io.Load(d, dst + i) : hn::Zero(d);
    for (int64_t row = first; row < x.rows; row += step)
      sum = hn::Add(sum, io.Load(d, base + row * x.stride + i));
    io.Store(sum, d, dst + i);
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
HWY_EXPORT(SumRows);
HWY_EXPORT(SumStridedRows);

int32_t checked_token(const Tensor& tokens, int64_t row, int64_t vocabulary) {
  const int32_t token = tokens.i32()[row];
  require(token >= 0 && token < vocabulary, "embedding: token {} of row {}, vocabulary of {}",
          token, row, vocabulary);
  return token;
}

// Rows by token, in row order within each: the rows of a token are order[ends[token - 1] ..
// ends[token]), with ends[-1] = 0. A counting sort: one thread is enough for vocabulary + rows
// steps.
void sort_rows(const Tensor& tokens, int64_t rows, int64_t vocabulary, int32_t* ends,
               int32_t* order) {
  std::fill_n(ends, vocabulary, 0);
  for (int64_t row = 0; row < rows; ++row) ++ends[checked_token(tokens, row, vocabulary)];
  int32_t begin = 0;
  for (int64_t token = 0; token < vocabulary; ++token) {
    const int32_t count = ends[token];
    ends[token] = begin;  // as yet the place of the token's next row
    begin += count;
  }
  for (int64_t row = 0; row < rows; ++row)
    order[ends[tokens.i32()[row]]++] = static_cast<int32_t>(row);
}

void add_token_gradients(ThreadPool& pool, const Tensor& tokens, const Tensor& dx,
                         const Tensor& dtable, bool accumulate, const Tensor& scratch) {
  const int64_t vocabulary = dtable.rows;
  auto* ends = static_cast<int32_t*>(scratch.data);  // [vocabulary]
  int32_t* order = ends + vocabulary;                // [rows]
  sort_rows(tokens, dx.rows, vocabulary, ends, order);
  const auto sum_rows = HWY_DYNAMIC_DISPATCH(SumRows);
  const Chunks chunks = row_chunks(vocabulary, dtable.cols);
  pool.run(chunks.count(), [&](int64_t chunk, int) {
    const Range range = chunks[chunk];
    for (int64_t token = range.begin; token < range.end; ++token) {
      const int32_t begin = token == 0 ? 0 : ends[token - 1];
      const int32_t count = ends[token] - begin;
      float* dst = dtable.f32() + token * dtable.stride;
      if (count > 0)
        sum_rows(dx, order + begin, count, accumulate, dst);
      else if (!accumulate)
        std::fill_n(dst, dtable.cols, 0.0f);
    }
  });
}

// Where documents begin anywhere: the rows of a position are found by looking at all of them.
void add_document_position_gradients(ThreadPool& pool, const Tensor& dx,
                                     const RowPositions& positions, const Tensor& dpositions,
                                     bool accumulate) {
  const auto add_rows = HWY_DYNAMIC_DISPATCH(AddRows);
  const Chunks chunks = row_chunks(dpositions.rows, dpositions.cols);
  pool.run(chunks.count(), [&](int64_t chunk, int) {
    const Range range = chunks[chunk];
    if (!accumulate)
      for (int64_t position = range.begin; position < range.end; ++position)
        std::fill_n(dpositions.f32() + position * dpositions.stride, dpositions.cols, 0.0f);
    for (int64_t row = 0; row < dx.rows; ++row) {
      const int64_t position = position_of(positions, row);
      if (position < range.begin || position >= range.end) continue;
      float* dst = dpositions.f32() + position * dpositions.stride;
      add_rows(dst, dx.f32() + row * dx.stride, static_cast<size_t>(dx.cols), dst);
    }
  });
}

void add_position_gradients(ThreadPool& pool, const Tensor& dx, const RowPositions& positions,
                            const Tensor& dpositions, bool accumulate) {
  const auto sum_rows = HWY_DYNAMIC_DISPATCH(SumStridedRows);
  const Chunks chunks = row_chunks(dpositions.rows, dpositions.cols);
  pool.run(chunks.count(), [&](int64_t chunk, int) {
    const Range range = chunks[chunk];
    for (int64_t position = range.begin; position < range.end; ++position) {
      float* dst = dpositions.f32() + position * dpositions.stride;
      const int64_t in_sequence = position - positions.first;
      if (in_sequence >= 0 && in_sequence < positions.length)
        sum_rows(dx, in_sequence, positions.length, accumulate, dst);
      else if (!accumulate)
        std::fill_n(dst, dpositions.cols, 0.0f);
    }
  });
}

}  // namespace

void embedding_forward(ThreadPool& pool, Tensor tokens, Tensor table, Tensor position_table,
                       const RowPositions& positions, Tensor dst) {
  require(tokens.elems() == dst.rows && table.cols == dst.cols,
          "embedding: {} tokens and a table of {} columns for {}x{}", tokens.elems(), table.cols,
          dst.rows, dst.cols);
  if (!position_table.empty()) {
    require(position_table.cols == dst.cols, "embedding: positions of {} columns for {}",
            position_table.cols, dst.cols);
    check_positions(positions, dst.rows, position_table.rows);
  }
  const auto add_rows = HWY_DYNAMIC_DISPATCH(AddRows);
  const Chunks chunks = row_chunks(dst.rows, dst.cols);
  pool.run(chunks.count(), [&](int64_t chunk, int) {
    const Range rows = chunks[chunk];
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const float* src = table.f32() + checked_token(tokens, row, table.rows) * table.stride;
      float* out = dst.f32() + row * dst.stride;
      if (position_table.empty())
        std::memcpy(out, src, static_cast<size_t>(dst.cols) * sizeof(float));
      else
        add_rows(src, position_table.f32() + position_of(positions, row) * position_table.stride,
                 static_cast<size_t>(dst.cols), out);
    }
  });
}

void embedding_backward(ThreadPool& pool, Tensor tokens, Tensor dx, const RowPositions& positions,
                        Tensor dtable, bool accumulate_table, Tensor dpositions,
                        bool accumulate_positions, Tensor scratch) {
  require(tokens.elems() == dx.rows && dtable.cols == dx.cols,
          "embedding: {} tokens and a table of {} columns for {}x{}", tokens.elems(), dtable.cols,
          dx.rows, dx.cols);
  require(scratch.elems() >= embedding_backward_scratch_bytes(dx.rows, dtable.rows),
          "embedding: scratch of {}", scratch.elems());
  add_token_gradients(pool, tokens, dx, dtable, accumulate_table, scratch);
  if (dpositions.empty()) return;
  require(dpositions.cols == dx.cols, "embedding: positions of {} columns for {}", dpositions.cols,
          dx.cols);
  check_positions(positions, dx.rows, dpositions.rows);
  if (positions.starts.empty())
    add_position_gradients(pool, dx, positions, dpositions, accumulate_positions);
  else
    add_document_position_gradients(pool, dx, positions, dpositions, accumulate_positions);
}

int64_t embedding_backward_scratch_bytes(int64_t rows, int64_t vocabulary) {
  return (vocabulary + rows) * static_cast<int64_t>(sizeof(int32_t));
}

}  // namespace onefold::cpu
#endif
