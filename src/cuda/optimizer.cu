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

// Narrowing to the neighbour that a random word chooses, as base/half.h defines it.
__device__ inline bf16 narrow_drawn(float x, uint32_t word, bf16) {
  const uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7FFFFFFFu;
  const uint32_t sign = bits >> 16 & 0x8000u;
  if (magnitude > 0x7F800000u) return __ushort_as_bfloat16(static_cast<uint16_t>(sign | 0x7FC0u));
  return __ushort_as_bfloat16(static_cast<uint16_t>(sign | (magnitude + (word >> 16)) >> 16));
}

__device__ inline f16 narrow_drawn(float x, uint32_t word, f16) {
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
  return __ushort_as_half(static_cast<uint16_t>(sign | rounded));
}

__device__ inline float narrow_drawn(float x, uint32_t, float) { return x; }

__device__ inline PhiloxWords drawn_words(const PhiloxKey& key, int64_t block) {
  const auto b = static_cast<uint64_t>(block);
  return philox(key, {static_cast<uint32_t>(b), static_cast<uint32_t>(b >> 32), 0, 0});
}

// Parameters of type P with gradients of type G, four elements at a time.
template <class P, class G>
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

  template <class T>
  __device__ Four<float> load(const T* data, int64_t at) const {
    return wide_of(load_four(data, at, elems, aligned));
  }
  __device__ Four<G> gradients(int64_t at) const { return load_four(grads, at, elems, aligned); }
  __device__ Four<float> values(int64_t at) const {
    return master ? load(master, at) : load(params, at);
  }
  // The random words of four elements, from `first` + at on: of one counter, or of two.
  __device__ void draw(int64_t at, uint32_t (&words)[4]) const {
    const int64_t number = first + at;
    const int ahead = static_cast<int>(number & 3);
    const auto [w0, w1, w2, w3] = drawn_words(key, number >> 2);
    words[0] = w0, words[1] = w1, words[2] = w2, words[3] = w3;
    if (ahead == 0) return;
    const auto [n0, n1, n2, n3] = drawn_words(key, (number >> 2) + 1);
    const uint32_t all[8] = {w0, w1, w2, w3, n0, n1, n2, n3};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      words[i] = ahead == 1 ? all[i + 1] : ahead == 2 ? all[i + 2] : all[i + 3];
  }
  // Words are looked at where something is drawn.
  template <class T>
  __device__ void store_drawn(const Four<float>& four, const uint32_t (&words)[4], T* data,
                              int64_t at) const {
    Four<T> rounded;
#pragma unroll
    for (int i = 0; i < 4; ++i) rounded.values[i] = narrow_drawn(four.values[i], words[i], T{});
    store_four<T>(rounded, data, at, elems, aligned);
  }
  __device__ void store_values(const Four<float>& four, const uint32_t (&words)[4],
                               int64_t at) const {
    if (master) store_four(four, master, at, elems, aligned);
    if (stochastic) return store_drawn(four, words, params, at);
    Four<P> rounded;
#pragma unroll
    for (int i = 0; i < 4; ++i) rounded.values[i] = narrow<P>(four.values[i]);
    store_four<P>(rounded, params, at, elems, aligned);
  }

 private:
  template <class T>
  static __device__ Four<float> wide_of(const Four<T>& narrow_values) {
    Four<float> four;
#pragma unroll
    for (int i = 0; i < 4; ++i) four.values[i] = widen(narrow_values.values[i]);
    return four;
  }
};

// Of moments, from the words of parameters.
struct MomentWords {
  uint32_t first[4], second[4];
  __device__ explicit MomentWords(const uint32_t (&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      first[i] = first_moment_word(words[i]);
      second[i] = second_moment_word(words[i]);
    }
  }
};

// p = p (1 - lr wd) - lr/bc1 * m / (sqrt(v / bc2) + eps). With l2, g + wd p takes the gradient's
// place, and p is not shrunk.
template <class P, class G, class M>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(AdamWFactors f, ControlFlags control, Stepping<P, G> stepping, M* m, M* v,
                 Share share) {
  if (*control.finite == 0) return;
  const float scale = *control.factor;
  Four<float> params[kEach], means[kEach], squares[kEach];
  Four<G> gradients[kEach];
  share.each([&](int i, int64_t, int64_t at) {
    gradients[i] = stepping.gradients(at);
    means[i] = stepping.load(m, at);
    squares[i] = stepping.load(v, at);
    params[i] = stepping.values(at);
  });
  share.each([&](int i, int64_t, int64_t at) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float gradient = widen(gradients[i].values[k]) * scale;
      if (f.l2 != 0) gradient = fmaf(f.l2, params[i].values[k], gradient);
      float& mean = means[i].values[k];
      float& square = squares[i].values[k];
      float& param = params[i].values[k];
      mean = fmaf(f.beta1, mean, f.rest1 * gradient);
      square = fmaf(f.beta2, square, f.rest2 * (gradient * gradient));
      const float denominator = sqrtf(square * f.inv_bc2) + f.eps;
      param = fmaf(-f.step, mean / denominator, param * f.keep);
    }
    uint32_t words[4] = {};
    if (stepping.stochastic || sizeof(M) == 2) stepping.draw(at, words);
    const MomentWords moment_words(words);
    stepping.store_drawn(means[i], moment_words.first, m, at);
    stepping.store_drawn(squares[i], moment_words.second, v, at);
    stepping.store_values(params[i], words, at);
  });
}

// Levels of codes of 8 bits (base/block8.h), which says what they are.
template <bool kSecond>
__device__ float level8(float k) {
  const float t = k / (kSecond ? 255.0f : 127.0f);
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
  if (share - low > static_cast<float>(word >> 16) * 0x1p-16f * (high - low)) k += 1;
  if (kSecond) return static_cast<uint32_t>(share > 0 ? fmaxf(k, 1.0f) : k);
  return static_cast<uint32_t>(copysignf(k, value) + 128.0f);
}

__device__ inline float warp_scale(float largest) {
  for (int offset = 16; offset > 0; offset /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, offset));
  return largest > 0 ? fmaxf(largest, 0x1p-90f) : 0.0f;
}

constexpr int kBlock8 = 256, kEach8 = kBlock8 / 32;  // elements of a warp, and of its threads

// Codes that a thread has of a block; those behind the end are 0.
struct Codes {
  uint8_t values[kEach8];
  __device__ static Codes load(const uint8_t* data, int64_t at, int64_t elems) {
    Codes codes{};
#pragma unroll
    for (int i = 0; i < kEach8; ++i)
      if (at + i < elems) codes.values[i] = data[at + i];
    return codes;
  }
  __device__ void store(uint8_t* data, int64_t at, int64_t elems) const {
#pragma unroll
    for (int i = 0; i < kEach8; ++i)
      if (at + i < elems) data[at + i] = values[i];
  }
};

// A warp for each block: the largest magnitude of its new moments is their scale.
template <class P, class G>
__global__ void __launch_bounds__(kThreads)
    adamw8_kernel(AdamWFactors f, ControlFlags control, Stepping<P, G> stepping, Codes8 m,
                  Codes8 v) {
  if (*control.finite == 0) return;
  const int64_t block = blockIdx.x * int64_t{kThreads / 32} + threadIdx.x / 32;
  const int64_t elems = stepping.elems, at = block * kBlock8 + threadIdx.x % 32 * kEach8;
  if (block * kBlock8 >= elems) return;
  const float scale = *control.factor, mean_scale = m.scales[block], square_scale = v.scales[block];
  Codes mean_codes = Codes::load(m.values, at, elems),
        square_codes = Codes::load(v.values, at, elems);
  float means[kEach8], squares[kEach8], largest_mean = 0, largest_square = 0;
  uint32_t words[kEach8 / 4][4];
#pragma unroll
  for (int part = 0; part < kEach8 / 4; ++part) {
    const int64_t here = at + 4 * part;
    const Four<G> gradients = stepping.gradients(here);
    Four<float> params = stepping.values(here);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int e = 4 * part + i;
      float gradient = widen(gradients.values[i]) * scale;
      float& param = params.values[i];
      if (f.l2 != 0) gradient = fmaf(f.l2, param, gradient);
      means[e] =
          fmaf(f.beta1, decode8<false>(mean_codes.values[e], mean_scale), f.rest1 * gradient);
      squares[e] = fmaf(f.beta2, decode8<true>(square_codes.values[e], square_scale),
                        f.rest2 * (gradient * gradient));
      const float denominator = sqrtf(squares[e] * f.inv_bc2) + f.eps;
      param = fmaf(-f.step, means[e] / denominator, param * f.keep);
      if (here + i >= elems) means[e] = squares[e] = 0;
      largest_mean = fmaxf(largest_mean, fabsf(means[e]));
      largest_square = fmaxf(largest_square, squares[e]);
    }
    stepping.draw(here, words[part]);
    stepping.store_values(params, words[part], here);
  }
  largest_mean = warp_scale(largest_mean);
  largest_square = warp_scale(largest_square);
#pragma unroll
  for (int e = 0; e < kEach8; ++e) {
    const uint32_t word = words[e / 4][e % 4];
    mean_codes.values[e] =
        static_cast<uint8_t>(encode8<false>(means[e], largest_mean, first_moment_word(word)));
    square_codes.values[e] =
        static_cast<uint8_t>(encode8<true>(squares[e], largest_square, second_moment_word(word)));
  }
  mean_codes.store(m.values, at, elems);
  square_codes.store(v.values, at, elems);
  if (threadIdx.x % 32 != 0) return;
  m.scales[block] = largest_mean;
  v.scales[block] = largest_square;
}

template <class P, class G, class M>
__global__ void __launch_bounds__(kThreads)
    sgd_kernel(SgdFactors f, ControlFlags control, Stepping<P, G> stepping, M* momentum,
               Share share) {
  if (*control.finite == 0) return;
  const float scale = *control.factor;
  Four<float> params[kEach], moved[kEach];
  Four<G> gradients[kEach];
  share.each([&](int i, int64_t, int64_t at) {
    gradients[i] = stepping.gradients(at);
    params[i] = stepping.values(at);
    if (momentum && !f.first) moved[i] = stepping.load(momentum, at);
  });
  share.each([&](int i, int64_t, int64_t at) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float& param = params[i].values[k];
      float& move = moved[i].values[k];
      float direction = fmaf(f.decay, param, widen(gradients[i].values[k]) * scale);
      if (momentum) {
        move = f.first ? direction : fmaf(f.momentum, move, direction);
        direction = f.nesterov ? fmaf(f.momentum, move, direction) : move;
      }
      param = fmaf(-f.rate, direction, param);
    }
    uint32_t words[4] = {};
    if (stepping.stochastic || sizeof(M) == 2) stepping.draw(at, words);
    if (momentum) stepping.store_drawn(moved[i], MomentWords(words).first, momentum, at);
    stepping.store_values(params[i], words, at);
  });
}

// launch_one(P, G, M) for the types of parameters, gradients and moments, f32 or bf16.
template <class LaunchOne>
void with_stepped_types(const SteppedArgs& stepped, Type moments, LaunchOne launch_one) {
  with_types(stepped.params.type, stepped.grads.type, [&](auto param, auto gradient) {
    if (moments == Type::bf16)
      launch_one(param, gradient, bf16{});
    else
      launch_one(param, gradient, float{});
  });
}

}  // namespace

void clip(const ClipArgs& args, cudaStream_t stream) {
  launch(clip_kernel, grid_of(1), 1, 0, stream, args);
}

void adamw(const AdamWFactors& factors, const ControlFlags& control, const SteppedArgs& stepped,
           Vector moment1, Vector moment2, cudaStream_t stream) {
  const Share share(1, stepped.elems, 4,
                    all_aligned(stepped.params, stepped.grads, stepped.master, moment1, moment2));
  with_stepped_types(stepped, moment1.type, [&](auto param, auto gradient, auto moment) {
    using P = decltype(param);
    using G = decltype(gradient);
    using M = decltype(moment);
    launch(adamw_kernel<P, G, M>, share.grid(), kThreads, 0, stream, factors, control,
           Stepping<P, G>(stepped, share.aligned), static_cast<M*>(moment1.data),
           static_cast<M*>(moment2.data), share);
  });
}

void adamw8(const AdamWFactors& factors, const ControlFlags& control, const SteppedArgs& stepped,
            Codes8 moment1, Codes8 moment2, cudaStream_t stream) {
  constexpr int64_t kElems = int64_t{kThreads} / 32 * kBlock8;  // of a block of threads
  const bool aligned = all_aligned(stepped.params, stepped.grads, stepped.master);
  with_types(stepped.params.type, stepped.grads.type, [&](auto param, auto gradient) {
    using P = decltype(param);
    using G = decltype(gradient);
    launch(adamw8_kernel<P, G>, grid_of((stepped.elems + kElems - 1) / kElems), kThreads, 0, stream,
           factors, control, Stepping<P, G>(stepped, aligned), moment1, moment2);
  });
}

void sgd(const SgdFactors& factors, const ControlFlags& control, const SteppedArgs& stepped,
         Vector momentum, cudaStream_t stream) {
  const Share share(1, stepped.elems, 4,
                    all_aligned(stepped.params, stepped.grads, stepped.master, momentum));
  with_stepped_types(stepped, momentum.type, [&](auto param, auto gradient, auto moment) {
    using P = decltype(param);
    using G = decltype(gradient);
    using M = decltype(moment);
    launch(sgd_kernel<P, G, M>, share.grid(), kThreads, 0, stream, factors, control,
           Stepping<P, G>(stepped, share.aligned), static_cast<M*>(momentum.data), share);
  });
}

}  // namespace onefold::cuda
