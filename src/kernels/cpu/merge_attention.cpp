// Joins attention of the same queries over two sets of keys.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/merge_attention.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

// out = keep * out + take * more
template <class T>
HWY_INLINE void MergeRowOf(float keep, float take, const T* more, size_t n, T* out) {
  const DF d;
  const VF kept = hn::Set(d, keep), taken = hn::Set(d, take);
  Sweep(n, [&](size_t i, auto io) HWY_ATTR {
    io.Store(hn::MulAdd(taken, io.Load(d, more + i), hn::Mul(kept, io.Load(d, out + i))), d,
             out + i);
  });
}

void MergeRow(float keep, float take, const Tensor& more, const Tensor& out) {
  with_type(out.dtype, "attention", [&](auto type) HWY_ATTR {
    using T = decltype(type);
    MergeRowOf<T>(keep, take, more.as<T>(), static_cast<size_t>(out.cols), out.as<T>());
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onefold::cpu {
namespace {
HWY_EXPORT(MergeRow);
}  // namespace

void merge_attention(ThreadPool& pool, Tensor out, Tensor lse, Tensor more, Tensor more_lse) {
  require(more.rows == out.rows && more.cols == out.cols && lse.cols == out.rows &&
              more_lse.rows == lse.rows && more_lse.cols == lse.cols && lse.rows > 0 &&
              out.cols % lse.rows == 0,
          "attention: {}x{} by {}x{} and {}x{} by {}x{}", out.rows, out.cols, lse.rows, lse.cols,
          more.rows, more.cols, more_lse.rows, more_lse.cols);
  const auto merge_row = HWY_DYNAMIC_DISPATCH(MergeRow);
  const int64_t heads = lse.rows, dim = out.cols / heads;
  const auto piece = [dim](const Tensor& t, int64_t row, int64_t head) {
    return t.row_range(row, 1).col_range(head * dim, dim);
  };
  const Chunks chunks = row_chunks(pool, out.rows, out.cols);
  pool.run(chunks.count(), [&](int64_t chunk, int) {
    const Range rows = chunks[chunk];
    for (int64_t row = rows.begin; row < rows.end; ++row)
      for (int64_t head = 0; head < heads; ++head) {
        float& mine = lse.f32()[head * lse.stride + row];
        const float other = more_lse.f32()[head * more_lse.stride + row];
        const float top = std::max(mine, other);
        const float all = top + std::log(std::exp(mine - top) + std::exp(other - top));
        merge_row(std::exp(mine - all), std::exp(other - all), piece(more, row, head),
                  piece(out, row, head));
        mine = all;
      }
  });
}

}  // namespace onefold::cpu
#endif
