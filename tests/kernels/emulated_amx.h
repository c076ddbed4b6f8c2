// The instructions that src/kernels/cpu/bf16_unit.cpp uses, in plain C++ and by the names of their
// intrinsics, so that packing and tiles are tested on processors that lack them.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/half.h"

#define ONEFOLD_AVX512
#define ONEFOLD_BF16
#define ONEFOLD_AMX

struct __m512i {
  uint32_t lanes[16];
};
struct __m256i {
  uint16_t lanes[16];
};
struct __m512 {
  float lanes[16];
};
using __mmask32 = uint32_t;
using __mmask16 = uint16_t;

inline __m512i _mm512_setzero_si512() { return {}; }
inline __m256i _mm256_setzero_si256() { return {}; }

inline __m512i _mm512_maskz_loadu_epi16(__mmask32 mask, const void* from) {
  uint16_t values[32] = {};
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1) values[i] = static_cast<const uint16_t*>(from)[i];
  __m512i v;
  std::memcpy(&v, values, sizeof(v));
  return v;
}

inline __m256i _mm256_maskz_loadu_epi16(__mmask16 mask, const void* from) {
  __m256i v = {};
  for (int i = 0; i < 16; ++i)
    if (mask >> i & 1) v.lanes[i] = static_cast<const uint16_t*>(from)[i];
  return v;
}

inline __m512i _mm512_cvtepu16_epi32(__m256i a) {
  __m512i v;
  for (int i = 0; i < 16; ++i) v.lanes[i] = a.lanes[i];
  return v;
}

inline __m512i _mm512_slli_epi32(__m512i a, int bits) {
  for (uint32_t& lane : a.lanes) lane <<= bits;
  return a;
}

inline __m512i _mm512_srli_epi32(__m512i a, int bits) {
  for (uint32_t& lane : a.lanes) lane >>= bits;
  return a;
}

inline __m512i _mm512_or_si512(__m512i a, __m512i b) {
  for (int i = 0; i < 16; ++i) a.lanes[i] |= b.lanes[i];
  return a;
}

// Of each quarter: `width` lanes of a and of b in turn, from lane `first` on.
inline __m512i emulated_unpack(__m512i a, __m512i b, int first, int width) {
  __m512i v;
  for (int i = 0; i < 16; ++i) {
    const int quarter = i / 4 * 4, place = i % 4, pair = place / (2 * width);
    const __m512i& from = place / width % 2 == 0 ? a : b;
    v.lanes[i] = from.lanes[quarter + first + pair * width + place % width];
  }
  return v;
}
inline __m512i _mm512_unpacklo_epi32(__m512i a, __m512i b) { return emulated_unpack(a, b, 0, 1); }
inline __m512i _mm512_unpackhi_epi32(__m512i a, __m512i b) { return emulated_unpack(a, b, 2, 1); }
inline __m512i _mm512_unpacklo_epi64(__m512i a, __m512i b) { return emulated_unpack(a, b, 0, 2); }
inline __m512i _mm512_unpackhi_epi64(__m512i a, __m512i b) { return emulated_unpack(a, b, 2, 2); }

inline __m512i _mm512_shuffle_i32x4(__m512i a, __m512i b, int control) {
  __m512i v;
  for (int i = 0; i < 16; ++i)
    v.lanes[i] = (i < 8 ? a : b).lanes[4 * (control >> (i / 4 * 2) & 3) + i % 4];
  return v;
}

inline __m512i _mm512_set1_epi32(int value) {
  __m512i v;
  for (uint32_t& lane : v.lanes) lane = static_cast<uint32_t>(value);
  return v;
}
inline __m512i _mm512_add_epi32(__m512i a, __m512i b) {
  for (int i = 0; i < 16; ++i) a.lanes[i] += b.lanes[i];
  return a;
}
inline __m512i _mm512_and_si512(__m512i a, __m512i b) {
  for (int i = 0; i < 16; ++i) a.lanes[i] &= b.lanes[i];
  return a;
}

inline __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const float* from) {
  __m512 v = {};
  for (int i = 0; i < 16; ++i)
    if (mask >> i & 1) v.lanes[i] = from[i];
  return v;
}
inline __m512 _mm512_sub_ps(__m512 a, __m512 b) {
  for (int i = 0; i < 16; ++i) a.lanes[i] -= b.lanes[i];
  return a;
}
inline __m512 _mm512_castsi512_ps(__m512i a) { return __builtin_bit_cast(__m512, a); }
inline __m512i _mm512_castps_si512(__m512 a) { return __builtin_bit_cast(__m512i, a); }

inline uint16_t emulated_rounded(float value) {
  return __builtin_bit_cast(uint16_t, onefold::narrowed<onefold::Bf16>(value));
}
inline __m256i _mm512_cvtneps_pbh(__m512 a) {
  __m256i v;
  for (int i = 0; i < 16; ++i) v.lanes[i] = emulated_rounded(a.lanes[i]);
  return v;
}
inline void _mm256_mask_storeu_epi16(void* to, __mmask16 mask, __m256i a) {
  for (int i = 0; i < 16; ++i)
    if (mask >> i & 1) std::memcpy(static_cast<uint16_t*>(to) + i, &a.lanes[i], 2);
}

inline void _mm512_store_si512(void* to, __m512i a) { std::memcpy(to, &a, sizeof(a)); }
inline void _mm512_storeu_si512(void* to, __m512i a) { std::memcpy(to, &a, sizeof(a)); }

// The eight registers of 16 rows of 64 bytes.
enum { _MM_HINT_T0, _MM_HINT_T1 };
inline void _mm_prefetch(const void*, int) {}

inline thread_local uint8_t emulated_tiles[8][16][64];

inline void _tile_loadconfig(const void*) {}
inline void _tile_release() {}
inline void _tile_zero(int tile) { std::memset(emulated_tiles[tile], 0, 1024); }
inline void _tile_loadd(int tile, const void* from, int64_t stride) {
  for (int row = 0; row < 16; ++row)
    std::memcpy(emulated_tiles[tile][row], static_cast<const char*>(from) + row * stride, 64);
}
inline void _tile_stored(int tile, void* to, int64_t stride) {
  for (int row = 0; row < 16; ++row)
    std::memcpy(static_cast<char*>(to) + row * stride, emulated_tiles[tile][row], 64);
}
inline void _tile_dpbf16ps(int dst, int a, int b) {
  const auto value = [](int tile, int row, int i) {
    onefold::Bf16 bits;
    std::memcpy(&bits, emulated_tiles[tile][row] + 2 * i, 2);
    return onefold::widened(bits);
  };
  for (int row = 0; row < 16; ++row)
    for (int col = 0; col < 16; ++col) {
      float sum;
      std::memcpy(&sum, emulated_tiles[dst][row] + 4 * col, 4);
      for (int i = 0; i < 32; ++i) sum += value(a, row, i) * value(b, i / 2, 2 * col + i % 2);
      std::memcpy(emulated_tiles[dst][row] + 4 * col, &sum, 4);
    }
}
