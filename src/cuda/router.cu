// Routing of tokens to experts. A warp chooses for a token; then choices are sorted by expert, in
// their order: a block for each expert looks at all choices twice, to count its own and to number
// them. That takes as many loads as there are choices times experts, from the cache, and neither
// scratch nor sums of other blocks.
#include "cuda/router.cuh"

namespace onefold::cuda {
namespace {

__device__ float rank_of(float logit) { return isnan(logit) ? -INFINITY : logit; }

// In the order of logits, equal ones by number; those that are no numbers come last.
struct Candidate {
  float rank;
  int expert;  // -1: none
  __device__ bool before(const Candidate& other) const {
    return rank > other.rank || (rank == other.rank && expert < other.expert);
  }
  __device__ void take_better(const Candidate& other) {
    if (other.expert >= 0 && (expert < 0 || other.before(*this))) *this = other;
  }
};

// Of the experts behind `last`, the first.
__device__ Candidate next_choice(const LogitRow& row, const Candidate& last) {
  Candidate best{0, -1};
  for (int e = lane_of_warp(); e < row.experts; e += kWarp) {
    const Candidate own{rank_of(row.logits[e]), e};
    if (last.expert < 0 || last.before(own)) best.take_better(own);
  }
  for (int step = kWarp / 2; step > 0; step /= 2)
    best.take_better(
        {__shfl_xor_sync(~0u, best.rank, step), __shfl_xor_sync(~0u, best.expert, step)});
  return best;
}

__global__ void choose_kernel(RouteArgs args) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (token >= args.routing.tokens) return;
  const LogitRow row(args, token);
  const int64_t k = args.routing.choices;
  int32_t* chosen = args.routing.chosen + token * k;
  float* weights = args.routing.weights + token * k;
  Candidate last{0, -1};
  float sum = 0;
  for (int64_t j = 0; j < k; ++j) {
    last = next_choice(row, last);
    const float score = row.score(last.expert);
    sum += score;
    if (lane_of_warp() > 0) continue;
    chosen[j] = last.expert;
    weights[j] = score;
  }
  if (!args.normalised || lane_of_warp() > 0) return;
  for (int64_t j = 0; j < k; ++j) weights[j] /= sum + kLeastSum;
}

constexpr int kSortThreads = 1024, kSortWarps = kSortThreads / kWarp;
constexpr int kOfThread = 8;  // consecutive choices

// How many of a thread's choices are the expert's, as bits.
__device__ unsigned own_choices(const int32_t* chosen, int64_t first, int64_t choices, int expert) {
  unsigned own = 0;
#pragma unroll
  for (int i = 0; i < kOfThread; ++i)
    if (first + i < choices && chosen[first + i] == expert) own |= 1u << i;
  return own;
}

__global__ void __launch_bounds__(kSortThreads) count_kernel(RoutingArgs to) {
  const int64_t choices = to.tokens * to.choices;
  int count = 0;
  for (int64_t first = static_cast<int64_t>(threadIdx.x) * kOfThread; first < choices;
       first += kSortThreads * kOfThread)
    count += __popc(own_choices(to.chosen, first, choices, static_cast<int>(blockIdx.x)));
  count = team_sum<kSortThreads>(count);
  if (threadIdx.x == 0) to.counts[blockIdx.x] = count;
}

// The sum over the threads before this one, and over all of them.
struct Prefix {
  int before, all;
};
__device__ Prefix prefix_of(int value) {
  __shared__ int of_warps[kSortWarps];
  int upto = value;
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(~0u, upto, step);
    if (lane_of_warp() >= step) upto += other;
  }
  __syncthreads();  // the sums of the last call have been read
  if (lane_of_warp() == kWarp - 1) of_warps[threadIdx.x / kWarp] = upto;
  __syncthreads();
  Prefix prefix{upto - value, 0};
  for (int warp = 0; warp < kSortWarps; ++warp) {
    if (warp < static_cast<int>(threadIdx.x) / kWarp) prefix.before += of_warps[warp];
    prefix.all += of_warps[warp];
  }
  return prefix;
}

// From the counts of all experts. capacity 0: all are kept.
__global__ void __launch_bounds__(kSortThreads) place_kernel(RoutingArgs to, int32_t capacity) {
  const int64_t choices = to.tokens * to.choices, experts = to.experts, expert = blockIdx.x;
  int rows[2] = {0, 0};  // of the experts before this one, and of all
  for (int64_t e = threadIdx.x; e < experts; e += kSortThreads) {
    const int count = to.counts[e], kept = capacity > 0 && count > capacity ? capacity : count;
    if (e < expert) rows[0] += kept;
    rows[1] += kept;
  }
  team_sums<kSortThreads>(rows);
  if (threadIdx.x == 0) to.offsets[expert] = rows[0];
  if (threadIdx.x == 0 && expert == 0) to.offsets[experts] = rows[1];
  int number = 0;  // of the round's first among the expert's
  for (int64_t begin = 0; begin < choices; begin += kSortThreads * kOfThread) {
    const int64_t first = begin + static_cast<int64_t>(threadIdx.x) * kOfThread;
    const unsigned own = own_choices(to.chosen, first, choices, static_cast<int>(expert));
    const Prefix prefix = prefix_of(__popc(own));
    int next = number + prefix.before;
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      if ((own >> i & 1) == 0) continue;
      const bool dropped = capacity > 0 && next >= capacity;
      const int place = dropped ? -1 : rows[0] + next;
      to.places[first + i] = place;
      if (!dropped) to.sources[place] = static_cast<int32_t>(first + i);
      ++next;
    }
    number += prefix.all;
  }
  for (int64_t row = rows[1] + expert * kSortThreads + threadIdx.x; row < to.rows;
       row += experts * kSortThreads)
    to.sources[row] = -1;
}

void sort_by_expert(const RoutingArgs& to, int32_t capacity, cudaStream_t stream) {
  launch(count_kernel, grid_of(to.experts), kSortThreads, 0, stream, to);
  launch(place_kernel, grid_of(to.experts), kSortThreads, 0, stream, to, capacity);
}

// Rows that are no expert's have no place.
__global__ void take_numbers_kernel(const int32_t* numbers, int64_t stride, RoutingArgs to) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= to.rows) return;
  to.chosen[row] = numbers[row * stride];
  to.places[row] = -1;
}

__global__ void clear_places_kernel(int32_t* places, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) places[i] = -1;
}

__global__ void spread_kernel(SpreadArgs args) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= args.blocks * args.rows) return;
  const int64_t block = row / args.rows, each = args.from.experts / args.blocks;
  const int64_t first = args.from.offsets[block * each],
                taken = args.from.offsets[(block + 1) * each] - first, i = row % args.rows;
  const int32_t choice = i < taken ? args.from.sources[first + i] : -1;
  args.sources[row] = choice;
  args.numbers[row * args.numbers_stride] =
      choice < 0 ? -1 : args.from.chosen[choice] - static_cast<int32_t>(block * each);
  if (choice >= 0) args.places[choice] = static_cast<int32_t>(row);
  if (i == 0 && taken > args.rows && args.needed != nullptr) {
    atomicMax(args.needed, static_cast<int>(taken));  // in any order
    atomicMax(args.needed + 1, static_cast<int>(args.rows));
  }
  for (int64_t left = args.rows + i; left < taken; left += args.rows) {
    const int32_t lost = args.from.sources[first + left];
    args.places[lost] = static_cast<int32_t>(row);
    args.from.weights[lost] = NAN;
  }
}

}  // namespace

void route(const RouteArgs& args, cudaStream_t stream) {
  launch(choose_kernel, grid_of(ceil_div(args.routing.tokens, kThreads / kWarp)), kThreads, 0,
         stream, args);
  sort_by_expert(args.routing, args.capacity, stream);
}

void sort_rows(const int32_t* numbers, int64_t stride, const RoutingArgs& routing,
               cudaStream_t stream) {
  launch(take_numbers_kernel, grid_of(ceil_div(routing.rows, kThreads)), kThreads, 0, stream,
         numbers, stride, routing);
  sort_by_expert(routing, 0, stream);
}

void spread_rows(const SpreadArgs& args, cudaStream_t stream) {
  const int64_t choices = args.from.tokens * args.from.choices;
  launch(clear_places_kernel, grid_of(ceil_div(choices, kThreads)), kThreads, 0, stream,
         args.places, choices);
  launch(spread_kernel, grid_of(ceil_div(args.blocks * args.rows, kThreads)), kThreads, 0, stream,
         args);
}

}  // namespace onefold::cuda
