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

void AddRows(const Tensor& a, const Tensor& b, const Tensor& dst) {
  with_type(dst.dtype, "embedding", [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const DF d;
    const T *x = a.as<T>(), *y = b.as<T>();
    T* sum = dst.as<T>();
    Sweep(static_cast<size_t>(dst.cols), [&](size_t i, auto io) HWY_ATTR {
      io.Store(hn::Add(io.Load(d, x + i), io.Load(d, y + i)), d, sum + i);
    });
  });
}

// dst (+)= the sum of `count` rows of x, row_of(0), row_of(1), ..., in that order.
template <class T, class G, class RowOf>
HWY_INLINE void SumRowsTo(const T* x, int64_t stride, size_t n, int64_t count, const RowOf& row_of,
                          bool accumulate, G* dst) {
  const DF d;
  Sweep(n, [&](size_t i, auto io) HWY_ATTR {
    VF sum = accumulate ? io.Load(d, dst + i) : hn::Zero(d);
    for (int64_t r = 0; r < count; ++r) sum = hn::Add(sum, io.Load(d, x + row_of(r) * stride + i));
    io.Store(sum, d, dst + i);
  });
}

template <class RowOf>
HWY_INLINE void SumTypedRows(const Tensor& x, int64_t count, const RowOf& row_of, bool accumulate,
                             const Tensor& dst) {
  with_type(x.dtype, "embedding", [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const auto n = static_cast<size_t>(x.cols);
    if (dst.dtype == DType::f32)
      SumRowsTo(x.as<T>(), x.stride, n, count, row_of, accumulate, dst.f32());
    else
      SumRowsTo(x.as<T>(), x.stride, n, count, row_of, accumulate, dst.as<T>());
  });
}

// dst (+)= the sum of rows rows[0], rows[1], ... of x.
void SumRows(const Tensor& x, const int32_t* rows, int64_t count, bool accumulate,
             const Tensor& dst) {
  SumTypedRows(
      x, count, [=](int64_t r) HWY_ATTR { return int64_t{rows[r]}; }, accumulate, dst);
}

// The same for rows first, first + step, ...
void SumStridedRows(const Tensor& x, int64_t first, int64_t step, bool accumulate,
                    const Tensor& dst) {
  SumTypedRows(
      x, ceil_div(x.rows - first, step), [=](int64_t r) HWY_ATTR { return first + r * step; },
      accumulate, dst);
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

int32_t checked_token(const Tensor& tokens, int64_t row, int64_t vocabulary, bool others = false) {
  const int32_t token = tokens.i32()[row];
  require(token >= 0 && token < vocabulary + (others ? 1 : 0),
          "embedding: token {} of row {}, vocabulary of {}", token, row, vocabulary);
  return token;
}

// Rows by where they go (a token, a position), in row order within each: the rows of a target are
// order[ends[target - 1] .. ends[target]), with ends[-1] = 0. A counting sort: one thread is enough
// for targets + rows steps. A target that is none of them is left out.
template <class TargetOf>
void sort_rows(int64_t rows, int64_t targets, const TargetOf& target_of, int32_t* ends,
               int32_t* order) {
  std::fill_n(ends, targets, 0);
  for (int64_t row = 0; row < rows; ++row)
    if (target_of(row) < targets) ++ends[target_of(row)];
  int32_t begin = 0;
  for (int64_t target = 0; target < targets; ++target) {
    const int32_t count = ends[target];
    ends[target] = begin;  // as yet the place of the target's next row
    begin += count;
  }
  for (int64_t row = 0; row < rows; ++row)
    if (target_of(row) < targets) order[ends[target_of(row)]++] = static_cast<int32_t>(row);
}

// Zeros, or what was there.
void no_gradient(const Tensor& dst, bool accumulate) {
  if (!accumulate) std::memset(dst.data, 0, static_cast<size_t>(dst.cols * dtype_bytes(dst.dtype)));
}

// The first `targets` rows of dst (+)= the sums of their sorted rows of dx; the others have none.
void add_sorted_rows(ThreadPool& pool, const Tensor& dx, int64_t targets, const int32_t* ends,
                     const int32_t* order, const Tensor& dst, bool accumulate) {
  const auto sum_rows = HWY_DYNAMIC_DISPATCH(SumRows);
  const Chunks chunks = row_chunks(pool, dst.rows, dst.cols);
  pool.run(chunks.count(), [&](int64_t chunk, int) {
    const Range range = chunks[chunk];
    for (int64_t target = range.begin; target < range.end; ++target) {
      const int32_t begin = target == 0 || target >= targets ? 0 : ends[target - 1];
      const int32_t count = target < targets ? ends[target] - begin : 0;
      if (count > 0)
        sum_rows(dx, order + begin, count, accumulate, dst.row_range(target, 1));
      else
        no_gradient(dst.row_range(target, 1), accumulate);
    }
  });
}

// scratch: where the rows of each target end, then the order of rows.
void add_token_gradients(ThreadPool& pool, const Tensor& tokens, const Tensor& dx,
                         const Tensor& dtable, bool accumulate, const Tensor& scratch) {
  auto* ends = static_cast<int32_t*>(scratch.data);
  int32_t* order = ends + dtable.rows;
  sort_rows(
      dx.rows, dtable.rows,
      [&](int64_t row) { return checked_token(tokens, row, dtable.rows, true); }, ends, order);
  add_sorted_rows(pool, dx, dtable.rows, ends, order, dtable, accumulate);
}

// Where documents begin anywhere, or rows are some of a sequence's. Positions are below the length
// of a sequence, and so below the number of rows, unless that is of a part.
void add_sorted_position_gradients(ThreadPool& pool, const Tensor& dx,
                                   const RowPositions& positions, const Tensor& dpositions,
                                   bool accumulate, const Tensor& scratch) {
  const int64_t targets = dx.rows == 0               ? 0
                          : positions.places.empty() ? positions.length
                                                     : dpositions.rows;
  require(scratch.elems() >= (targets + dx.rows) * static_cast<int64_t>(sizeof(int32_t)),
          "embedding: scratch of {} for {} positions", scratch.elems(), targets);
  auto* ends = static_cast<int32_t*>(scratch.data);
  int32_t* order = ends + targets;
  sort_rows(
      dx.rows, targets, [&](int64_t row) { return position_of(positions, row); }, ends, order);
  add_sorted_rows(pool, dx, targets, ends, order, dpositions, accumulate);
}

void add_position_gradients(ThreadPool& pool, const Tensor& dx, const RowPositions& positions,
                            const Tensor& dpositions, bool accumulate) {
  const auto sum_rows = HWY_DYNAMIC_DISPATCH(SumStridedRows);
  const Chunks chunks = row_chunks(pool, dpositions.rows, dpositions.cols);
  pool.run(chunks.count(), [&](int64_t chunk, int) {
    const Range range = chunks[chunk];
    for (int64_t position = range.begin; position < range.end; ++position) {
      const Tensor dst = dpositions.row_range(position, 1);
      const int64_t in_sequence = position - positions.first;
      if (in_sequence >= 0 && in_sequence < positions.length)
        sum_rows(dx, in_sequence, positions.length, accumulate, dst);
      else
        no_gradient(dst, accumulate);
    }
  });
}

}  // namespace

void embedding_forward(ThreadPool& pool, Tensor tokens, Tensor table, Tensor position_table,
                       const RowPositions& positions, Tensor dst) {
  require(tokens.elems() == dst.rows && table.cols == dst.cols,
          "embedding: {} tokens and a table of {} columns for {}x{}", tokens.elems(), table.cols,
          dst.rows, dst.cols);
  require(table.dtype == dst.dtype, "embedding: a table of {} for {}", dtype_name(table.dtype),
          dtype_name(dst.dtype));
  if (!position_table.empty()) {
    require(position_table.cols == dst.cols, "embedding: positions of {} columns for {}",
            position_table.cols, dst.cols);
    check_positions(positions, dst.rows, position_table.rows);
  }
  const auto add_rows = HWY_DYNAMIC_DISPATCH(AddRows);
  const Chunks chunks = row_chunks(pool, dst.rows, dst.cols);
  pool.run(chunks.count(), [&](int64_t chunk, int) {
    const Range rows = chunks[chunk];
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const Tensor src = table.row_range(checked_token(tokens, row, table.rows), 1);
      const Tensor out = dst.row_range(row, 1);
      if (position_table.empty())
        std::memcpy(out.data, src.data, static_cast<size_t>(dst.cols * dtype_bytes(dst.dtype)));
      else
        add_rows(src, position_table.row_range(position_of(positions, row), 1), out);
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
  if (positions.starts.empty() && positions.places.empty())
    add_position_gradients(pool, dx, positions, dpositions, accumulate_positions);
  else
    add_sorted_position_gradients(pool, dx, positions, dpositions, accumulate_positions, scratch);
}

int64_t embedding_backward_scratch_bytes(int64_t rows, int64_t vocabulary) {
  return (std::max(vocabulary, rows) + rows) * static_cast<int64_t>(sizeof(int32_t));
}

}  // namespace onefold::cpu
#endif
