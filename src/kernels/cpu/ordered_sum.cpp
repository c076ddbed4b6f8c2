// The sum over ranks: element by element, in the order of the sources.
#include <algorithm>

#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/ordered_sum.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

template <bool kStream>
HWY_INLINE void StoreSum(VF sum, float* dst) {
  const DF d;
  if constexpr (kStream)
    hn::Stream(sum, d, dst);
  else
    hn::StoreU(sum, d, dst);
}

// Four vectors of each source at a time: sums stay in registers, and each source is read by whole
// cache lines. Streamed, dst is aligned and goes past the caches.
template <bool kStream>
void Sum(const float* const* sources, size_t count, float* dst, size_t n) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    VF s0 = hn::LoadU(d, sources[0] + i), s1 = hn::LoadU(d, sources[0] + i + lanes);
    VF s2 = hn::LoadU(d, sources[0] + i + 2 * lanes), s3 = hn::LoadU(d, sources[0] + i + 3 * lanes);
    for (size_t r = 1; r < count; ++r) {
      const float* src = sources[r] + i;
      s0 = hn::Add(s0, hn::LoadU(d, src));
      s1 = hn::Add(s1, hn::LoadU(d, src + lanes));
      s2 = hn::Add(s2, hn::LoadU(d, src + 2 * lanes));
      s3 = hn::Add(s3, hn::LoadU(d, src + 3 * lanes));
    }
    StoreSum<kStream>(s0, dst + i);
    StoreSum<kStream>(s1, dst + i + lanes);
    StoreSum<kStream>(s2, dst + i + 2 * lanes);
    StoreSum<kStream>(s3, dst + i + 3 * lanes);
  }
  if constexpr (kStream) hwy::FlushStream();
  Sweep(n - i, [&](size_t k, auto io) HWY_ATTR {
    VF sum = io.Load(d, sources[0] + i + k);
    for (size_t r = 1; r < count; ++r) sum = hn::Add(sum, io.Load(d, sources[r] + i + k));
    io.Store(sum, d, dst + i + k);
  });
}

void OrderedSum(const float* const* sources, size_t count, float* dst, size_t n, bool stream) {
  stream ? Sum<true>(sources, count, dst, n) : Sum<false>(sources, count, dst, n);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onefold::cpu {
namespace {

HWY_EXPORT(OrderedSum);

// Beyond this a result pushes out of the cache what others need, and plain stores read each line
// before they write it: two ranks' sums of 64 MiB and more are 12 to 20 % faster past the caches
// (Zen 4).
constexpr int64_t kStreamElems = int64_t{1} << 20;

}  // namespace

void ordered_sum(std::span<const float* const> sources, float* dst, int64_t elems) {
  require(!sources.empty() && elems >= 0, "ordered_sum: {} elements of {} sources", elems,
          sources.size());
  const bool in_place = std::find(sources.begin(), sources.end(), dst) != sources.end();
  const bool stream =
      elems >= kStreamElems && !in_place && reinterpret_cast<uintptr_t>(dst) % 64 == 0;
  HWY_DYNAMIC_DISPATCH(OrderedSum)
  (sources.data(), sources.size(), dst, static_cast<size_t>(elems), stream);
}

}  // namespace onefold::cpu
#endif
