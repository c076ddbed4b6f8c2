// What optimizers' kernels have in common: parameters with their master and their rounding, and
// pieces of flat tensors by type.
#if defined(ONEFOLD_KERNELS_CPU_STEPPING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEFOLD_KERNELS_CPU_STEPPING_INL_H_
#undef ONEFOLD_KERNELS_CPU_STEPPING_INL_H_
#else
#define ONEFOLD_KERNELS_CPU_STEPPING_INL_H_
#endif

#include "hwy/cache_control.h"
#include "kernels/cpu/philox-inl.h"
#include "kernels/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {

// Elements ahead: the processor's own prefetching stops at the end of each page, of which four are
// read at a time (17 % of the time on 16 Sapphire Rapids cores).
constexpr size_t kPrefetch = 1024;

using DU = hn::RebindToUnsigned<DF>;
using VU = hn::Vec<DU>;

// What is stepped: a master in f32, or the parameters P themselves.
template <class P>
struct Parameters {
  P* params;
  float* master;          // or null
  const uint32_t* words;  // random ones for each parameter: how what is kept is rounded; or null

  // Rounded copies of a master go past the caches: they are not read before all of the step is
  // done, and a line that is written whole need not be fetched first.
  HWY_INLINE bool Streams() const {
#if HWY_TARGET == HWY_AVX3
    return sizeof(P) == 2 && master && reinterpret_cast<uintptr_t>(params) % 32 == 0;
#else
    return false;
#endif
  }
  template <class Io>
  HWY_INLINE VF Load(Io io, size_t i) const {
    const DF d;
    return master ? io.Load(d, master + i) : io.Load(d, params + i);
  }
  HWY_INLINE void Prefetch(size_t i) const {
    if (master) hwy::Prefetch(master + i);
    if (!Streams()) hwy::Prefetch(params + i);
  }
  template <class Io>
  HWY_INLINE void Store(Io io, VF value, size_t i) const {
    const DF d;
    if (master) io.Store(value, d, master + i);
    if constexpr (!std::is_same_v<P, float>) {
      if (words && !master) return StoreDrawn(io, value, io.Load(DU(), words + i), params + i);
#if HWY_TARGET == HWY_AVX3
      if constexpr (std::is_same_v<Io, Whole>)
        if (Streams())
          return hn::Stream(Narrowed(d, value, P()), hn::Rebind<uint16_t, DF>(), Bits(params + i));
#endif
    }
    io.Store(value, d, params + i);
  }
  // Moments of type M, by the words that `word_of` makes of those of parameters.
  template <class Io, class M, class WordOf>
  HWY_INLINE void StoreMoment(Io io, VF value, M* moment, const WordOf& word_of, size_t i) const {
    if constexpr (std::is_same_v<M, float>)
      io.Store(value, DF(), moment + i);
    else
      StoreDrawn(io, value, word_of(io.Load(DU(), words + i)), moment + i);
  }

 private:
  template <class Io, class T>
  static HWY_INLINE void StoreDrawn(Io io, VF value, VU random, T* to) {
    const DF d;
    io.StoreBits(Drawn(d, value, random, T()), d, to);
  }
};

HWY_INLINE VU FirstMomentWord(VU word) { return hn::ShiftLeft<16>(word); }
HWY_INLINE VU SecondMomentWord(VU word) {
  return hn::Mul(word, hn::Set(DU(), second_moment_word(1)));
}

// work(parameters, gradients, begin, n) for pieces of a flat range, each with its types and, where
// rounding draws, with its random words.
template <class Work>
HWY_INLINE void WithPieces(const Stepped& stepped, const Work& work) {
  const auto n = static_cast<size_t>(stepped.params.cols);
  with_type(stepped.params.dtype, "an optimizer", [&](auto type) HWY_ATTR {
    using P = decltype(type);
    constexpr size_t kBlock = 1024;
    HWY_ALIGN uint32_t words[kBlock];
    const bool draws = stepped.rounding.has_value();
    for (size_t begin = 0; begin < n; begin += kBlock) {
      const size_t count = std::min(kBlock, n - begin);
      if (draws)
        RandomWords(stepped.rounding->key, 0)
            .Fill(
                static_cast<uint64_t>(stepped.rounding->first) + begin, count,
                [](VU64 pairs) HWY_ATTR { return pairs; }, words);
      float* master = or_null<float>(stepped.master);
      const Parameters<P> parameters{stepped.params.as<P>() + begin,
                                     master ? master + begin : nullptr, draws ? words : nullptr};
      if (stepped.grads.dtype == DType::f32)
        work(parameters, stepped.grads.f32() + begin, begin, count);
      else
        work(parameters, stepped.grads.as<P>() + begin, begin, count);
    }
    hwy::FlushStream();  // before other threads read what was stored past the caches
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle guard
