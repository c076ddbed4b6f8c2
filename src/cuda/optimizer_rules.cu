// Lion, the two halves of steps that have to know whole tensors (the direction and the move), and
// clipping by value.
#include "cuda/stepping.cuh"

namespace onefold::cuda {
namespace {

template <class P, class G, class M, int kLot, bool kMaster>
struct LionItem {
  LionFactors factors;
  Stepping<P, G, kLot, kMaster> stepping;
  M* momentum;
};

template <class P, class G, class M, int kLot, bool kMaster>
__global__ void __launch_bounds__(kThreads)
    lion_kernel(ControlFlags control,
                const __grid_constant__ Segments<LionItem<P, G, M, kLot, kMaster>> segments) {
  after_the_last_kernel();
  const int mine = segments.mine();
  const auto& item = segments.items[mine];
  const LionFactors& f = item.factors;
  const auto& stepping = item.stepping;
  const int64_t elems = stepping.elems, base = segments.block_of(mine) * kTurn;
  Loaded<P, G, kLot, kMaster> loaded[kLots<kLot>];
  Lot<M, kLot> moments[kLots<kLot>];
  each_lot<kLot>(base, elems, [&](int l, int64_t at) {
    const bool whole = stepping.whole(at);
    loaded[l].load(stepping, at, whole);
    moments[l].load(item.momentum, at, elems, whole);
  });
  float scale;
  if (!may_step(control, stepping.factor, scale)) return;
  each_lot<kLot>(base, elems, [&](int l, int64_t at) {
    const bool whole = stepping.whole(at);
    float param[kLot], moment[kLot];
    bool numbers = true;
#pragma unroll
    for (int i = 0; i < kLot; ++i) {
      const float gradient = loaded[l].grads.at(i) * scale;
      const float mixed = fmaf(f.beta1, moments[l].at(i), f.rest1 * gradient);
      const float sign = mixed == 0.0f ? 0.0f : copysignf(1.0f, mixed);
      moment[i] = fmaf(f.beta2, moments[l].at(i), f.rest2 * gradient);
      param[i] = fmaf(-f.rate, sign, loaded[l].value(stepping, i) * f.keep);
      numbers = numbers && !isnan(param[i]) && !isnan(moment[i]);
    }
    uint32_t words[kLot] = {};
    if (stepping.stochastic || sizeof(M) == 2) stepping.draw(at, words);
    moment_of<M>(moment, words, first_moment_word, numbers).store(item.momentum, at, elems, whole);
    store_values(stepping, param, words, numbers, at, whole);
  });
}

template <class P, class G, class M, int kLot, bool kMaster>
struct DirectionItem {
  DirectionFactors factors;
  Stepping<P, G, kLot, kMaster> stepping;
  float* dst;
  M *moment1, *moment2;
  const double* squares;
};

// How much of a gradient a momentum takes in.
__device__ inline float taken(const DirectionFactors& f, const double* squares, float factor) {
  if (f.rule == DirectionRule::muon) return f.rest1;
  const double weight = sqrt(squares[0]), gradient = sqrt(squares[1]) * static_cast<double>(factor);
  if (!(weight > 0 && gradient > 0)) return f.rate;
  const double local =
      static_cast<double>(f.trust) * weight / (gradient + static_cast<double>(f.decay) * weight);
  return static_cast<float>(static_cast<double>(f.rate) * local);
}

template <class P, class G, class M, int kLot, bool kMaster>
__global__ void __launch_bounds__(kThreads) direction_kernel(
    ControlFlags control,
    const __grid_constant__ Segments<DirectionItem<P, G, M, kLot, kMaster>> segments) {
  after_the_last_kernel();
  constexpr float kLargest = 1e18f;  // kLargestGradient of kernels.h
  const int mine = segments.mine();
  const auto& item = segments.items[mine];
  const DirectionFactors& f = item.factors;
  const auto& stepping = item.stepping;
  const int64_t elems = stepping.elems, base = segments.block_of(mine) * kTurn;
  const bool lamb = f.rule == DirectionRule::lamb;
  float scale;
  if (!may_step(control, stepping.factor, scale)) return;
  const bool root = f.rule == DirectionRule::adafactor;
  const float take = lamb || root ? 0.0f : taken(f, item.squares, scale);
  each_lot<kLot>(base, elems, [&](int, int64_t at) {
    const bool whole = stepping.whole(at);
    Loaded<P, G, kLot, kMaster> loaded;
    Lot<M, kLot> first, second;
    loaded.load(stepping, at, whole);
    first.load(item.moment1, at, elems, whole);
    if (lamb) second.load(item.moment2, at, elems, whole);
    float mean[kLot], square[kLot] = {}, way[kLot];
    bool numbers = true;
#pragma unroll
    for (int i = 0; i < kLot; ++i) {
      const float param = loaded.value(stepping, i);
      float gradient = loaded.grads.at(i) * scale;
      if (lamb) {
        gradient = fminf(fmaxf(gradient, -kLargest), kLargest);
        mean[i] = fmaf(f.beta1, first.at(i), f.rest1 * gradient);
        square[i] = fmaf(f.beta2, second.at(i), f.rest2 * (gradient * gradient));
        const float below = f.eps_inside ? sqrtf(square[i] + f.eps) : sqrtf(square[i]) + f.eps;
        way[i] = fmaf(f.decay, param, mean[i] / below);
      } else if (root) {  // its moment is of squares
        gradient = fminf(fmaxf(gradient, -kLargest), kLargest);
        mean[i] = fmaf(f.beta1, first.at(i), f.rest1 * (gradient * gradient));
        way[i] = gradient / fmaxf(sqrtf(mean[i]), f.eps);
      } else {
        if (f.rule == DirectionRule::lars) gradient = fmaf(f.decay, param, gradient);
        const float part = take * gradient;
        mean[i] = fmaf(f.beta1, first.at(i), part);
        way[i] = f.nesterov ? fmaf(f.beta1, mean[i], part) : mean[i];
      }
      numbers = numbers && !isnan(mean[i]) && !isnan(square[i]);
    }
    uint32_t words[kLot] = {};
    if (sizeof(M) == 2) stepping.draw(at, words);
    moment_of<M>(mean, words, first_moment_word, numbers).store(item.moment1, at, elems, whole);
    if (lamb)
      moment_of<M>(square, words, second_moment_word, numbers)
          .store(item.moment2, at, elems, whole);
    Lot<float, kLot>::nearest(way).store(item.dst, at, elems, whole);
  });
}

template <class P, int kLot>
struct MoveItem {
  MoveFactors factors;
  Stepping<P, float, kLot, true> stepping;
  const double *squares, *ratio;
};

__device__ inline float rate_of(const MoveFactors& f, const double* squares, const double* given) {
  if (given) return static_cast<float>(static_cast<double>(f.rate) * *given);
  if (!squares) return f.rate;
  const double weight = sqrt(squares[0]), direction = sqrt(squares[1]);
  if (f.elems > 0) {
    const double root = sqrt(static_cast<double>(f.elems));
    const double longer = direction / (root * static_cast<double>(f.most));
    const double ratio =
        fmax(weight / root, static_cast<double>(f.least)) / (longer > 1 ? longer : 1.0);
    return static_cast<float>(static_cast<double>(f.rate) * ratio);
  }
  if (!(weight > 0 && direction > 0)) return f.rate;
  const double ratio =
      fmin(fmax(weight / direction, static_cast<double>(f.least)), static_cast<double>(f.most));
  return static_cast<float>(static_cast<double>(f.rate) * ratio);
}

template <class P, int kLot>
__global__ void __launch_bounds__(kThreads)
    move_kernel(ControlFlags control,
                const __grid_constant__ Segments<MoveItem<P, kLot>> segments) {
  after_the_last_kernel();
  const int mine = segments.mine();
  const auto& item = segments.items[mine];
  const auto& stepping = item.stepping;
  const int64_t elems = stepping.elems, base = segments.block_of(mine) * kTurn;
  float scale;
  if (!may_step(control, stepping.factor, scale)) return;
  const float rate = rate_of(item.factors, item.squares, item.ratio);
  each_lot<kLot>(base, elems, [&](int, int64_t at) {
    const bool whole = stepping.whole(at);
    Loaded<P, float, kLot, true> loaded;
    loaded.load(stepping, at, whole);
    float param[kLot];
    bool numbers = true;
#pragma unroll
    for (int i = 0; i < kLot; ++i) {
      param[i] = fmaf(-rate, loaded.grads.at(i), loaded.value(stepping, i) * item.factors.keep);
      numbers = numbers && !isnan(param[i]);
    }
    uint32_t words[kLot] = {};
    if (stepping.stochastic) stepping.draw(at, words);
    store_values(stepping, param, words, numbers, at, whole);
  });
}

template <class T>
struct ClampItem {
  T* x;
  int64_t elems;
  double* dst;
};

__global__ void zeros_kernel(const __grid_constant__ Segments<double*> counts) {
  if (threadIdx.x < counts.count) *counts.items[threadIdx.x] = 0;
}

// Counts are whole numbers: their sum does not depend on its order.
template <class T>
__global__ void __launch_bounds__(kThreads)
    clamp_kernel(const __grid_constant__ Segments<ClampItem<T>> segments, float limit) {
  const int mine = segments.mine();
  const auto& [x, elems, dst] = segments.items[mine];
  const int64_t base = segments.block_of(mine) * kTurn;
  int count = 0;
  for (int64_t i = base + threadIdx.x; i < base + kTurn && i < elems; i += kThreads) {
    const float value = widen(x[i]), size = fabsf(value);
    if (!(size > limit) || isinf(size)) continue;
    ++count;
    x[i] = narrow<T>(copysignf(limit, value));
  }
  if (count > 0) atomicAdd(dst, static_cast<double>(count));
}

__global__ void normalise_kernel(const float* x, const double* squares, float eps, int64_t elems,
                                 float* dst) {
  const float factor = 1.0f / (static_cast<float>(sqrt(*squares)) + eps);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < elems) dst[i] = x[i] * factor;
}

}  // namespace

void lion(const ControlFlags& control, std::span<const LionArgs> list, cudaStream_t stream) {
  const auto alike = [](const LionArgs& a, const LionArgs& b) {
    return same_kind(a.stepped, b.stepped) && a.momentum.type == b.momentum.type;
  };
  each_part(list, alike, [&](std::span<const LionArgs> part) {
    with_stepped_types(part[0].stepped, part[0].momentum.type,
                       [&](auto param, auto gradient, auto moment, auto lot, auto has_master) {
                         using P = decltype(param);
                         using G = decltype(gradient);
                         using M = decltype(moment);
                         constexpr int kLot = decltype(lot)::value;
                         constexpr bool kMaster = decltype(has_master)::value;
                         Segments<LionItem<P, G, M, kLot, kMaster>> segments;
                         for (const auto& [factors, stepped, momentum] : part) {
                           const bool is_aligned =
                               all_aligned(stepped.params, stepped.grads, stepped.master, momentum);
                           segments.add(
                               {factors, {stepped, is_aligned}, static_cast<M*>(momentum.data)},
                               ceil_div(stepped.elems, kTurn));
                         }
                         launch_early(lion_kernel<P, G, M, kLot, kMaster>, segments.grid(),
                                      kThreads, 0, stream, control, segments);
                       });
  });
}

void direction(const ControlFlags& control, std::span<const DirectionArgs> list,
               cudaStream_t stream) {
  const auto alike = [](const DirectionArgs& a, const DirectionArgs& b) {
    return same_kind(a.stepped, b.stepped) && a.moment1.type == b.moment1.type;
  };
  each_part(list, alike, [&](std::span<const DirectionArgs> part) {
    with_stepped_types(part[0].stepped, part[0].moment1.type,
                       [&](auto param, auto gradient, auto moment, auto lot, auto has_master) {
                         using P = decltype(param);
                         using G = decltype(gradient);
                         using M = decltype(moment);
                         constexpr int kLot = decltype(lot)::value;
                         constexpr bool kMaster = decltype(has_master)::value;
                         Segments<DirectionItem<P, G, M, kLot, kMaster>> segments;
                         for (const auto& [factors, stepped, dst, m, v, squares] : part) {
                           const bool is_aligned = all_aligned(stepped.params, stepped.grads,
                                                               stepped.master, m, v, dst);
                           segments.add({factors,
                                         {stepped, is_aligned},
                                         dst,
                                         static_cast<M*>(m.data),
                                         static_cast<M*>(v.data),
                                         squares},
                                        ceil_div(stepped.elems, kTurn));
                         }
                         launch_early(direction_kernel<P, G, M, kLot, kMaster>, segments.grid(),
                                      kThreads, 0, stream, control, segments);
                       });
  });
}

void move(const ControlFlags& control, std::span<const MoveArgs> list, cudaStream_t stream) {
  const auto alike = [](const MoveArgs& a, const MoveArgs& b) {
    return same_kind(a.stepped, b.stepped);
  };
  each_part(list, alike, [&](std::span<const MoveArgs> part) {
    with_type(part[0].stepped.params.type, [&](auto param) {
      using P = decltype(param);
      Segments<MoveItem<P, 4>> segments;
      for (const auto& [factors, stepped, squares, ratio] : part)
        segments.add({factors,
                      {stepped, all_aligned(stepped.params, stepped.grads, stepped.master)},
                      squares,
                      ratio},
                     ceil_div(stepped.elems, kTurn));
      launch_early(move_kernel<P, 4>, segments.grid(), kThreads, 0, stream, control, segments);
    });
  });
}

void clamp(std::span<const ClampArgs> list, float limit, cudaStream_t stream) {
  const auto alike = [](const ClampArgs& a, const ClampArgs& b) { return a.x.type == b.x.type; };
  each_part(list, alike, [&](std::span<const ClampArgs> part) {
    Segments<double*> counts;
    for (const ClampArgs& one : part) counts.add(one.dst, 1);
    launch(zeros_kernel, grid_of(1), kMostSegments, 0, stream, counts);
    with_type(part[0].x.type, [&](auto element) {
      using T = decltype(element);
      Segments<ClampItem<T>> segments;
      for (const auto& [x, elems, dst] : part)
        segments.add({static_cast<T*>(x.data), elems, dst}, ceil_div(elems, kTurn));
      launch(clamp_kernel<T>, segments.grid(), kThreads, 0, stream, segments, limit);
    });
  });
}

void normalise(const float* x, const double* squares, float eps, int64_t elems, float* dst,
               cudaStream_t stream) {
  launch(normalise_kernel, grid_of(ceil_div(elems, kThreads)), kThreads, 0, stream, x, squares, eps,
         elems, dst);
}

}  // namespace onefold::cuda
