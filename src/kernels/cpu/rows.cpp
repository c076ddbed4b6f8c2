// Rows of a mixture of experts: gathered in the order of experts, weighed, and combined again for
// each token, in the order of its choices. Each row, or token, is computed on its own. And the
// noise of a router's input.
#include <bit>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rows.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

template <class T>
HWY_INLINE void CombineOf(const Tensor& rows, const int32_t* places, const float* weights,
                          int64_t choices, const T* base, size_t n, T* dst) {
  const DF d;
  Sweep(n, [&](size_t i, auto io) HWY_ATTR {
    VF sum = base ? io.Load(d, base + i) : hn::Zero(d);
    for (int64_t j = 0; j < choices; ++j) {
      if (places[j] < 0) continue;
      const VF row = io.Load(d, rows.as<T>() + places[j] * rows.stride + i);
      sum = weights ? hn::MulAdd(row, hn::Set(d, weights[j]), sum) : hn::Add(sum, row);
    }
    io.Store(sum, d, dst + i);
  });
}

void Combine(const Tensor& rows, const int32_t* places, const float* weights, int64_t choices,
             const Tensor& base, const Tensor& dst) {
  with_type(dst.dtype, "combine_rows", [&](auto type) HWY_ATTR {
    using T = decltype(type);
    CombineOf<T>(rows, places, weights, choices, or_null<T>(base), static_cast<size_t>(dst.cols),
                 dst.as<T>());
  });
}

template <class T>
HWY_INLINE void ScaleOf(T* x, float weight, size_t n) {
  const DF d;
  Sweep(n, [&](size_t i, auto io)
               HWY_ATTR { io.Store(hn::Mul(io.Load(d, x + i), hn::Set(d, weight)), d, x + i); });
}

// dy is empty where x alone is weighed; then there is nothing to return.
float Weigh(const Tensor& dy, const Tensor& x, float weight) {
  float product = 0;
  with_type(x.dtype, "weigh_rows", [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const DF d;
    const auto n = static_cast<size_t>(x.cols);
    T *to = x.as<T>(), *dto = or_null<T>(dy);
    if (dto) {
      VF sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
      SweepBy4(n, [&](size_t i, auto io, auto k) HWY_ATTR {
        sums[k] = hn::MulAdd(io.Load(d, dto + i), io.Load(d, to + i), sums[k]);
      });
      product = Total(sums);
      ScaleOf(dto, weight, n);
    }
    ScaleOf(to, weight, n);
  });
  return product;
}

template <class T>
HWY_INLINE void JitterOf(const RandomWords& words, uint64_t first, float rate, const T* x, size_t n,
                         T* dst) {
  const DF d;
  SweepWithFactors(
      n,
      [&](size_t begin, size_t count, float* factors) HWY_ATTR {
        const auto as_drawn = [](VU64 pair) HWY_ATTR { return pair; };
        words.Fill(first + begin, count, as_drawn, factors);
        for (size_t i = 0; i < count; ++i)
          factors[i] =
              1.0f + rate * (2.0f * philox_uniform(std::bit_cast<uint32_t>(factors[i])) - 1.0f);
      },
      [&](size_t i, auto io, VF factor)
          HWY_ATTR { io.Store(hn::Mul(io.Load(d, x + i), factor), d, dst + i); });
}

void Jitter(PhiloxKey key, int64_t sample, float rate, uint64_t first, const Tensor& x,
            const Tensor& dst) {
  with_type(dst.dtype, "jitter", [&](auto type) HWY_ATTR {
    using T = decltype(type);
    JitterOf(RandomWords(key, static_cast<uint64_t>(sample)), first, rate, x.as<T>(),
             static_cast<size_t>(dst.cols), dst.as<T>());
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onefold::cpu {
namespace {

HWY_EXPORT(Combine);
HWY_EXPORT(Weigh);
HWY_EXPORT(Jitter);

void check(const char* kernel, const Routing& routing, const Tensor& rows) {
  require(rows.rows == routing.sources.elems(), "{}: {} rows for {} choices", kernel, rows.rows,
          routing.sources.elems());
}

template <class Visit>
void for_each_row(ThreadPool& pool, int64_t rows, int64_t cols, const Visit& visit) {
  const Chunks chunks = row_chunks(pool, rows, cols);
  pool.run(chunks.count(), [&](int64_t chunk, int) {
    for (int64_t row = chunks[chunk].begin; row < chunks[chunk].end; ++row) visit(row);
  });
}

}  // namespace

void gather_rows(ThreadPool& pool, Tensor x, const Routing& routing, Tensor dst) {
  check("gather_rows", routing, dst);
  require(x.cols == dst.cols && x.dtype == dst.dtype && x.rows == routing.experts.rows,
          "gather_rows: {}x{} to {}x{}", x.rows, x.cols, dst.rows, dst.cols);
  const auto bytes = static_cast<size_t>(x.cols * dtype_bytes(x.dtype));
  for_each_row(pool, dst.rows, dst.cols, [&](int64_t row) {
    const int32_t source = routing.sources.i32()[row];
    void* to = dst.row_range(row, 1).data;
    if (source < 0)
      std::memset(to, 0, bytes);
    else
      std::memcpy(to, x.row_range(source / routing.choices(), 1).data, bytes);
  });
}

void combine_rows(ThreadPool& pool, Tensor rows, const Routing& routing, bool weighted, Tensor base,
                  Tensor dst) {
  check("combine_rows", routing, rows);
  require(dst.rows == routing.experts.rows && dst.cols == rows.cols &&
              (base.empty() || (base.rows == dst.rows && base.cols == dst.cols)),
          "combine_rows: {}x{} to {}x{}", rows.rows, rows.cols, dst.rows, dst.cols);
  const auto combine = HWY_DYNAMIC_DISPATCH(Combine);
  const int64_t k = routing.choices();
  for_each_row(pool, dst.rows, k * dst.cols, [&](int64_t token) {
    combine(rows, routing.places.i32() + token * k,
            weighted ? routing.weights.f32() + token * k : nullptr, k,
            base.empty() ? base : base.row_range(token, 1), dst.row_range(token, 1));
  });
}

void weigh_rows(ThreadPool& pool, const Routing& routing, Tensor dy, Tensor x, Tensor dweights) {
  check("weigh_rows", routing, x);
  require(dy.empty() == dweights.empty() &&
              (dy.empty() || (dy.rows == x.rows && dy.cols == x.cols && dweights.contiguous() &&
                              dweights.elems() == x.rows)),
          "weigh_rows: dy {}x{}, dweights {}x{} for {}x{}", dy.rows, dy.cols, dweights.rows,
          dweights.cols, x.rows, x.cols);
  if (!dweights.empty())
    for (int64_t choice = 0; choice < x.rows; ++choice)
      if (routing.places.i32()[choice] < 0) dweights.f32()[choice] = 0;
  const auto weigh = HWY_DYNAMIC_DISPATCH(Weigh);
  for_each_row(pool, x.rows, 2 * x.cols, [&](int64_t row) {
    const int32_t source = routing.sources.i32()[row];
    if (source < 0) return;
    const float product = weigh(dy.empty() ? dy : dy.row_range(row, 1), x.row_range(row, 1),
                                routing.weights.f32()[source]);
    if (!dweights.empty()) dweights.f32()[source] = product;
  });
}

void jitter(ThreadPool& pool, Tensor x, const Dropout& noise, int64_t length, Tensor dst) {
  require(dst.rows == x.rows && dst.cols == x.cols, "jitter: {}x{} to {}x{}", x.rows, x.cols,
          dst.rows, dst.cols);
  const auto jitter = HWY_DYNAMIC_DISPATCH(Jitter);
  for_each_piece(pool, x.rows, x.cols, [&](int64_t row, int64_t begin, int64_t end) {
    jitter(noise.key, noise.samples.i64()[row / length], noise.rate,
           static_cast<uint64_t>(noise.place_of(row, length) * x.cols + begin),
           piece_of(x, row, begin, end), piece_of(dst, row, begin, end));
  });
}

}  // namespace onefold::cpu
#endif
