// What optimizers' kernels have in common: a thread's elements as they lie in memory, their
// rounding, and AdamW's arithmetic.
#pragma once

#include "cuda/launch.cuh"
#include "cuda/pack.cuh"
#include "cuda/segments.cuh"

namespace onefold::cuda {

// Narrowing to the neighbour that a random word chooses by its upper 16 bits, as base/half.h
// defines it.
__device__ inline uint16_t drawn_bits(float x, uint32_t word, bf16) {
  const uint32_t bits = __float_as_uint(x);
  if (isnan(x)) return static_cast<uint16_t>(bits >> 16 & 0x8000u | 0x7FC0u);
  return static_cast<uint16_t>((bits + (word >> 16)) >> 16);
}

__device__ inline uint16_t drawn_bits(float x, uint32_t word, f16) {
  const uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7FFFFFFFu;
  const uint32_t sign = bits >> 16 & 0x8000u;
  uint32_t rounded;
  if (magnitude > 0x7F800000u) {
    rounded = 0x7E00u;
  } else if (magnitude >= 0x47800000u) {  // 65536: beyond the last neighbours
    rounded = 0x7C00u;
  } else if (magnitude >= 0x38800000u) {
    rounded = (magnitude - (112u << 23) + (word >> 19)) >> 13;
  } else {  // a multiple of 2^-24
    const uint32_t exponent = magnitude >> 23, drop = 126 - exponent;
    const uint32_t fraction = (magnitude & 0x7FFFFFu) | 0x800000u;
    if (exponent == 0 || drop >= 64)
      rounded = 0;
    else if (drop < 32)
      rounded = (fraction + (word >> (32 - drop))) >> drop;
    else
      rounded =
          static_cast<uint32_t>((static_cast<uint64_t>(fraction >> (drop - 32)) + word) >> 32);
  }
  return static_cast<uint16_t>(sign | rounded);
}

// Two at a time. `numbers`: neither of them is NaN. A carry out of bf16's fraction then goes no
// further than the exponent, so sign and magnitude need not be taken apart.
template <class T>
__device__ uint32_t drawn_pair(float low, float high, uint32_t low_word, uint32_t high_word,
                               bool numbers) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (numbers)
      return __byte_perm(__float_as_uint(low) + (low_word >> 16),
                         __float_as_uint(high) + (high_word >> 16), 0x7632);
  }
  return drawn_bits(low, low_word, T{}) | uint32_t{drawn_bits(high, high_word, T{})} << 16;
}

// kElems consecutive elements as they lie in memory, moved by as wide loads and stores as there are
// where all of them are there and aligned (`whole`).
template <class T, int kElems>
struct Lot {
  static constexpr int kWords = kElems * static_cast<int>(sizeof(T)) / 4;
  using Vector = std::conditional_t<kWords == 2, uint2, uint4>;
  static constexpr int kVectors = kWords * 4 / static_cast<int>(sizeof(Vector));
  uint32_t words[kWords];

  __device__ float at(int i) const {
    if constexpr (sizeof(T) == 4) {
      return __uint_as_float(words[i]);
    } else {
      float low, high;
      widen_pair(words[i / 2], low, high, T{});
      return i % 2 == 0 ? low : high;
    }
  }
  __device__ void load(const T* data, int64_t first, int64_t elems, bool whole) {
    if (whole) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v)
        reinterpret_cast<Vector*>(words)[v] = reinterpret_cast<const Vector*>(data + first)[v];
      return;
    }
    T values[kElems] = {};
#pragma unroll
    for (int i = 0; i < kElems; ++i)
      if (first + i < elems) values[i] = data[first + i];
    memcpy(words, values, sizeof(words));
  }
  __device__ void store(T* data, int64_t first, int64_t elems, bool whole) const {
    if (whole) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v)
        reinterpret_cast<Vector*>(data + first)[v] = reinterpret_cast<const Vector*>(words)[v];
      return;
    }
    T values[kElems];
    memcpy(values, words, sizeof(words));
#pragma unroll
    for (int i = 0; i < kElems; ++i)
      if (first + i < elems) data[first + i] = values[i];
  }
  // Elements from `first` on are those of `part`.
  template <int kPart>
  __device__ void put(int first, const Lot<T, kPart>& part) {
#pragma unroll
    for (int w = 0; w < Lot<T, kPart>::kWords; ++w)
      words[first * static_cast<int>(sizeof(T)) / 4 + w] = part.words[w];
  }
  __device__ static Lot nearest(const float (&values)[kElems]) {
    Lot lot;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      if constexpr (sizeof(T) == 4)
        lot.words[w] = __float_as_uint(values[w]);
      else
        lot.words[w] = narrow_pair(values[2 * w], values[2 * w + 1], T{});
    }
    return lot;
  }
  // By random words, where T has 16 bits. `numbers`: no value is NaN.
  __device__ static Lot drawn(const float (&values)[kElems], const uint32_t (&random)[kElems],
                              bool numbers) {
    if constexpr (sizeof(T) == 4) {
      return nearest(values);
    } else {
      Lot lot;
#pragma unroll
      for (int w = 0; w < kWords; ++w)
        lot.words[w] = drawn_pair<T>(values[2 * w], values[2 * w + 1], random[2 * w],
                                     random[2 * w + 1], numbers);
      return lot;
    }
  }
};

__device__ inline void draw_four(const PhiloxKey& key, uint64_t counter, uint32_t* words) {
  const auto [w0, w1, w2, w3] =
      philox(key, {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0});
  words[0] = w0, words[1] = w1, words[2] = w2, words[3] = w3;
}

// Parameters of type P with gradients of type G, kLot elements at a time. kMaster: there may be a
// master; registers are kept for it.
template <class P, class G, int kLot, bool kMaster>
struct Stepping {
  int64_t elems;
  P* params;
  const G* grads;
  float* master;
  bool stochastic;  // of parameters
  PhiloxKey key;
  int64_t first;
  const float* factor;  // or null
  bool aligned;

  Stepping() = default;
  Stepping(const SteppedArgs& s, bool is_aligned)
      : elems(s.elems),
        params(static_cast<P*>(s.params.data)),
        grads(static_cast<const G*>(s.grads.data)),
        master(s.master),
        stochastic(s.stochastic && !s.master && sizeof(P) == 2),
        key(s.key),
        first(s.first),
        factor(s.factor),
        aligned(is_aligned) {}

  __device__ bool has_master() const { return kMaster && master != nullptr; }
  __device__ bool whole(int64_t at) const { return aligned && at + kLot <= elems; }
  // The random words of the elements from `at` on, where something is rounded by them: of kCount /
  // 4 counters, or of one more where they begin within one.
  template <int kCount>
  __device__ void draw(int64_t at, uint32_t (&words)[kCount]) const {
    const auto number = static_cast<uint64_t>(first + at);
    uint32_t all[kCount + 4];
#pragma unroll
    for (int c = 0; c < kCount; c += 4) draw_four(key, number / 4 + c / 4, all + c);
    const auto ahead = static_cast<int>(first % 4);
    if (ahead != 0) {
      draw_four(key, number / 4 + kCount / 4, all + kCount);
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        all[i] = ahead == 1 ? all[i + 1] : ahead == 2 ? all[i + 2] : all[i + 3];
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) words[i] = all[i];
  }
};

// What a thread has loaded of the parameters and their gradients.
template <class P, class G, int kLot, bool kMaster>
struct Loaded {
  Lot<G, kLot> grads;
  Lot<P, kLot> params;
  Lot<float, kLot> master;

  __device__ void load(const Stepping<P, G, kLot, kMaster>& stepping, int64_t at, bool whole) {
    grads.load(stepping.grads, at, stepping.elems, whole);
    if (stepping.has_master())
      master.load(stepping.master, at, stepping.elems, whole);
    else
      params.load(stepping.params, at, stepping.elems, whole);
  }
  __device__ float value(const Stepping<P, G, kLot, kMaster>& stepping, int i) const {
    return stepping.has_master() ? master.at(i) : params.at(i);
  }
};

template <class P, class G, int kLot, bool kMaster>
__device__ void store_values(const Stepping<P, G, kLot, kMaster>& stepping,
                             const float (&values)[kLot], const uint32_t (&words)[kLot],
                             bool numbers, int64_t at, bool whole) {
  if (stepping.has_master())
    Lot<float, kLot>::nearest(values).store(stepping.master, at, stepping.elems, whole);
  const auto params = stepping.stochastic ? Lot<P, kLot>::drawn(values, words, numbers)
                                          : Lot<P, kLot>::nearest(values);
  params.store(stepping.params, at, stepping.elems, whole);
}

// Everything is under way before the flags are waited for. `factor`: in the place of control's, or
// null.
__device__ inline bool may_step(const ControlFlags& control, const float* factor, float& scale) {
  const int32_t finite = *control.finite;
  scale = *(factor ? factor : control.factor);
  return finite != 0;
}

// p = p (1 - lr wd) - lr/bc1 * m / (sqrt(v / bc2) + eps). With l2, g + wd p takes the gradient's
// place, and p is not shrunk.
struct AdamWResult {
  float mean, square, param;
};
__device__ inline AdamWResult adamw_of(const AdamWFactors& f, float gradient, float mean,
                                       float square, float param) {
  constexpr float kLargest = 1e18f;  // kLargestGradient of kernels.h
  if (f.l2 != 0) gradient = fmaf(f.l2, param, gradient);
  gradient = fminf(fmaxf(gradient, -kLargest), kLargest);
  mean = fmaf(f.beta1, mean, f.rest1 * gradient);
  square = fmaf(f.beta2, square, f.rest2 * (gradient * gradient));
  const float denominator = sqrtf(square * f.inv_bc2) + f.eps;
  return {mean, square, fmaf(-f.step, mean / denominator, param * f.keep)};
}

// Whether one kernel can take both.
inline bool same_kind(const SteppedArgs& a, const SteppedArgs& b) {
  return a.params.type == b.params.type && a.grads.type == b.grads.type &&
         (a.master == nullptr) == (b.master == nullptr);
}

// A moment, by the words that `word_of` makes of those of parameters.
template <class M, int kCount, class WordOf>
__device__ Lot<M, kCount> moment_of(const float (&values)[kCount], const uint32_t (&words)[kCount],
                                    const WordOf& word_of, bool numbers) {
  uint32_t own[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) own[i] = word_of(words[i]);
  return Lot<M, kCount>::drawn(values, own, numbers);
}

// Lots of a thread.
template <int kLot>
inline constexpr int kLots = 8 / kLot;

inline constexpr int kTurn = 8 * kThreads;  // elements that a block has at a time

// body(l, first) for each of a thread's lots of the turn that begins at `base`; lots are a block's
// threads apart.
template <int kLot, class Body>
__device__ void each_lot(int64_t base, int64_t elems, const Body& body) {
#pragma unroll
  for (int l = 0; l < kLots<kLot>; ++l) {
    const int64_t at = base + (l * kThreads + static_cast<int>(threadIdx.x)) * kLot;
    if (at < elems) body(l, at);
  }
}

// launch_one(P, G, M, kLot, kMaster) for the types of parameters, gradients and moments, f32 or
// bf16, and elements at a time: 16 bytes of each if all have 16 bits.
template <class LaunchOne>
void with_stepped_types(const SteppedArgs& stepped, Type moments, LaunchOne launch_one) {
  constexpr std::integral_constant<int, 4> four{};
  constexpr std::integral_constant<int, 8> eight{};
  with_types(stepped.params.type, stepped.grads.type, [&](auto param, auto gradient) {
    if (moments != Type::bf16) return launch_one(param, gradient, float{}, four, std::true_type());
    if constexpr (sizeof(param) == 2 && sizeof(gradient) == 2) {
      if (!stepped.master) return launch_one(param, gradient, bf16{}, eight, std::false_type());
    }
    launch_one(param, gradient, bf16{}, four, std::true_type());
  });
}

}  // namespace onefold::cuda
