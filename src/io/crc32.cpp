#include "io/crc32.h"

#include <zlib.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace onefold {
namespace {

// What follows bytes of this CRC-32.
uint32_t continued(uint32_t crc, const void* bytes, size_t count) {
  return static_cast<uint32_t>(::crc32_z(crc, static_cast<const Bytef*>(bytes), count));
}

#if defined(__x86_64__)
#define ONEFOLD_CARRYLESS __attribute__((target("pclmul")))

// Moves 16 bytes over what lies between them and `onto`. The remainder of the whole stays the same:
// each half is multiplied by the remainder of x to the power of the bits that it moves over.
ONEFOLD_CARRYLESS inline __m128i folded(__m128i bytes, __m128i powers, __m128i onto) {
  const __m128i low = _mm_clmulepi64_si128(bytes, powers, 0x00),
                high = _mm_clmulepi64_si128(bytes, powers, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), onto);
}

// Four runs of folding side by side, since a product takes several cycles; then one, and what is
// left is a text of 16 bytes and the last few, with the same CRC-32. At least 64 bytes.
ONEFOLD_CARRYLESS uint32_t by_folding(const std::byte* bytes, size_t count) {
  constexpr size_t kLane = 16, kLanes = 4;
  // For the polynomial 0xedb88320, bits reversed: over 64 bytes, and over 16.
  const __m128i far = _mm_set_epi64x(0x1c6e41596, 0x154442bd4),
                near = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
  const auto load = [](const std::byte* at) ONEFOLD_CARRYLESS {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  };
  __m128i lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = load(bytes + i * kLane);
  lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128(-1));  // the register begins with ones
  const std::byte* const end = bytes + count;
  for (bytes += kLanes * kLane; end - bytes >= 64; bytes += kLanes * kLane)
#pragma GCC unroll 4
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = folded(lanes[i], far, load(bytes + i * kLane));
  __m128i last = lanes[0];
  for (size_t i = 1; i < kLanes; ++i) last = folded(last, near, lanes[i]);
  for (; end - bytes >= 16; bytes += kLane) last = folded(last, near, load(bytes));
  std::byte text[kLane];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(text), last);
  constexpr uint32_t kNoOnes = 0xFFFFFFFF;  // zlib inverts: the register begins with zeros
  return continued(continued(kNoOnes, text, kLane), bytes, static_cast<size_t>(end - bytes));
}
#endif

}  // namespace

uint32_t crc32_of(std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  if (bytes.size() >= 64 && __builtin_cpu_supports("pclmul"))
    return by_folding(bytes.data(), bytes.size());
#endif
  return continued(0, bytes.data(), bytes.size());
}

}  // namespace onefold
