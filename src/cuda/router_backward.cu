// Gradients by a router's logits, a warp to a token; and what the router's own losses are, summed
// over tokens in double: over those of a block's warps in their order, then over blocks.
#include "cuda/pack.cuh"
#include "cuda/router.cuh"
#include "device/cuda_scratch.h"

namespace onefold::cuda {
namespace {

constexpr int kWarps = kThreads / kWarp;

// Choices of an expert, over the parts of the sequences.
__device__ int64_t choices_of(const RouteBackwardArgs& args, int expert) {
  if (!args.of_parts) return args.forward.routing.counts[expert];
  int64_t sum = 0;
  for (int64_t part = 0; part < args.parts; ++part)
    sum += args.of_parts[part * args.forward.routing.experts + expert];
  return sum;
}

// The loss of balance is linear in the shares of scores.
__device__ float balance_gradient(const RouteBackwardArgs& args, int expert) {
  const RoutingArgs& to = args.forward.routing;
  const auto tokens = static_cast<float>(to.tokens);
  return args.balance * static_cast<float>(to.experts) *
         static_cast<float>(choices_of(args, expert)) /
         (tokens * tokens * static_cast<float>(args.parts));
}

// Gradients by scores, of the chosen experts: of weights that are scores, or their shares. A lane
// adds those of its experts.
__device__ void add_weight_gradients(const RouteBackwardArgs& args, int64_t token,
                                     const LogitRow& row, float* dscores) {
  const RoutingArgs& to = args.forward.routing;
  const int32_t *chosen = to.chosen + token * to.choices, *places = to.places + token * to.choices;
  const float *weights = to.weights + token * to.choices,
              *dweights = args.dweights + token * args.dweights_stride;
  float sum = 0, along = 0;
  for (int64_t j = 0; j < to.choices; ++j) {
    sum += row.score(chosen[j]);
    if (places[j] >= 0) along += dweights[j] * weights[j];
  }
  for (int64_t j = 0; j < to.choices; ++j) {
    if (chosen[j] % kWarp != lane_of_warp()) continue;
    const float own = places[j] >= 0 ? dweights[j] : 0.0f;
    dscores[chosen[j]] += args.forward.normalised ? (own - along) / (sum + kLeastSum) : own;
  }
}

// shares: the warp's sums, by expert; then of squares of the log-sum-exp.
template <class T>
__device__ void logit_gradients(const RouteBackwardArgs& args, int64_t token, double* shares,
                                float* dscores, T* dlogits) {
  const LogitRow row(args.forward, token);
  const int experts = row.experts;
  const auto tokens = static_cast<float>(args.forward.routing.tokens);
  const float scale = args.balance != 0 || args.z != 0 ? *args.scale : 0.0f;
  LogitRow of_softmax = row;
  if (row.sigmoid && args.z != 0) of_softmax.add_up();
  const auto each = [&](const auto& visit) {
    for (int e = lane_of_warp(); e < experts; e += kWarp) visit(e);
  };

  // Shares of scores: their sum is 1 for a softmax.
  float total = 1;
  if (row.sigmoid) {
    total = 0;
    each([&](int e) { total += row.score(e); });
    total = warp_sum(total) + kLeastSum;
  }
  float along = 0;  // sigmoid: the gradient of balance by `total`
  each([&](int e) {
    const float share = row.score(e) / total;
    shares[e] += static_cast<double>(share);
    dscores[e] = args.balance == 0 ? 0.0f : scale * balance_gradient(args, e) / total;
    along += dscores[e] * share;
  });
  along = warp_sum(along);
  if (row.sigmoid) each([&](int e) { dscores[e] -= along; });
  add_weight_gradients(args, token, row, dscores);

  const float lse = args.z != 0 ? of_softmax.log_sum_exp() : 0.0f;
  if (lane_of_warp() == 0) shares[experts] += static_cast<double>(lse) * static_cast<double>(lse);
  float mean = 0;
  each([&](int e) { mean += row.score(e) * dscores[e]; });
  mean = warp_sum(mean);
  each([&](int e) {
    const float score = row.score(e);
    float gradient = score * (row.sigmoid ? (1 - score) * dscores[e] : dscores[e] - mean);
    if (args.z != 0) gradient += scale * args.z * 2 * lse / tokens * of_softmax.share(e);
    dlogits[e] = narrow<T>(gradient);
  });
}

// A block has a chunk of tokens.
template <class T>
__global__ void __launch_bounds__(kThreads)
    gradients_kernel(RouteBackwardArgs args, View<T> dlogits, int64_t chunk) {
  const int experts = static_cast<int>(args.forward.routing.experts), sums = experts + 1;
  auto* const all = reinterpret_cast<double*>(shared_floats());
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  double* const shares = all + warp * sums;
  float* const dscores = reinterpret_cast<float*>(all + kWarps * sums) + warp * experts;
  for (int e = lane_of_warp(); e < sums; e += kWarp) shares[e] = 0;
  __syncwarp();
  const int64_t begin = blockIdx.x * chunk, tokens = args.forward.routing.tokens,
                end = begin + chunk < tokens ? begin + chunk : tokens;
  for (int64_t token = begin + warp; token < end; token += kWarps)
    logit_gradients(args, token, shares, dscores, dlogits.row(token));
  if (!args.load) return;
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < sums; e += kThreads) {
    double sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += all[w * sums + e];
    args.scratch[static_cast<int64_t>(blockIdx.x) * sums + e] = sum;
  }
}

// One block.
__global__ void load_kernel(RouteBackwardArgs args, int64_t chunks) {
  const RoutingArgs& to = args.forward.routing;
  const int experts = static_cast<int>(to.experts);
  const auto tokens = static_cast<double>(to.tokens);
  auto* const shares = reinterpret_cast<double*>(shared_floats());
  for (int e = static_cast<int>(threadIdx.x); e <= experts; e += kThreads) {
    double sum = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += args.scratch[chunk * (experts + 1) + e];
    shares[e] = sum;
    if (e == experts) continue;
    const int count = to.counts[e];
    args.load[2 + e] += count;
    args.load[2 + experts + e] += count - (to.offsets[e + 1] - to.offsets[e]);
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  double balance = 0;
  for (int e = 0; e < experts; ++e)
    balance += static_cast<double>(choices_of(args, e)) /
               (tokens * static_cast<double>(args.parts)) * (shares[e] / tokens);
  args.load[0] += static_cast<double>(args.balance) * static_cast<double>(experts) * balance;
  args.load[1] += static_cast<double>(args.z) * shares[experts] / tokens;
}

}  // namespace

void route_backward(const RouteBackwardArgs& args, cudaStream_t stream) {
  const RoutingArgs& to = args.forward.routing;
  const RowChunks chunks = route_chunks(to.tokens);
  const int64_t shared = kWarps * ((to.experts + 1) * 8 + to.experts * 4);
  with_type(args.dlogits.type, [&](auto element) {
    using T = decltype(element);
    launch(gradients_kernel<T>, grid_of(chunks.count), kThreads, shared, stream, args,
           view<T>(args.dlogits), chunks.size);
  });
  if (args.load && to.tokens > 0)
    launch(load_kernel, grid_of(1), kThreads, (to.experts + 1) * 8, stream, args, chunks.count);
}

}  // namespace onefold::cuda
