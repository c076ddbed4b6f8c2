// AdamW's steps with moments in codes of 8 bits.
#include "cuda/stepping.cuh"

namespace onefold::cuda {
namespace {

// k / 127 or k / 255 of a whole number up to 255, to the nearest: the rest that a product with the
// reciprocal leaves is added.
template <bool kSecond>
__device__ float share_of_levels(float k) {
  constexpr float kLast = kSecond ? 255.0f : 127.0f, kReciprocal = 1.0f / kLast;
  const float t = k * kReciprocal;
  return fmaf(fmaf(-kLast, t, k), kReciprocal, t);
}

// Levels of codes of 8 bits (base/block8.h), which says what they are.
template <bool kSecond>
__device__ float level8(float k) {
  const float t = share_of_levels<kSecond>(k);
  return kSecond ? t * t * (t * t) : t * t;
}

template <bool kSecond>
__device__ float decode8(uint32_t code, float scale) {
  const float k = kSecond ? static_cast<float>(code) : static_cast<float>(code) - 128.0f;
  return copysignf(scale * level8<kSecond>(k), k);
}

template <bool kSecond>
__device__ uint32_t encode8(float value, float scale, uint32_t word) {
  constexpr float kLast = kSecond ? 255.0f : 127.0f;
  if (!(scale > 0)) return kSecond ? 0 : 128;
  const float share = fabsf(value) / scale;
  const float root = kSecond ? sqrtf(sqrtf(share)) : sqrtf(share);
  float k = fminf(fmaxf(floorf(root * kLast), 0.0f), kLast - 1);
  const float low = level8<kSecond>(k), high = level8<kSecond>(k + 1);
  // In the middle of one of 2^16 parts, so that next to nothing is never drawn up.
  const float threshold = static_cast<float>(word >> 16) * 0x1p-16f + 0x1p-17f;
  if (share - low > threshold * (high - low)) k += 1;
  if (kSecond) return static_cast<uint32_t>(value > 0 ? fmaxf(k, 1.0f) : k);
  return static_cast<uint32_t>(copysignf(k, value) + 128.0f);
}

__device__ inline float warp_scale(float largest) {
  for (int offset = 16; offset > 0; offset /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, offset));
  return largest > 0 ? fmaxf(largest, 0x1p-90f) : 0.0f;
}

constexpr int kBlock8 = 256, kEach8 = kBlock8 / 32;  // elements of a warp, and of its threads

// Codes that a thread has of a block; those behind the end are 0. Blocks begin at multiples of 256
// of a tensor that is aligned, or not.
struct Codes {
  uint32_t words[kEach8 / 4];

  __device__ static bool whole(const uint8_t* data, int64_t at, int64_t elems) {
    return reinterpret_cast<uintptr_t>(data) % 8 == 0 && at + kEach8 <= elems;
  }
  __device__ void load(const uint8_t* data, int64_t at, int64_t elems) {
    static_assert(kEach8 == 8);
    if (whole(data, at, elems)) {
      const uint2 bits = *reinterpret_cast<const uint2*>(data + at);
      words[0] = bits.x, words[1] = bits.y;
      return;
    }
    words[0] = words[1] = 0;
#pragma unroll
    for (int i = 0; i < kEach8; ++i)
      if (at + i < elems) words[i / 4] |= uint32_t{data[at + i]} << (8 * (i % 4));
  }
  __device__ void store(uint8_t* data, int64_t at, int64_t elems) const {
    if (whole(data, at, elems)) {
      *reinterpret_cast<uint2*>(data + at) = make_uint2(words[0], words[1]);
      return;
    }
#pragma unroll
    for (int i = 0; i < kEach8; ++i)
      if (at + i < elems) data[at + i] = static_cast<uint8_t>(code(i));
  }
  __device__ uint32_t code(int i) const { return words[i / 4] >> (8 * (i % 4)) & 0xFFu; }
  __device__ void set(int i, uint32_t code) {
    if (i % 4 == 0) words[i / 4] = 0;
    words[i / 4] |= code << (8 * (i % 4));
  }
};

template <class P, class G>
struct AdamW8Item {
  AdamWFactors factors;
  Stepping<P, G, kEach8, true> stepping;
  Codes8 moment1, moment2;
};

// A warp for each block: the largest magnitude of its new moments is their scale.
template <class P, class G>
__global__ void __launch_bounds__(kThreads)
    adamw8_kernel(ControlFlags control,
                  const __grid_constant__ Segments<AdamW8Item<P, G>> segments) {
  after_the_last_kernel();
  const int mine = segments.mine();
  const auto& item = segments.items[mine];
  const AdamWFactors& f = item.factors;
  const auto& stepping = item.stepping;
  const auto m = item.moment1, v = item.moment2;
  const int64_t block = segments.block_of(mine) * (kThreads / 32) + threadIdx.x / 32;
  const int64_t elems = stepping.elems, at = block * kBlock8 + threadIdx.x % 32 * kEach8;
  if (block * kBlock8 >= elems) return;
  const bool whole = stepping.whole(at);
  Loaded<P, G, kEach8, true> loaded;
  Codes mean_codes, square_codes;
  loaded.load(stepping, at, whole);
  mean_codes.load(m.values, at, elems);
  square_codes.load(v.values, at, elems);
  const float mean_scale = m.scales[block], square_scale = v.scales[block];
  float scale;
  if (!may_step(control, stepping.factor, scale)) return;
  float means[kEach8], squares[kEach8], params[kEach8], largest_mean = 0, largest_square = 0;
  bool numbers = true;
#pragma unroll
  for (int e = 0; e < kEach8; ++e) {
    const AdamWResult s =
        adamw_of(f, loaded.grads.at(e) * scale, decode8<false>(mean_codes.code(e), mean_scale),
                 decode8<true>(square_codes.code(e), square_scale), loaded.value(stepping, e));
    params[e] = s.param;
    numbers = numbers && !isnan(s.param);
    const bool there = at + e < elems;
    means[e] = there ? s.mean : 0.0f;
    squares[e] = there ? s.square : 0.0f;
    largest_mean = fmaxf(largest_mean, fabsf(means[e]));
    largest_square = fmaxf(largest_square, squares[e]);
  }
  uint32_t words[kEach8];
  stepping.draw(at, words);
  store_values(stepping, params, words, numbers, at, whole);
  largest_mean = warp_scale(largest_mean);
  largest_square = warp_scale(largest_square);
#pragma unroll
  for (int e = 0; e < kEach8; ++e) {
    mean_codes.set(e, encode8<false>(means[e], largest_mean, first_moment_word(words[e])));
    square_codes.set(e, encode8<true>(squares[e], largest_square, second_moment_word(words[e])));
  }
  mean_codes.store(m.values, at, elems);
  square_codes.store(v.values, at, elems);
  if (threadIdx.x % 32 != 0) return;
  m.scales[block] = largest_mean;
  v.scales[block] = largest_square;
}

}  // namespace

void adamw8(const ControlFlags& control, std::span<const AdamW8Args> list, cudaStream_t stream) {
  constexpr int64_t kElems = int64_t{kThreads} / 32 * kBlock8;  // of a block of threads
  const auto alike = [](const AdamW8Args& a, const AdamW8Args& b) {
    return same_kind(a.stepped, b.stepped);
  };
  each_part(list, alike, [&](std::span<const AdamW8Args> part) {
    const SteppedArgs& first = part[0].stepped;
    with_types(first.params.type, first.grads.type, [&](auto param, auto gradient) {
      using P = decltype(param);
      using G = decltype(gradient);
      Segments<AdamW8Item<P, G>> segments;
      for (const auto& [factors, stepped, moment1, moment2] : part) {
        const bool is_aligned = all_aligned(stepped.params, stepped.grads, stepped.master);
        segments.add({factors, {stepped, is_aligned}, moment1, moment2},
                     ceil_div(stepped.elems, kElems));
      }
      launch_early(adamw8_kernel<P, G>, segments.grid(), kThreads, 0, stream, control, segments);
    });
  });
}

}  // namespace onefold::cuda
