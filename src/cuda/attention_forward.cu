// Attention, causal or not, with the online softmax of FlashAttention: one block to a tile of
// queries of a head, which walks the tiles of keys it sees, in order. Scores exist for one tile at
// a time.
#include "cuda/attention_tile.cuh"

namespace onefold::cuda {
namespace {

// Over the sixteen threads that share rows.
__device__ inline float row_max(float value) {
  for (int step = kGridSide / 2; step > 0; step /= 2)
    value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
  return value;
}

__device__ inline float row_sum(float value) {
  for (int step = kGridSide / 2; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

// A thread's rows: the running maximum, sum and result of each.
template <int kDim>
struct OnlineRows {
  using T = Tile<kDim>;
  float top[T::kEach], total[T::kEach];
  typename T::Result result;

  __device__ OnlineRows() {
#pragma unroll
    for (int r = 0; r < T::kEach; ++r) {
      top[r] = -INFINITY;
      total[r] = 0;
#pragma unroll
      for (int c = 0; c < T::kCols; ++c) result[r][c] = 0;
    }
  }

  // Row r's scores (minus infinity where hidden) become unnormalised probabilities relative to its
  // running maximum; what was there before is scaled to it.
  __device__ void enter(int r, float (&scores)[T::kEach]) {
    float best = top[r];
#pragma unroll
    for (int c = 0; c < T::kEach; ++c) best = fmaxf(best, scores[c]);
    best = row_max(best);
    const float shift = best == -INFINITY ? 0.0f : best;  // a row that has seen nothing yet
    const float shrink = expf(top[r] - shift);
    float sum = 0;
#pragma unroll
    for (int c = 0; c < T::kEach; ++c) {
      scores[c] = expf(scores[c] - shift);
      sum += scores[c];
    }
    total[r] = fmaf(total[r], shrink, row_sum(sum));
    top[r] = best;
#pragma unroll
    for (int c = 0; c < T::kCols; ++c) result[r][c] *= shrink;
  }
};

template <int kDim>
__global__ void __launch_bounds__(kThreads) forward_kernel(AttentionArgs args) {
  using T = Tile<kDim>;
  float* queries = shared_floats();
  float* others = queries + T::kFloats;  // keys, and then their values
  float* weights = others + T::kFloats;
  const auto dim = static_cast<int>(args.head_dim);
  const int64_t b = blockIdx.x / args.heads, h = blockIdx.x % args.heads;
  const int64_t kv_head = h / (args.heads / args.kv_heads);
  // The last tiles see the most keys: they begin first.
  const int64_t first_query = static_cast<int64_t>(gridDim.y - 1 - blockIdx.y) * T::kRows;
  const int64_t end_query =
      first_query + T::kRows < args.query_length ? first_query + T::kRows : args.query_length;
  const HeadRows q(args.q, b * args.query_length, h, dim);
  const HeadRows k(args.k, b * args.key_length, kv_head, dim);
  const HeadRows v(args.v, b * args.key_length, kv_head, dim);
  const float scale = args.scale;
  const bool drops = args.mask.threshold > 0;
  load_tile<kDim>(q, first_query, end_query, dim, queries);
  OnlineRows<kDim> rows;

  // No row sees a key before the first row's document and window: both grow along a sequence.
  const int64_t first_key = first_key_of(args, b, first_query) / T::kRows * T::kRows;
  const int64_t end_key = last_key_of(args, end_query - 1) + 1;
  for (int64_t key = first_key; key < end_key; key += T::kRows) {
    __syncthreads();  // the last tile's values have been read
    load_tile<kDim>(k, key, end_key, dim, others);
    if (drops) load_multipliers<kDim, false>(args, b, h, first_query, key, weights);
    __syncthreads();
    typename T::Scores scores;
    dot_rows<kDim>(queries, others, scores);
#pragma unroll
    for (int r = 0; r < T::kEach; ++r) {
      const int row = thread_y() + r * kGridSide;
      const int64_t query = first_query + row, from = first_key_of(args, b, query);
      const int64_t last = last_key_of(args, query);
#pragma unroll
      for (int c = 0; c < T::kEach; ++c) {
        const int64_t at = key + thread_x() + c * kGridSide;
        const bool seen = query < end_query && at >= from && at <= last;
        scores[r][c] = seen ? capped(args, scores[r][c] * scale) : -INFINITY;
      }
      rows.enter(r, scores[r]);
#pragma unroll
      for (int c = 0; c < T::kEach; ++c) {
        float& weight = weights[row * T::kWeightStride + thread_x() + c * kGridSide];
        weight = drops ? scores[r][c] * weight : scores[r][c];
      }
    }
    __syncthreads();  // the keys have been read
    load_tile<kDim>(v, key, end_key, dim, others);
    __syncthreads();
    add_weighted<kDim>(weights, others, rows.result);
  }

  const HeadRows out(args.out, b * args.query_length, h, dim);
#pragma unroll
  for (int r = 0; r < T::kEach; ++r) {
    const int64_t query = first_query + thread_y() + r * kGridSide;
    if (query >= end_query) continue;
    store_row<kDim>(rows.result[r], 1.0f / rows.total[r], dim, out, query);
    if (thread_x() == 0)
      args.lse[(b * args.heads + h) * args.lse_stride + query] = rows.top[r] + logf(rows.total[r]);
  }
}

}  // namespace

void attention_forward(const AttentionArgs& args, cudaStream_t stream) {
  with_width(args.head_dim, [&](auto width) {
    using T = Tile<decltype(width)::value>;
    constexpr int64_t kBytes = (2 * T::kFloats + T::kWeightFloats) * sizeof(float);
    launch(forward_kernel<decltype(width)::value>,
           grid_of(args.batch * args.heads, ceil_div(args.query_length, T::kRows)), kThreads,
           kBytes, stream, args);
  });
}

}  // namespace onefold::cuda
