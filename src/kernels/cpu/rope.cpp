// Rotary position embedding, in place.
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/positions.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

// Turns (x[i], x[i + half]) of each head by the angle whose cosine is angles[i] and whose sine is
// angles[i + half]; backwards if inverse. What a head has beyond that stays.
template <class T>
HWY_INLINE void RotateRowOf(T* row, int64_t heads, int64_t head_dim, size_t half,
                            const float* angles, bool inverse) {
  const DF d;
  for (int64_t head = 0; head < heads; ++head) {
    T* x = row + head * head_dim;
    Sweep(half, [&](size_t i, auto io) HWY_ATTR {
      const VF a = io.Load(d, x + i);
      const VF b = io.Load(d, x + half + i);
      const VF c = io.Load(d, angles + i);
      VF s = io.Load(d, angles + half + i);
      if (inverse) s = hn::Neg(s);
      io.Store(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, x + i);
      io.Store(hn::MulAdd(a, s, hn::Mul(b, c)), d, x + half + i);
    });
  }
}

void RotateRow(const Tensor& row, int64_t heads, size_t half, const float* angles, bool inverse) {
  with_type(row.dtype, "rope", [&](auto type) HWY_ATTR {
    RotateRowOf(row.as<decltype(type)>(), heads, row.cols / heads, half, angles, inverse);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onefold::cpu {
namespace {
HWY_EXPORT(RotateRow);
}  // namespace

void rope(ThreadPool& pool, Tensor x, int64_t heads, Tensor table, const RowPositions& positions,
          bool inverse) {
  require(heads > 0 && x.cols % heads == 0 && x.cols / heads >= table.cols && table.cols % 2 == 0,
          "rope: {} columns for {} heads of which {} elements turn", x.cols, heads, table.cols);
  check_positions(positions, x.rows, table.rows);
  const auto rotate_row = HWY_DYNAMIC_DISPATCH(RotateRow);
  const Chunks chunks = row_chunks(pool, x.rows, x.cols);
  pool.run(chunks.count(), [&](int64_t chunk, int) {
    const Range rows = chunks[chunk];
    for (int64_t row = rows.begin; row < rows.end; ++row)
      rotate_row(x.row_range(row, 1), heads, static_cast<size_t>(table.cols / 2),
                 table.f32() + position_of(positions, row) * table.stride, inverse);
  });
}

}  // namespace onefold::cpu
#endif
