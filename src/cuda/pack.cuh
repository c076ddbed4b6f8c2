// Elements in memory and in registers: types of 16 and 32 bits, 16 bytes at a time. Kernels hold
// what they load as it lies in memory, and widen it to fp32 where they compute.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda/ops.h"

namespace onefold::cuda {

using bf16 = __nv_bfloat16;
using f16 = __half;

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(bf16 x) { return __bfloat162float(x); }
__device__ inline float widen(f16 x) { return __half2float(x); }

// To the nearest, ties to even.
template <class T>
__device__ T narrow(float x) {
  if constexpr (std::is_same_v<T, bf16>)
    return __float2bfloat16_rn(x);
  else if constexpr (std::is_same_v<T, f16>)
    return __float2half_rn(x);
  else
    return x;
}

// e^x and 1/x by the card's own functions: errors of about 2^-21 |x| and 2^-23, far below what a
// result of 16 bits keeps.
__device__ inline float fast_exp(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.4426950408889634f));
  return result;
}
__device__ inline float fast_reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// What 16 bytes hold.
template <class T>
inline constexpr int kWide = 16 / static_cast<int>(sizeof(T));

__device__ inline void widen_pair(uint32_t bits, float& low, float& high, bf16) {
  low = __uint_as_float(bits << 16);
  high = __uint_as_float(bits & 0xFFFF0000u);
}
__device__ inline void widen_pair(uint32_t bits, float& low, float& high, f16) {
  low = __half2float(__ushort_as_half(static_cast<unsigned short>(bits & 0xFFFFu)));
  high = __half2float(__ushort_as_half(static_cast<unsigned short>(bits >> 16)));
}
__device__ inline uint32_t narrow_pair(float low, float high, bf16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ inline uint32_t narrow_pair(float low, float high, f16) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// 16 bytes of consecutive elements.
template <class T>
struct Pack {
  static constexpr int kElems = kWide<T>;
  uint32_t words[4];

  __device__ void to(float (&values)[kElems]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4)
        values[i] = __uint_as_float(words[i]);
      else
        widen_pair(words[i], values[2 * i], values[2 * i + 1], T{});
    }
  }
  __device__ static Pack of(const float (&values)[kElems]) {
    Pack pack;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4)
        pack.words[i] = __float_as_uint(values[i]);
      else
        pack.words[i] = narrow_pair(values[2 * i], values[2 * i + 1], T{});
    }
    return pack;
  }
};

// One element, with the interface of a pack.
template <class T>
struct Single {
  static constexpr int kElems = 1;
  T value;
  __device__ void to(float (&values)[1]) const { values[0] = widen(value); }
  __device__ static Single of(const float (&values)[1]) { return {narrow<T>(values[0])}; }
};

// Elements [first, first + kElems) of a row of `cols`, zeros behind its end. `aligned` says that
// the row begins at a multiple of 16 bytes.
template <class P, class T>
__device__ P load_pack(const T* row, int64_t first, int64_t cols, bool aligned) {
  P pack{};
  if constexpr (P::kElems == 1) {
    if (first < cols) pack.value = row[first];
  } else if (aligned && first + P::kElems <= cols) {
    const uint4 bits = *reinterpret_cast<const uint4*>(row + first);
    pack.words[0] = bits.x;
    pack.words[1] = bits.y;
    pack.words[2] = bits.z;
    pack.words[3] = bits.w;
  } else {
    float values[P::kElems];
#pragma unroll
    for (int i = 0; i < P::kElems; ++i) values[i] = first + i < cols ? widen(row[first + i]) : 0.0f;
    pack = P::of(values);
  }
  return pack;
}

template <class T>
__device__ void store_pack(const float (&values)[kWide<T>], T* row, int64_t first, int64_t cols,
                           bool aligned) {
  if (aligned && first + kWide<T> <= cols) {
    const Pack<T> pack = Pack<T>::of(values);
    *reinterpret_cast<uint4*>(row + first) =
        make_uint4(pack.words[0], pack.words[1], pack.words[2], pack.words[3]);
  } else {
#pragma unroll
    for (int i = 0; i < kWide<T>; ++i)
      if (first + i < cols) row[first + i] = narrow<T>(values[i]);
  }
}

template <class T>
__device__ void store_pack(const float (&values)[1], T* row, int64_t first, int64_t cols, bool) {
  if (first < cols) row[first] = narrow<T>(values[0]);
}

// Four elements of any type, beside as many of fp32.
template <class T>
struct alignas(4 * sizeof(T)) Four {
  T values[4];
};

template <class T>
__device__ Four<T> load_four(const T* data, int64_t first, int64_t elems, bool aligned) {
  if (aligned && first + 4 <= elems) return *reinterpret_cast<const Four<T>*>(data + first);
  Four<T> four;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    four.values[i] = first + i < elems ? data[first + i] : narrow<T>(0.0f);
  return four;
}

template <class T>
__device__ void store_four(const Four<T>& four, T* data, int64_t first, int64_t elems,
                           bool aligned) {
  if (aligned && first + 4 <= elems) {
    *reinterpret_cast<Four<T>*>(data + first) = four;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (first + i < elems) data[first + i] = four.values[i];
}

// A matrix of elements of type T.
template <class T>
struct View {
  T* data;
  int64_t rows, cols, stride;
  __host__ __device__ T* row(int64_t index) const { return data + index * stride; }
};

template <class T>
View<T> view(const Matrix& m) {
  return {static_cast<T*>(m.data), m.rows, m.cols, m.stride};
}

inline int64_t type_bytes(Type type) { return type == Type::f32 ? 4 : 2; }

// Whether all rows begin at multiples of 16 bytes.
inline bool aligned(const Matrix& m) {
  return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 &&
         (m.rows <= 1 || m.stride * type_bytes(m.type) % 16 == 0);
}
inline bool aligned(const Vector& v) { return reinterpret_cast<uintptr_t>(v.data) % 16 == 0; }
inline bool aligned(const float* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }
template <class... Rest>
bool all_aligned(const Rest&... rest) {
  return (aligned(rest) && ...);
}

// Calls with an element of the type.
template <class Call>
void with_type(Type type, const Call& call) {
  switch (type) {
    case Type::f32:
      return call(float{});
    case Type::bf16:
      return call(bf16{});
    case Type::f16:
      return call(f16{});
  }
}
// The same for a type of 16 bits.
template <class Call>
void with_half(Type type, const Call& call) {
  type == Type::bf16 ? call(bf16{}) : call(f16{});
}
// With elements of both types; gradients are of the other's type, or fp32.
template <class Call>
void with_types(Type type, Type gradients, const Call& call) {
  with_type(type, [&](auto element) {
    if (gradients == type)
      call(element, element);
    else
      call(element, float{});
  });
}

}  // namespace onefold::cuda
