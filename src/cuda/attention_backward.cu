// Attention's gradients without atomic sums: one kernel for those of keys and values, in which a
// block has a tile of keys and walks the queries that see it; and one for those of queries, in
// which a block has a tile of queries and walks the keys that it sees. Both compute the scores
// again. Seven products instead of five are the price of sums in a fixed order.
#include "cuda/attention_tile.cuh"

namespace onefold::cuda {
namespace {

// delta[b, h, query] = dout · out; a warp for each.
template <class T>
__global__ void delta_kernel(AttentionArgs args, View<T> dout, View<T> out, float* delta) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (index >= args.batch * args.heads * args.query_length) return;
  const int64_t query = index % args.query_length, head = index / args.query_length;
  const int64_t row = head / args.heads * args.query_length + query;
  const int64_t col = head % args.heads * args.head_dim;
  const T* a = dout.row(row) + col;
  const T* b = out.row(row) + col;
  float sum = 0;
  for (int64_t i = threadIdx.x % kWarp; i < args.head_dim; i += kWarp)
    sum = fmaf(widen(a[i]), widen(b[i]), sum);
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) delta[index] = sum;
}

// What a score becomes: the probability with dropout's multiplier, which values were weighted with,
// and the gradient of the unscaled score.
struct Backward {
  float weight, gradient;
};

// `score` unscaled; `dprobability` is dout · value; `factor` dropout's multiplier.
__device__ inline Backward backward_of(const AttentionArgs& args, float score, float dprobability,
                                       float factor, float lse, float delta) {
  const float seen = capped(args, score * args.scale);
  const float probability = expf(seen - lse);
  float gradient = probability * (dprobability * factor - delta) * args.scale;
  if (args.soft_cap > 0) {
    const float part = seen * (1.0f / args.soft_cap);
    gradient = fmaf(-(part * part), gradient, gradient);
  }
  return {probability * factor, gradient};
}

template <int kDim>
__device__ void clear(typename Tile<kDim>::Result& result) {
#pragma unroll
  for (int r = 0; r < Tile<kDim>::kEach; ++r)
#pragma unroll
    for (int c = 0; c < Tile<kDim>::kCols; ++c) result[r][c] = 0;
}

// Tiles of scores are [keys, queries] here. Sums over the heads of a group, and over queries, are
// in their order.
template <int kDim>
__global__ void __launch_bounds__(kThreads)
    keys_kernel(AttentionArgs args, AttentionGradients gradients) {
  using T = Tile<kDim>;
  float* keys = shared_floats();
  float* values = keys + T::kFloats;
  float* queries = values + T::kFloats;
  float* douts = queries + T::kFloats;
  float* weights = douts + T::kFloats;
  float* dscores = weights + T::kWeightFloats;
  const auto dim = static_cast<int>(args.head_dim);
  const int64_t length = args.key_length, queries_length = args.query_length;
  const int64_t group = args.heads / args.kv_heads;
  const int64_t b = blockIdx.x / args.kv_heads, kv_head = blockIdx.x % args.kv_heads;
  const int64_t first_key = static_cast<int64_t>(blockIdx.y) * T::kRows;
  const bool drops = args.mask.threshold > 0;
  load_tile<kDim>(HeadRows(args.k, b * length, kv_head, dim), first_key, length, dim, keys);
  load_tile<kDim>(HeadRows(args.v, b * length, kv_head, dim), first_key, length, dim, values);
  typename T::Result dk, dv;
  clear<kDim>(dk);
  clear<kDim>(dv);

  for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    const HeadRows q(args.q, b * queries_length, h, dim),
        dout(gradients.dout, b * queries_length, h, dim);
    const float* lse = args.lse + (b * args.heads + h) * args.lse_stride;
    const float* delta = gradients.scratch + (b * args.heads + h) * queries_length;
    for (int64_t first = args.causal ? first_key : 0; first < queries_length; first += T::kRows) {
      // Starts and windows grow along a sequence: from here on, they begin after these keys.
      if (first_key_of(args, b, first) >= first_key + T::kRows) break;
      __syncthreads();  // the last tile has been read
      load_tile<kDim>(q, first, queries_length, dim, queries);
      load_tile<kDim>(dout, first, queries_length, dim, douts);
      if (drops) load_multipliers<kDim, true>(args, b, h, first, first_key, weights);
      __syncthreads();
      typename T::Scores scores, dprobabilities;
      dot_rows<kDim>(keys, queries, scores);
      dot_rows<kDim>(values, douts, dprobabilities);
#pragma unroll
      for (int c = 0; c < T::kEach; ++c) {
        const int col = thread_x() + c * kGridSide;
        const int64_t query = first + col;
        const int64_t from = first_key_of(args, b, query), last = last_key_of(args, query);
        const float of_lse = query < queries_length ? lse[query] : 0.0f;
        const float of_delta = query < queries_length ? delta[query] : 0.0f;
#pragma unroll
        for (int r = 0; r < T::kEach; ++r) {
          const int row = thread_y() + r * kGridSide, at = row * T::kWeightStride + col;
          const int64_t key = first_key + row;
          Backward element{0, 0};
          if (query < queries_length && key <= last && key >= from)
            element = backward_of(args, scores[r][c], dprobabilities[r][c],
                                  drops ? weights[at] : 1.0f, of_lse, of_delta);
          weights[at] = element.weight;
          dscores[at] = element.gradient;
        }
      }
      __syncthreads();
      add_weighted<kDim>(weights, douts, dv);
      add_weighted<kDim>(dscores, queries, dk);
    }
  }

  const HeadRows to_keys(gradients.dk, b * length, kv_head, dim),
      to_values(gradients.dv, b * length, kv_head, dim);
#pragma unroll
  for (int r = 0; r < T::kEach; ++r) {
    const int64_t key = first_key + thread_y() + r * kGridSide;
    if (key >= length) continue;
    store_row<kDim>(dk[r], 1.0f, dim, to_keys, key);
    store_row<kDim>(dv[r], 1.0f, dim, to_values, key);
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads)
    queries_kernel(AttentionArgs args, AttentionGradients gradients) {
  using T = Tile<kDim>;
  float* queries = shared_floats();
  float* douts = queries + T::kFloats;
  float* keys = douts + T::kFloats;
  float* values = keys + T::kFloats;
  float* dscores = values + T::kFloats;
  const auto dim = static_cast<int>(args.head_dim);
  const int64_t length = args.query_length;
  const int64_t b = blockIdx.x / args.heads, h = blockIdx.x % args.heads;
  const int64_t kv_head = h / (args.heads / args.kv_heads);
  // The last tiles see the most keys: they begin first.
  const int64_t first_query = static_cast<int64_t>(gridDim.y - 1 - blockIdx.y) * T::kRows;
  const HeadRows k(args.k, b * args.key_length, kv_head, dim),
      v(args.v, b * args.key_length, kv_head, dim);
  const float* lse = args.lse + (b * args.heads + h) * args.lse_stride;
  const float* delta = gradients.scratch + (b * args.heads + h) * length;
  const bool drops = args.mask.threshold > 0;
  load_tile<kDim>(HeadRows(args.q, b * length, h, dim), first_query, length, dim, queries);
  load_tile<kDim>(HeadRows(gradients.dout, b * length, h, dim), first_query, length, dim, douts);
  typename T::Result dq;
  clear<kDim>(dq);

  const int64_t first_key = first_key_of(args, b, first_query) / T::kRows * T::kRows;
  const int64_t end_query = first_query + T::kRows < length ? first_query + T::kRows : length;
  const int64_t end_key = last_key_of(args, end_query - 1) + 1;
  for (int64_t first = first_key; first < end_key; first += T::kRows) {
    __syncthreads();  // the last tile has been read
    load_tile<kDim>(k, first, end_key, dim, keys);
    load_tile<kDim>(v, first, end_key, dim, values);
    if (drops) load_multipliers<kDim, false>(args, b, h, first_query, first, dscores);
    __syncthreads();
    typename T::Scores scores, dprobabilities;
    dot_rows<kDim>(queries, keys, scores);
    dot_rows<kDim>(douts, values, dprobabilities);
#pragma unroll
    for (int r = 0; r < T::kEach; ++r) {
      const int row = thread_y() + r * kGridSide;
      const int64_t query = first_query + row;
      const int64_t from = first_key_of(args, b, query), last = last_key_of(args, query);
      const float of_lse = query < length ? lse[query] : 0.0f;
      const float of_delta = query < length ? delta[query] : 0.0f;
#pragma unroll
      for (int c = 0; c < T::kEach; ++c) {
        const int col = thread_x() + c * kGridSide;
        const int64_t key = first + col;
        float& dscore = dscores[row * T::kWeightStride + col];
        const bool seen = query < length && key <= last && key >= from;
        dscore = seen ? backward_of(args, scores[r][c], dprobabilities[r][c], drops ? dscore : 1.0f,
                                    of_lse, of_delta)
                            .gradient
                      : 0.0f;
      }
    }
    __syncthreads();
    add_weighted<kDim>(dscores, keys, dq);
  }

  const HeadRows to_queries(gradients.dq, b * length, h, dim);
#pragma unroll
  for (int r = 0; r < T::kEach; ++r) {
    const int64_t query = first_query + thread_y() + r * kGridSide;
    if (query < length) store_row<kDim>(dq[r], 1.0f, dim, to_queries, query);
  }
}

}  // namespace

void attention_backward(const AttentionArgs& args, const AttentionGradients& gradients,
                        cudaStream_t stream) {
  const int64_t rows = args.batch * args.heads * args.query_length;
  with_type(args.out.type, [&](auto element) {
    using T = decltype(element);
    launch(delta_kernel<T>, grid_of(ceil_div(rows, kThreads / kWarp)), kThreads, 0, stream, args,
           view<T>(gradients.dout), view<T>(args.out), gradients.scratch);
  });
  with_width(args.head_dim, [&](auto width) {
    constexpr int kDim = decltype(width)::value;
    using T = Tile<kDim>;
    constexpr int64_t kTiles = 4 * T::kFloats;
    const auto tiles = [](int64_t length) { return ceil_div(length, T::kRows); };
    launch(keys_kernel<kDim>, grid_of(args.batch * args.kv_heads, tiles(args.key_length)), kThreads,
           (kTiles + 2 * T::kWeightFloats) * static_cast<int64_t>(sizeof(float)), stream, args,
           gradients);
    launch(queries_kernel<kDim>, grid_of(args.batch * args.heads, tiles(args.query_length)),
           kThreads, (kTiles + T::kWeightFloats) * static_cast<int64_t>(sizeof(float)), stream,
           args, gradients);
  });
}

}  // namespace onefold::cuda
