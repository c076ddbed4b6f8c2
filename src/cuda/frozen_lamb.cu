// LAMB with ratios that stay: the same of kernels/cpu/frozen_lamb.cpp.
#include "cuda/stepping.cuh"

namespace onefold::cuda {
namespace {

constexpr int kMeanRatio = 0, kLastFactor = 1;  // TensorRatio of kernels.h

template <class P, class G, class M, int kLot, bool kMaster>
struct FrozenLambItem {
  FrozenLambFactors factors;
  Stepping<P, G, kLot, kMaster> stepping;
  float *dst, *plain;
  M* moment1;
  const M* moment2;
  M* fresh;
  const float* ratios;
  double* largest;
};

__device__ inline float root_of(const FrozenLambFactors& f, float square) {
  return f.eps_inside ? sqrtf(square + f.eps) : sqrtf(square) + f.eps;
}

template <class P, class G, class M, int kLot, bool kMaster>
__global__ void __launch_bounds__(kThreads) frozen_lamb_kernel(
    ControlFlags control,
    const __grid_constant__ Segments<FrozenLambItem<P, G, M, kLot, kMaster>> segments) {
  after_the_last_kernel();
  constexpr float kLargest = 1e18f;  // kLargestGradient of kernels.h
  const int mine = segments.mine();
  const auto& item = segments.items[mine];
  const FrozenLambFactors& f = item.factors;
  const auto& stepping = item.stepping;
  const int64_t elems = stepping.elems, base = segments.block_of(mine) * kTurn;
  float scale;
  if (!may_step(control, stepping.factor, scale)) return;
  const bool begins = item.ratios[kLastFactor] == 0.0f;
  float largest = 0;
  each_lot<kLot>(base, elems, [&](int, int64_t at) {
    const bool whole = stepping.whole(at);
    Loaded<P, G, kLot, kMaster> loaded;
    Lot<M, kLot> first, second, third;
    loaded.load(stepping, at, whole);
    first.load(item.moment1, at, elems, whole);
    second.load(item.moment2, at, elems, whole);
    third.load(begins ? item.moment2 : item.fresh, at, elems, whole);
    float mean[kLot], after[kLot], plain[kLot], way[kLot];
    bool numbers = true;
#pragma unroll
    for (int i = 0; i < kLot; ++i) {
      const float gradient = fminf(fmaxf(loaded.grads.at(i) * scale, -kLargest), kLargest);
      const float old = first.at(i);
      mean[i] = f.arrives ? gradient : fmaf(f.beta1, old, f.rest1 * gradient);
      const float taken = fminf(fmaxf(fmaf(-f.beta1, old, mean[i]) / f.rest1, -kLargest), kLargest);
      after[i] = fmaf(f.beta2, third.at(i), f.rest2 * (taken * taken));
      const float root = root_of(f, second.at(i));
      if (at + i < elems) largest = fmaxf(largest, root / root_of(f, after[i]));
      plain[i] = mean[i] / root;
      way[i] = fmaf(f.decay, loaded.value(stepping, i), plain[i]);
      numbers = numbers && !isnan(mean[i]) && !isnan(after[i]);
    }
    uint32_t words[kLot] = {};
    if (sizeof(M) == 2) stepping.draw(at, words);
    moment_of<M>(mean, words, first_moment_word, numbers).store(item.moment1, at, elems, whole);
    moment_of<M>(after, words, second_moment_word, numbers).store(item.fresh, at, elems, whole);
    if (item.plain) Lot<float, kLot>::nearest(plain).store(item.plain, at, elems, whole);
    Lot<float, kLot>::nearest(way).store(item.dst, at, elems, whole);
  });
  for (int lane = kWarp / 2; lane > 0; lane /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lane));
  // Numbers that are not negative are in the order of their bits; the order of blocks does not
  // matter to a maximum.
  if (threadIdx.x % kWarp == 0)
    atomicMax(reinterpret_cast<unsigned long long*>(item.largest),
              static_cast<unsigned long long>(__double_as_longlong(static_cast<double>(largest))));
}

__global__ void tensor_trust_kernel(ControlFlags control, TensorTrustArgs args) {
  float scale;
  if (!may_step(control, nullptr, scale)) return;
  const double first = sqrt(args.squares[0]), second = sqrt(args.squares[1]);
  const auto mean = static_cast<double>(args.ratios[kMeanRatio]);
  if (!args.largest) {
    double ratio = 1;
    if (first > 0 && second > 0) ratio = fmin(fmax(first / second, args.least), args.most);
    if (ratio != 1)
      args.ratios[kMeanRatio] = static_cast<float>(args.beta * mean + (1 - args.beta) * ratio);
    *args.dst = ratio;
    return;
  }
  double largest = 0;
  for (int64_t rank = 0; rank < args.ranks; ++rank) largest = fmax(largest, args.largest[rank]);
  const double share = second > 0 ? fmin(1.0, first / second) : 1.0;
  const double last =
      args.ratios[kLastFactor] == 0.0f ? 1.0 : static_cast<double>(args.ratios[kLastFactor]);
  double factor = largest * share + (1 - share);
  factor = fmin(fmax(factor, args.least_factor), args.most_factor);
  factor = fmin(fmax(factor, last * (1 - args.threshold)), last * (1 + args.threshold));
  args.ratios[kLastFactor] = static_cast<float>(factor);
  *args.dst = mean * factor;
}

}  // namespace

void frozen_lamb(const ControlFlags& control, std::span<const FrozenLambArgs> list,
                 cudaStream_t stream) {
  const auto alike = [](const FrozenLambArgs& a, const FrozenLambArgs& b) {
    return same_kind(a.stepped, b.stepped) && a.moment1.type == b.moment1.type;
  };
  each_part(list, alike, [&](std::span<const FrozenLambArgs> part) {
    with_stepped_types(
        part[0].stepped, part[0].moment1.type,
        [&](auto param, auto gradient, auto moment, auto lot, auto has_master) {
          using P = decltype(param);
          using G = decltype(gradient);
          using M = decltype(moment);
          constexpr int kLot = decltype(lot)::value;
          constexpr bool kMaster = decltype(has_master)::value;
          Segments<FrozenLambItem<P, G, M, kLot, kMaster>> segments;
          for (const auto& [factors, stepped, dst, plain, m, v, fresh, ratios, largest] : part) {
            // Where nobody asks for `plain` it is nowhere, which is aligned.
            const bool is_aligned =
                all_aligned(stepped.params, stepped.grads, stepped.master, m, v, fresh, dst, plain);
            segments.add({factors,
                          {stepped, is_aligned},
                          dst,
                          plain,
                          static_cast<M*>(m.data),
                          static_cast<const M*>(v.data),
                          static_cast<M*>(fresh.data),
                          ratios,
                          largest},
                         ceil_div(stepped.elems, kTurn));
          }
          launch_early(frozen_lamb_kernel<P, G, M, kLot, kMaster>, segments.grid(), kThreads, 0,
                       stream, control, segments);
        });
  });
}

void tensor_trust(const ControlFlags& control, const TensorTrustArgs& args, cudaStream_t stream) {
  launch(tensor_trust_kernel, grid_of(1), 1, 0, stream, control, args);
}

}  // namespace onefold::cuda
