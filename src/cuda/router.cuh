// A row of a router's logits, which a warp looks at together: lane l has experts l, l + 32, ...
#pragma once

#include "cuda/experts.h"
#include "cuda/launch.cuh"

namespace onefold::cuda {

// Keeps a share of scores that are all 0 from being no number.
inline constexpr float kLeastSum = 1e-20f;

__device__ inline int lane_of_warp() { return static_cast<int>(threadIdx.x) % kWarp; }

struct LogitRow {
  const float* logits;
  int experts;
  bool sigmoid;
  float largest = 0, sum = 1;  // softmax: e^(logit - largest) / sum

  __device__ LogitRow(const RouteArgs& args, int64_t token)
      : logits(args.logits + token * args.stride),
        experts(static_cast<int>(args.routing.experts)),
        sigmoid(args.sigmoid) {
    if (!sigmoid) add_up();
  }
  __device__ float score(int expert) const {
    return sigmoid ? 1.0f / (1.0f + expf(-logits[expert])) : share(expert);
  }
  // Of the softmax.
  __device__ float share(int expert) const { return expf(logits[expert] - largest) / sum; }
  // Infinite where a logit is, and no number where one is none.
  __device__ float log_sum_exp() const { return largest + logf(sum); }

  // The warp together.
  __device__ void add_up() {
    largest = -INFINITY;
    const auto enter = [&](float logit) {
      if (logit > largest || isnan(logit)) largest = logit;
    };
    for (int e = lane_of_warp(); e < experts; e += kWarp) enter(logits[e]);
    for (int step = kWarp / 2; step > 0; step /= 2) enter(__shfl_xor_sync(~0u, largest, step));
    sum = 0;
    for (int e = lane_of_warp(); e < experts; e += kWarp) sum += expf(logits[e] - largest);
    sum = warp_sum(sum);
  }
};

}  // namespace onefold::cuda
