// Copies, sums and fills.
#include <cstring>

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

void AddPiece(const float* a, const float* b, size_t n, float* dst) {
  const DF d;
  Sweep(n, [&](size_t i, auto io)
               HWY_ATTR { io.Store(hn::Add(io.Load(d, a + i), io.Load(d, b + i)), d, dst + i); });
}

void FillPiece(float value, size_t n, float* dst) {
  const DF d;
  const VF v = hn::Set(d, value);
  Sweep(n, [&](size_t i, auto io) HWY_ATTR { io.Store(v, d, dst + i); });
}

// sums = the sum of the rows. Four rows at a time: a quarter of the traffic to the sums, while x is
// still read front to back.
void SumRows(const Tensor& x, Range rows, float* sums) {
  const DF d;
  const auto n = static_cast<size_t>(x.cols);
  std::fill_n(sums, n, 0.0f);
  int64_t row = rows.begin;
  for (; row + 4 <= rows.end; row += 4) {
    const float* r0 = x.f32() + row * x.stride;
    const float* r1 = r0 + x.stride;
    const float* r2 = r1 + x.stride;
    const float* r3 = r2 + x.stride;
    Sweep(n, [&](size_t i, auto io) HWY_ATTR {
      const VF s01 = hn::Add(io.Load(d, r0 + i), io.Load(d, r1 + i));
      const VF s23 = hn::Add(io.Load(d, r2 + i), io.Load(d, r3 + i));
      io.Store(hn::Add(io.Load(d, sums + i), hn::Add(s01, s23)), d, sums + i);
    });
  }
  for (; row < rows.end; ++row) AddPiece(sums, x.f32() + row * x.stride, n, sums);
}

// In double throughout: squares of large gradients must not overflow, and the norm of billions of
// elements must not drift.
double SumSquares(const float* x, size_t n) {
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
    for (size_t k = 0; k < 4; ++k) add(i + k * lanes, Whole{}, sums[k]);
  }
  for (; i < n; i += lanes) add(i, Part{std::min(lanes, n - i)}, sums[0]);
  return hn::GetLane(
      hn::SumOfLanes(d, hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]))));
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
    const Tensor from = src.row_range(row, 1).col_range(begin, end - begin);
    const Tensor to = dst.row_range(row, 1).col_range(begin, end - begin);
    std::memcpy(to.data, from.data, bytes);
  });
}

void fill(ThreadPool& pool, Tensor dst, float value) {
  dst = joined(dst, dst.contiguous());
  const auto fill_piece = HWY_DYNAMIC_DISPATCH(FillPiece);
  for_each_piece(pool, dst.rows, dst.cols, [&](int64_t row, int64_t begin, int64_t end) {
    fill_piece(value, static_cast<size_t>(end - begin), dst.f32() + row * dst.stride + begin);
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
    add_piece(a.f32() + row * a.stride + begin, b.f32() + row * b.stride + begin,
              static_cast<size_t>(end - begin), dst.f32() + row * dst.stride + begin);
  });
}

void sum(Tensor x, Tensor dst) {
  x = x.flat();
  double total = 0;
  if (x.dtype == DType::f64)
    for (int64_t i = 0; i < x.cols; ++i) total += x.f64()[i];
  else
    for (int64_t i = 0; i < x.cols; ++i) total += x.f32()[i];
  *dst.f64() = total;
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
    sums[chunk] = chunk_sum(x.f32() + range.begin, static_cast<size_t>(range.size()));
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
