// Clipping's factor, and optimizer steps: one pass over flat tensors, bound by memory.
#include "cuda/stepping.cuh"

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

__global__ void clip_each_kernel(ClipEachArgs args) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= args.count) return;
  const double norm = sqrt(args.squares[i]) / args.scale;
  double limit = args.limit;
  if (args.weights) limit *= fmax(sqrt(args.weights[i]), args.least);
  const double ratio = limit / (norm + args.eps);
  args.factors[i] = static_cast<float>((ratio < 1.0 ? ratio : 1.0) / args.scale);
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
struct AdamWItem {
  AdamWFactors factors;
  Stepping<P, G, kLot, kMaster> stepping;
  M *moment1, *moment2;
};

template <class P, class G, class M, int kLot, bool kMaster>
__global__ void __launch_bounds__(kThreads, kLot == 8 ? 5 : 4)
    adamw_kernel(ControlFlags control,
                 const __grid_constant__ Segments<AdamWItem<P, G, M, kLot, kMaster>> segments) {
  after_the_last_kernel();
  const int mine = segments.mine();
  const auto& item = segments.items[mine];
  const AdamWFactors& f = item.factors;
  const auto& stepping = item.stepping;
  const auto m = item.moment1, v = item.moment2;
  const int64_t elems = stepping.elems, base = segments.block_of(mine) * kTurn;
  Loaded<P, G, kLot, kMaster> loaded[kLots<kLot>];
  Lot<M, kLot> means[kLots<kLot>], squares[kLots<kLot>];
  each_lot<kLot>(base, elems, [&](int l, int64_t at) {
    const bool whole = stepping.whole(at);
    loaded[l].load(stepping, at, whole);
    means[l].load(m, at, elems, whole);
    squares[l].load(v, at, elems, whole);
  });
  float scale;
  if (!may_step(control, stepping.factor, scale)) return;
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

template <class P, class G, class M, int kLot, bool kMaster>
struct SgdItem {
  SgdFactors factors;
  Stepping<P, G, kLot, kMaster> stepping;
  M* momentum;
};

template <class P, class G, class M, int kLot, bool kMaster>
__global__ void __launch_bounds__(kThreads)
    sgd_kernel(ControlFlags control,
               const __grid_constant__ Segments<SgdItem<P, G, M, kLot, kMaster>> segments) {
  after_the_last_kernel();
  const int mine = segments.mine();
  const auto& item = segments.items[mine];
  const SgdFactors& f = item.factors;
  const auto& stepping = item.stepping;
  M* const momentum = item.momentum;
  const int64_t elems = stepping.elems, base = segments.block_of(mine) * kTurn;
  Loaded<P, G, kLot, kMaster> loaded[kLots<kLot>];
  Lot<M, kLot> moved[kLots<kLot>];
  each_lot<kLot>(base, elems, [&](int l, int64_t at) {
    const bool whole = stepping.whole(at);
    loaded[l].load(stepping, at, whole);
    if (momentum && !f.first) moved[l].load(momentum, at, elems, whole);
  });
  float scale;
  if (!may_step(control, stepping.factor, scale)) return;
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

}  // namespace

void clip_each(const ClipEachArgs& args, cudaStream_t stream) {
  launch(clip_each_kernel, grid_of(ceil_div(args.count, kThreads)), kThreads, 0, stream, args);
}

void clip(const ClipArgs& args, cudaStream_t stream) {
  launch(clip_kernel, grid_of(1), 1, 0, stream, args);
}

void adamw(const ControlFlags& control, std::span<const AdamWArgs> list, cudaStream_t stream) {
  const auto alike = [](const AdamWArgs& a, const AdamWArgs& b) {
    return same_kind(a.stepped, b.stepped) && a.moment1.type == b.moment1.type;
  };
  each_part(list, alike, [&](std::span<const AdamWArgs> part) {
    with_stepped_types(part[0].stepped, part[0].moment1.type,
                       [&](auto param, auto gradient, auto moment, auto lot, auto has_master) {
                         using P = decltype(param);
                         using G = decltype(gradient);
                         using M = decltype(moment);
                         constexpr int kLot = decltype(lot)::value;
                         constexpr bool kMaster = decltype(has_master)::value;
                         Segments<AdamWItem<P, G, M, kLot, kMaster>> segments;
                         for (const auto& [factors, stepped, moment1, moment2] : part) {
                           const bool is_aligned = all_aligned(stepped.params, stepped.grads,
                                                               stepped.master, moment1, moment2);
                           segments.add({factors,
                                         {stepped, is_aligned},
                                         static_cast<M*>(moment1.data),
                                         static_cast<M*>(moment2.data)},
                                        ceil_div(stepped.elems, kTurn));
                         }
                         launch_early(adamw_kernel<P, G, M, kLot, kMaster>, segments.grid(),
                                      kThreads, 0, stream, control, segments);
                       });
  });
}

void sgd(const ControlFlags& control, std::span<const SgdArgs> list, cudaStream_t stream) {
  const auto alike = [](const SgdArgs& a, const SgdArgs& b) {
    return same_kind(a.stepped, b.stepped) && a.momentum.type == b.momentum.type;
  };
  each_part(list, alike, [&](std::span<const SgdArgs> part) {
    with_stepped_types(part[0].stepped, part[0].momentum.type,
                       [&](auto param, auto gradient, auto moment, auto lot, auto has_master) {
                         using P = decltype(param);
                         using G = decltype(gradient);
                         using M = decltype(moment);
                         constexpr int kLot = decltype(lot)::value;
                         constexpr bool kMaster = decltype(has_master)::value;
                         Segments<SgdItem<P, G, M, kLot, kMaster>> segments;
                         for (const auto& [factors, stepped, momentum] : part) {
                           const bool is_aligned =
                               all_aligned(stepped.params, stepped.grads, stepped.master, momentum);
                           segments.add(
                               {factors, {stepped, is_aligned}, static_cast<M*>(momentum.data)},
                               ceil_div(stepped.elems, kTurn));
                         }
                         launch_early(sgd_kernel<P, G, M, kLot, kMaster>, segments.grid(), kThreads,
                                      0, stream, control, segments);
                       });
  });
}

}  // namespace onefold::cuda
