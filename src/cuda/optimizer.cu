// Clipping's factor, and optimizer steps: one pass over flat tensors, bound by memory.
#include "cuda/launch.cuh"
#include "cuda/pack.cuh"

namespace onefold::cuda {
namespace {

__global__ void clip_kernel(ClipArgs args) {
  double squares = 0;
  bool finite = true;
  for (int64_t i = 0; i < args.count; ++i) {
    const double sum = args.sums[i];
    if (i < args.squares) squares += sum;
    finite = finite && isfinite(sum);
  }
  const double norm = sqrt(squares) / args.scale;
  const double factor = args.limit / (norm + args.eps);
  *args.norm = norm;
  // As std::min(1.0, factor): 1 where factor is NaN.
  const double clipped = args.limit > 0 && factor < 1.0 ? factor : 1.0;
  *args.factor = static_cast<float>(clipped / args.scale);
  *args.finite = finite && isfinite(norm) ? 1 : 0;
}

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
  bool aligned;

  explicit Stepping(const SteppedArgs& s, bool is_aligned)
      : elems(s.elems),
        params(static_cast<P*>(s.params.data)),
        grads(static_cast<const G*>(s.grads.data)),
        master(s.master),
        stochastic(s.stochastic && !s.master && sizeof(P) == 2),
        key(s.key),
        first(s.first),
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

inline dim3 lots_grid(int64_t elems) { return grid_of(ceil_div(elems, kTurn)); }

// Everything is under way before the flags are waited for.
__device__ inline bool may_step(const ControlFlags& control, float& scale) {
  const int32_t finite = *control.finite;
  scale = *control.factor;
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

// Steps four elements that a thread has loaded, from number i of its lot on. Their results take the
// place of what was loaded, so that few registers are taken and many threads fit.
template <class P, class G, class M, int kLot, bool kMaster>
__device__ void step_four(const AdamWFactors& f, float scale,
                          const Stepping<P, G, kLot, kMaster>& stepping, int64_t at, int i,
                          Loaded<P, G, kLot, kMaster>& loaded, Lot<M, kLot>& means,
                          Lot<M, kLot>& squares) {
  float mean[4], square[4], param[4];
  bool numbers = true;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const AdamWResult s = adamw_of(f, loaded.grads.at(i + k) * scale, means.at(i + k),
                                   squares.at(i + k), loaded.value(stepping, i + k));
    mean[k] = s.mean;
    square[k] = s.square;
    param[k] = s.param;
    numbers = numbers && !isnan(s.param);  // it is NaN if one of its moments is
  }
  uint32_t words[4] = {};
  if (stepping.stochastic || sizeof(M) == 2) stepping.draw(at + i, words);
  means.put(i, moment_of<M>(mean, words, first_moment_word, numbers));
  squares.put(i, moment_of<M>(square, words, second_moment_word, numbers));
  if (stepping.has_master()) loaded.master.put(i, Lot<float, 4>::nearest(param));
  loaded.params.put(
      i, stepping.stochastic ? Lot<P, 4>::drawn(param, words, numbers) : Lot<P, 4>::nearest(param));
}

template <class P, class G, class M, int kLot, bool kMaster>
__global__ void __launch_bounds__(kThreads, kLot == 8 ? 5 : 4)
    adamw_kernel(AdamWFactors f, ControlFlags control, Stepping<P, G, kLot, kMaster> stepping, M* m,
                 M* v) {
  after_the_last_kernel();
  const int64_t elems = stepping.elems, base = static_cast<int64_t>(blockIdx.x) * kTurn;
  Loaded<P, G, kLot, kMaster> loaded[kLots<kLot>];
  Lot<M, kLot> means[kLots<kLot>], squares[kLots<kLot>];
  each_lot<kLot>(base, elems, [&](int l, int64_t at) {
    const bool whole = stepping.whole(at);
    loaded[l].load(stepping, at, whole);
    means[l].load(m, at, elems, whole);
    squares[l].load(v, at, elems, whole);
  });
  float scale;
  if (!may_step(control, scale)) return;
  each_lot<kLot>(base, elems, [&](int l, int64_t at) {
    const bool whole = stepping.whole(at);
#pragma unroll
    for (int i = 0; i < kLot; i += 4)
      step_four(f, scale, stepping, at, i, loaded[l], means[l], squares[l]);
    means[l].store(m, at, elems, whole);
    squares[l].store(v, at, elems, whole);
    if (stepping.has_master()) loaded[l].master.store(stepping.master, at, elems, whole);
    loaded[l].params.store(stepping.params, at, elems, whole);
  });
}

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

// A warp for each block: the largest magnitude of its new moments is their scale.
template <class P, class G>
__global__ void __launch_bounds__(kThreads)
    adamw8_kernel(AdamWFactors f, ControlFlags control, Stepping<P, G, kEach8, true> stepping,
                  Codes8 m, Codes8 v) {
  after_the_last_kernel();
  const int64_t block = blockIdx.x * int64_t{kThreads / 32} + threadIdx.x / 32;
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
  if (!may_step(control, scale)) return;
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

template <class P, class G, class M, int kLot, bool kMaster>
__global__ void __launch_bounds__(kThreads)
    sgd_kernel(SgdFactors f, ControlFlags control, Stepping<P, G, kLot, kMaster> stepping,
               M* momentum) {
  after_the_last_kernel();
  const int64_t elems = stepping.elems, base = static_cast<int64_t>(blockIdx.x) * kTurn;
  Loaded<P, G, kLot, kMaster> loaded[kLots<kLot>];
  Lot<M, kLot> moved[kLots<kLot>];
  each_lot<kLot>(base, elems, [&](int l, int64_t at) {
    const bool whole = stepping.whole(at);
    loaded[l].load(stepping, at, whole);
    if (momentum && !f.first) moved[l].load(momentum, at, elems, whole);
  });
  float scale;
  if (!may_step(control, scale)) return;
  each_lot<kLot>(base, elems, [&](int l, int64_t at) {
    const bool whole = stepping.whole(at);
    float param[kLot], move[kLot];
    bool numbers = true;
#pragma unroll
    for (int i = 0; i < kLot; ++i) {
      param[i] = loaded[l].value(stepping, i);
      float direction = fmaf(f.decay, param[i], loaded[l].grads.at(i) * scale);
      if (momentum) {
        move[i] = f.first ? direction : fmaf(f.momentum, moved[l].at(i), direction);
        direction = f.nesterov ? fmaf(f.momentum, move[i], direction) : move[i];
      }
      param[i] = fmaf(-f.rate, direction, param[i]);
      numbers = numbers && !isnan(param[i]);
    }
    uint32_t words[kLot] = {};
    if (stepping.stochastic || sizeof(M) == 2) stepping.draw(at, words);
    if (momentum)
      moment_of<M>(move, words, first_moment_word, numbers).store(momentum, at, elems, whole);
    store_values(stepping, param, words, numbers, at, whole);
  });
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

}  // namespace

void clip(const ClipArgs& args, cudaStream_t stream) {
  launch(clip_kernel, grid_of(1), 1, 0, stream, args);
}

void adamw(const AdamWFactors& factors, const ControlFlags& control, const SteppedArgs& stepped,
           Vector moment1, Vector moment2, cudaStream_t stream) {
  const bool is_aligned =
      all_aligned(stepped.params, stepped.grads, stepped.master, moment1, moment2);
  with_stepped_types(stepped, moment1.type,
                     [&](auto param, auto gradient, auto moment, auto lot, auto has_master) {
                       using P = decltype(param);
                       using G = decltype(gradient);
                       using M = decltype(moment);
                       constexpr int kLot = decltype(lot)::value;
                       constexpr bool kMaster = decltype(has_master)::value;
                       launch_early(adamw_kernel<P, G, M, kLot, kMaster>, lots_grid(stepped.elems),
                                    kThreads, 0, stream, factors, control,
                                    Stepping<P, G, kLot, kMaster>(stepped, is_aligned),
                                    static_cast<M*>(moment1.data), static_cast<M*>(moment2.data));
                     });
}

void adamw8(const AdamWFactors& factors, const ControlFlags& control, const SteppedArgs& stepped,
            Codes8 moment1, Codes8 moment2, cudaStream_t stream) {
  constexpr int64_t kElems = int64_t{kThreads} / 32 * kBlock8;  // of a block of threads
  const bool is_aligned = all_aligned(stepped.params, stepped.grads, stepped.master);
  with_types(stepped.params.type, stepped.grads.type, [&](auto param, auto gradient) {
    using P = decltype(param);
    using G = decltype(gradient);
    launch_early(adamw8_kernel<P, G>, grid_of(ceil_div(stepped.elems, kElems)), kThreads, 0, stream,
                 factors, control, Stepping<P, G, kEach8, true>(stepped, is_aligned), moment1,
                 moment2);
  });
}

void sgd(const SgdFactors& factors, const ControlFlags& control, const SteppedArgs& stepped,
         Vector momentum, cudaStream_t stream) {
  const bool is_aligned = all_aligned(stepped.params, stepped.grads, stepped.master, momentum);
  with_stepped_types(stepped, momentum.type,
                     [&](auto param, auto gradient, auto moment, auto lot, auto has_master) {
                       using P = decltype(param);
                       using G = decltype(gradient);
                       using M = decltype(moment);
                       constexpr int kLot = decltype(lot)::value;
                       constexpr bool kMaster = decltype(has_master)::value;
                       launch_early(sgd_kernel<P, G, M, kLot, kMaster>, lots_grid(stepped.elems),
                                    kThreads, 0, stream, factors, control,
                                    Stepping<P, G, kLot, kMaster>(stepped, is_aligned),
                                    static_cast<M*>(momentum.data));
                     });
}

}  // namespace onefold::cuda
