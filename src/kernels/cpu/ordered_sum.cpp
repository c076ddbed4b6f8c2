// The sum over ranks: element by element, in the order of the sources.
#include <algorithm>

#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/ordered_sum.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

// Four vectors of each source at a time: sums stay in registers, and each source is read by whole
// cache lines.
void OrderedSum(const float* const* sources, size_t count, float* dst, size_t n) {
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
    hn::StoreU(s0, d, dst + i);
    hn::StoreU(s1, d, dst + i + lanes);
    hn::StoreU(s2, d, dst + i + 2 * lanes);
    hn::StoreU(s3, d, dst + i + 3 * lanes);
  }
  Sweep(n - i, [&](size_t k, auto io) HWY_ATTR {
    VF sum = io.Load(d, sources[0] + i + k);
    for (size_t r = 1; r < count; ++r) sum = hn::Add(sum, io.Load(d, sources[r] + i + k));
    io.Store(sum, d, dst + i + k);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onefold::cpu {
namespace {
HWY_EXPORT(OrderedSum);
}  // namespace

void ordered_sum(std::span<const float* const> sources, float* dst, int64_t elems) {
  require(!sources.empty() && elems >= 0, "ordered_sum: {} elements of {} sources", elems,
          sources.size());
  HWY_DYNAMIC_DISPATCH(OrderedSum)
  (sources.data(), sources.size(), dst, static_cast<size_t>(elems));
}

}  // namespace onefold::cpu
#endif
