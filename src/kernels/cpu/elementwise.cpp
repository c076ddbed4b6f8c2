// Copies, sums, multiples and fills.
#include <cstring>

#include "hwy/cache_control.h"
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

template <class A, class B, class T>
HWY_INLINE void AddTo(const A* a, const B* b, size_t n, T* dst) {
  const DF d;
  Sweep(n, [&](size_t i, auto io)
               HWY_ATTR { io.Store(hn::Add(io.Load(d, a + i), io.Load(d, b + i)), d, dst + i); });
}

void AddPiece(const Tensor& a, const Tensor& b, const Tensor& dst) {
  with_type(dst.dtype, "add", [&](auto type) HWY_ATTR {
    using T = decltype(type);
    AddTo(a.as<T>(), b.as<T>(), static_cast<size_t>(dst.cols), dst.as<T>());
  });
}

void ScalePiece(const Tensor& x, float factor, const Tensor& dst) {
  with_type(dst.dtype, "scale", [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const DF d;
    const VF by = hn::Set(d, factor);
    const T* from = x.as<T>();
    T* to = dst.as<T>();
    Sweep(static_cast<size_t>(dst.cols), [&](size_t i, auto io) HWY_ATTR {
      io.Store(hn::Mul(io.Load(d, from + i), by), d, to + i);
    });
  });
}

void FillPiece(float value, const Tensor& dst) {
  with_type(dst.dtype, "fill", [&](auto type) HWY_ATTR {
    const DF d;
    const VF v = hn::Set(d, value);
    auto* to = dst.as<decltype(type)>();
    Sweep(static_cast<size_t>(dst.cols),
          [&](size_t i, auto io) HWY_ATTR { io.Store(v, d, to + i); });
  });
}

// sums = the sum of the rows. Four rows at a time: a quarter of the traffic to the sums, while x is
// still read front to back.
template <class T>
HWY_INLINE void SumRowsOf(const T* x, int64_t stride, Range rows, size_t n, float* sums) {
  const DF d;
  std::fill_n(sums, n, 0.0f);
  int64_t row = rows.begin;
  for (; row + 4 <= rows.end; row += 4) {
    const T* r0 = x + row * stride;
    const T* r1 = r0 + stride;
    const T* r2 = r1 + stride;
    const T* r3 = r2 + stride;
    Sweep(n, [&](size_t i, auto io) HWY_ATTR {
      const VF s01 = hn::Add(io.Load(d, r0 + i), io.Load(d, r1 + i));
      const VF s23 = hn::Add(io.Load(d, r2 + i), io.Load(d, r3 + i));
      io.Store(hn::Add(io.Load(d, sums + i), hn::Add(s01, s23)), d, sums + i);
    });
  }
  for (; row < rows.end; ++row) AddTo(sums, x + row * stride, n, sums);
}

void SumRows(const Tensor& x, Range rows, float* sums) {
  with_type(x.dtype, "column_sum", [&](auto type) HWY_ATTR {
    SumRowsOf(x.as<decltype(type)>(), x.stride, rows, static_cast<size_t>(x.cols), sums);
  });
}

// In double throughout: squares of large gradients must not overflow, and the norm of billions of
// elements must not drift.
template <class T>
HWY_INLINE double SumSquaresOf(const T* x, size_t n) {
  constexpr size_t kAhead = 1024;  // the processor's own prefetching stops at the end of each page
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> half;  // as many floats as a vector of double has lanes
  const size_t lanes = hn::Lanes(d);
  using V = hn::Vec<decltype(d)>;
  V sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  const auto add = [&](size_t i, auto io, V& sum) HWY_ATTR {
    const V v = hn::PromoteTo(d, io.Load(half, x + i));
    sum = hn::MulAdd(v, v, sum);
  };
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    hwy::Prefetch(x + i + kAhead);
    hwy::Prefetch(x + i + kAhead + 2 * lanes);
    for (size_t k = 0; k < 4; ++k) add(i + k * lanes, Whole{}, sums[k]);
  }
  for (; i < n; i += lanes) add(i, Part{std::min(lanes, n - i)}, sums[0]);
  return hn::GetLane(
      hn::SumOfLanes(d, hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]))));
}

double SumSquares(const Tensor& x) {
  return with_type(x.dtype, "sum_squares", [&](auto type) HWY_ATTR {
    return SumSquaresOf(x.as<decltype(type)>(), static_cast<size_t>(x.cols));
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onefold::cpu {
namespace {

HWY_EXPORT(AddPiece);
HWY_EXPORT(FillPiece);
HWY_EXPORT(ScalePiece);
HWY_EXPORT(SumRows);
HWY_EXPORT(SumSquares);

// Contiguous tensors as one row, so that narrow ones are not walked row by row.
Tensor joined(const Tensor& x, bool all_contiguous) { return all_contiguous ? x.flat() : x; }

}  // namespace

// scratch: the partial sums of each row chunk, [chunks, cols].
void column_sum(ThreadPool& pool, Tensor x, Tensor dst, bool accumulate, Tensor scratch) {
  require(dst.elems() == x.cols, "column_sum: {} sums of {} columns", dst.elems(), x.cols);
  require(scratch.elems() >= column_sum_scratch_bytes(x.rows, x.cols), "column_sum: scratch of {}",
          scratch.elems());
  const auto sum_rows = HWY_DYNAMIC_DISPATCH(SumRows);
  const Chunks chunks = sum_chunks(x.rows);
  pool.run(chunks.count(), [&](int64_t chunk, int) {
    sum_rows(x, chunks[chunk], scratch.as_f32() + chunk * x.cols);
  });
  add_partials(pool, scratch.as_f32(), chunks.count(), x.cols, accumulate, dst);
}

int64_t column_sum_scratch_bytes(int64_t rows, int64_t cols) {
  return sum_chunks(rows).count() * cols * 4;
}

void copy(ThreadPool& pool, Tensor src, Tensor dst) {
  require(src.rows == dst.rows && src.cols == dst.cols && src.dtype == dst.dtype,
          "copy: {} {}x{} to {} {}x{}", dtype_name(src.dtype), src.rows, src.cols,
          dtype_name(dst.dtype), dst.rows, dst.cols);
  const bool contiguous = src.contiguous() && dst.contiguous();
  src = joined(src, contiguous);
  dst = joined(dst, contiguous);
  if (src.data == dst.data) return;
  for_each_piece(pool, dst.rows, dst.cols, [&](int64_t row, int64_t begin, int64_t end) {
    const auto bytes = static_cast<size_t>((end - begin) * dtype_bytes(dst.dtype));
    std::memcpy(piece_of(dst, row, begin, end).data, piece_of(src, row, begin, end).data, bytes);
  });
}

void fill(ThreadPool& pool, Tensor dst, float value) {
  dst = joined(dst, dst.contiguous());
  const auto fill_piece = HWY_DYNAMIC_DISPATCH(FillPiece);
  for_each_piece(pool, dst.rows, dst.cols, [&](int64_t row, int64_t begin, int64_t end) {
    fill_piece(value, piece_of(dst, row, begin, end));
  });
}

void add(ThreadPool& pool, Tensor a, Tensor b, Tensor dst) {
  require(a.rows == dst.rows && a.cols == dst.cols && b.rows == dst.rows && b.cols == dst.cols,
          "add: {}x{} and {}x{} to {}x{}", a.rows, a.cols, b.rows, b.cols, dst.rows, dst.cols);
  const bool contiguous = a.contiguous() && b.contiguous() && dst.contiguous();
  a = joined(a, contiguous);
  b = joined(b, contiguous);
  dst = joined(dst, contiguous);
  const auto add_piece = HWY_DYNAMIC_DISPATCH(AddPiece);
  for_each_piece(pool, dst.rows, dst.cols, [&](int64_t row, int64_t begin, int64_t end) {
    add_piece(piece_of(a, row, begin, end), piece_of(b, row, begin, end),
              piece_of(dst, row, begin, end));
  });
}

void scale(ThreadPool& pool, Tensor x, float factor, Tensor dst) {
  require(x.rows == dst.rows && x.cols == dst.cols && x.dtype == dst.dtype,
          "scale: {} {}x{} to {} {}x{}", dtype_name(x.dtype), x.rows, x.cols, dtype_name(dst.dtype),
          dst.rows, dst.cols);
  const bool contiguous = x.contiguous() && dst.contiguous();
  x = joined(x, contiguous);
  dst = joined(dst, contiguous);
  const auto scale_piece = HWY_DYNAMIC_DISPATCH(ScalePiece);
  for_each_piece(pool, dst.rows, dst.cols, [&](int64_t row, int64_t begin, int64_t end) {
    scale_piece(piece_of(x, row, begin, end), factor, piece_of(dst, row, begin, end));
  });
}

void sum(Tensor x, Tensor dst) {
  x = x.flat();
  double lanes[kSumLanes] = {};
  const auto add = [&](const auto* values) {
    for (int64_t i = 0; i < x.cols; ++i) lanes[i % kSumLanes] += values[i];
  };
  if (x.dtype == DType::f64)
    add(x.f64());
  else
    add(x.f32());
  for (int64_t half = kSumLanes / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  *dst.f64() = lanes[0];
}

// scratch: one double for each chunk of kChunkElems.
void sum_squares(ThreadPool& pool, Tensor x, Tensor dst, Tensor scratch) {
  x = x.flat();
  require(scratch.elems() >= sum_squares_scratch_bytes(x.elems()), "sum_squares: scratch of {}",
          scratch.elems());
  const auto chunk_sum = HWY_DYNAMIC_DISPATCH(SumSquares);
  const Chunks chunks{x.elems(), kChunkElems};
  auto* sums = static_cast<double*>(scratch.data);
  pool.run(chunks.count(), [&](int64_t chunk, int) {
    const Range range = chunks[chunk];
    sums[chunk] = chunk_sum(x.col_range(range.begin, range.size()));
  });
  double total = 0;
  for (int64_t chunk = 0; chunk < chunks.count(); ++chunk) total += sums[chunk];
  *dst.f64() = total;
}

int64_t sum_squares_scratch_bytes(int64_t elems) {
  return ceil_div(elems, kChunkElems) * static_cast<int64_t>(sizeof(double));
}

}  // namespace onefold::cpu
#endif
