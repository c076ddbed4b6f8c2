// Ordered sums, element by element, and copies.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/host_memory.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/host_memory.cpp"
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

template <bool kStream, class D>
HWY_INLINE void StoreSum(hn::Vec<D> sum, D d, hn::TFromD<D>* dst) {
  if constexpr (kStream)
    hn::Stream(sum, d, dst);
  else
    hn::StoreU(sum, d, dst);
}

// Four vectors of each source at a time: sums stay in registers, and each source is read by whole
// cache lines. Streamed, dst is aligned and goes past the caches.
template <bool kStream, class T>
void Sum(const T* const* sources, size_t count, T* dst, size_t n) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    V s0 = hn::LoadU(d, sources[0] + i), s1 = hn::LoadU(d, sources[0] + i + lanes);
    V s2 = hn::LoadU(d, sources[0] + i + 2 * lanes), s3 = hn::LoadU(d, sources[0] + i + 3 * lanes);
    for (size_t r = 1; r < count; ++r) {
      const T* src = sources[r] + i;
      s0 = hn::Add(s0, hn::LoadU(d, src));
      s1 = hn::Add(s1, hn::LoadU(d, src + lanes));
      s2 = hn::Add(s2, hn::LoadU(d, src + 2 * lanes));
      s3 = hn::Add(s3, hn::LoadU(d, src + 3 * lanes));
    }
    StoreSum<kStream>(s0, d, dst + i);
    StoreSum<kStream>(s1, d, dst + i + lanes);
    StoreSum<kStream>(s2, d, dst + i + 2 * lanes);
    StoreSum<kStream>(s3, d, dst + i + 3 * lanes);
  }
  if constexpr (kStream) hwy::FlushStream();
  const auto one_vector = [&](auto io) HWY_ATTR {
    V sum = io.Load(d, sources[0] + i);
    for (size_t r = 1; r < count; ++r) sum = hn::Add(sum, io.Load(d, sources[r] + i));
    io.Store(sum, d, dst + i);
  };
  for (; i + lanes <= n; i += lanes) one_vector(Whole{});
  if (i < n) one_vector(Part{n - i});
}

void OrderedSum(const float* const* sources, size_t count, float* dst, size_t n, bool stream) {
  stream ? Sum<true>(sources, count, dst, n) : Sum<false>(sources, count, dst, n);
}

void OrderedSumDouble(const double* const* sources, size_t count, double* dst, size_t n,
                      bool stream) {
  stream ? Sum<true>(sources, count, dst, n) : Sum<false>(sources, count, dst, n);
}

// Past the caches; dst is aligned, and bytes a multiple of 256.
void StreamCopy(const uint8_t* src, uint8_t* dst, size_t bytes) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < bytes; i += 4 * lanes) {
    const auto v0 = hn::LoadU(d, src + i), v1 = hn::LoadU(d, src + i + lanes);
    const auto v2 = hn::LoadU(d, src + i + 2 * lanes), v3 = hn::LoadU(d, src + i + 3 * lanes);
    hn::Stream(v0, d, dst + i);
    hn::Stream(v1, d, dst + i + lanes);
    hn::Stream(v2, d, dst + i + 2 * lanes);
    hn::Stream(v3, d, dst + i + 3 * lanes);
  }
  hwy::FlushStream();
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onefold {
namespace cpu {
namespace {

HWY_EXPORT(OrderedSum);
HWY_EXPORT(OrderedSumDouble);
HWY_EXPORT(StreamCopy);

// Beyond this a result pushes out of the cache what others need, and plain stores read each line
// before they write it. Past the caches two ranks' sums of 64 MiB and more are 12 to 20 % faster
// (Zen 4), and copies of 8 and 32 MiB 20 to 25 % faster than memcpy, which does the same only
// later.
constexpr int64_t kStreamBytes = int64_t{4} << 20;

template <class T>
bool past_the_caches(std::span<const T* const> sources, const T* dst, int64_t elems) {
  require(!sources.empty() && elems >= 0, "ordered_sum: {} elements of {} sources", elems,
          sources.size());
  const bool in_place = std::find(sources.begin(), sources.end(), dst) != sources.end();
  return elems * static_cast<int64_t>(sizeof(T)) >= kStreamBytes && !in_place &&
         reinterpret_cast<uintptr_t>(dst) % 64 == 0;
}

}  // namespace
}  // namespace cpu

void ordered_sum(std::span<const float* const> sources, float* dst, int64_t elems) {
  using namespace cpu;
  const bool stream = past_the_caches(sources, dst, elems);
  HWY_DYNAMIC_DISPATCH(OrderedSum)
  (sources.data(), sources.size(), dst, static_cast<size_t>(elems), stream);
}

void ordered_sum(std::span<const double* const> sources, double* dst, int64_t elems) {
  using namespace cpu;
  const bool stream = past_the_caches(sources, dst, elems);
  HWY_DYNAMIC_DISPATCH(OrderedSumDouble)
  (sources.data(), sources.size(), dst, static_cast<size_t>(elems), stream);
}

void copy_bytes(const void* src, void* dst, int64_t bytes) {
  using namespace cpu;
  auto* to = static_cast<uint8_t*>(dst);
  const auto* from = static_cast<const uint8_t*>(src);
  auto left = static_cast<size_t>(bytes);
  if (left == 0 || to == from) return;
  if (bytes >= kStreamBytes) {
    const size_t head = (64 - reinterpret_cast<uintptr_t>(to) % 64) % 64;
    const size_t body = (left - head) / 256 * 256;
    std::memcpy(to, from, head);
    HWY_DYNAMIC_DISPATCH(StreamCopy)(from + head, to + head, body);
    to += head + body;
    from += head + body;
    left -= head + body;
  }
  std::memcpy(to, from, left);
}

}  // namespace onefold
#endif
