// What attention's kernels share: tiles of queries by keys in a block's shared memory, and the two
// kinds of product on them. A block has 16 x 16 threads; thread (x, y) has the elements of rows
// y, y + 16, ... and columns x, x + 16, ... of a tile of scores, and of the same rows and four
// consecutive columns in each 64 of a result. Shorter heads are padded with zeros.
#pragma once

#include "cuda/launch.cuh"
#include "cuda/mask.cuh"
#include "cuda/pack.cuh"

namespace onefold::cuda {

constexpr int kGridSide = 16;

template <int kDim>
struct Tile {
  static constexpr int kRows = kDim <= 128 ? 64 : 32;  // queries, and keys
  static constexpr int kEach = kRows / kGridSide;      // rows, and columns of scores, of a thread
  static constexpr int kCols = kDim / kGridSide;       // columns of a result of a thread
  // Four floats further from row to row: eight threads' vectors of four then lie in different
  // banks.
  static constexpr int kStride = kDim + 4;
  static constexpr int kFloats = kRows * kStride;
  static constexpr int kWeightStride = kRows + 4;
  static constexpr int kWeightFloats = kRows * kWeightStride;

  using Scores = float[kEach][kEach];
  using Result = float[kEach][kCols];
};

__device__ inline int thread_x() { return static_cast<int>(threadIdx.x) % kGridSide; }
__device__ inline int thread_y() { return static_cast<int>(threadIdx.x) / kGridSide; }

// The rows of one head of one sequence. Their type is told at run time, and asked for once in each
// tile: everything behind it is fp32.
struct HeadRows {
  char* data;
  int64_t stride;  // bytes
  Type type;
  __device__ HeadRows(const Matrix& all, int64_t first_row, int64_t head, int64_t head_dim)
      : type(all.type) {
    const int64_t width = type == Type::f32 ? 4 : 2;
    stride = all.stride * width;
    data = static_cast<char*>(all.data) + first_row * stride + head * head_dim * width;
  }
  template <class T>
  __device__ T* row(int64_t index) const {
    return reinterpret_cast<T*>(data + index * stride);
  }
};

// Calls with an element of the type.
template <class Call>
__device__ void with_type_here(Type type, const Call& call) {
  if (type == Type::f32)
    call(float{});
  else if (type == Type::bf16)
    call(bf16{});
  else
    call(f16{});
}

// Rows [first, first + kRows) into shared memory; zeros from row `end` and column `head_dim` on.
template <int kDim>
__device__ void load_tile(const HeadRows& src, int64_t first, int64_t end, int head_dim,
                          float* dst) {
  using T = Tile<kDim>;
  with_type_here(src.type, [&](auto element) {
    using E = decltype(element);
#pragma unroll 8
    for (int i = static_cast<int>(threadIdx.x); i < T::kRows * kDim; i += kThreads) {
      const int row = i / kDim, col = i % kDim;
      const bool there = first + row < end && col < head_dim;
      dst[row * T::kStride + col] = there ? widen(src.row<E>(first + row)[col]) : 0.0f;
    }
  });
}

__device__ inline float4 four(const float* at) { return *reinterpret_cast<const float4*>(at); }

// scores = rows of a, times rows of b.
template <int kDim>
__device__ void dot_rows(const float* a, const float* b, typename Tile<kDim>::Scores& scores) {
  using T = Tile<kDim>;
#pragma unroll
  for (int r = 0; r < T::kEach; ++r)
#pragma unroll
    for (int c = 0; c < T::kEach; ++c) scores[r][c] = 0;
#pragma unroll 4
  for (int d = 0; d < kDim; d += 4) {
    float4 x[T::kEach], y[T::kEach];
#pragma unroll
    for (int i = 0; i < T::kEach; ++i) {
      x[i] = four(a + (thread_y() + i * kGridSide) * T::kStride + d);
      y[i] = four(b + (thread_x() + i * kGridSide) * T::kStride + d);
    }
#pragma unroll
    for (int r = 0; r < T::kEach; ++r)
#pragma unroll
      for (int c = 0; c < T::kEach; ++c) {
        float sum = scores[r][c];
        sum = fmaf(x[r].x, y[c].x, sum);
        sum = fmaf(x[r].y, y[c].y, sum);
        sum = fmaf(x[r].z, y[c].z, sum);
        scores[r][c] = fmaf(x[r].w, y[c].w, sum);
      }
  }
}

// result += weight times the four columns that begin at `x`.
template <int kDim>
__device__ void add_row(const float (&weight)[Tile<kDim>::kEach], const float* x,
                        typename Tile<kDim>::Result& result) {
  using T = Tile<kDim>;
#pragma unroll
  for (int c = 0; c < T::kCols; c += 4) {
    const float4 value = four(x + c * kGridSide);
#pragma unroll
    for (int r = 0; r < T::kEach; ++r) {
      result[r][c] = fmaf(weight[r], value.x, result[r][c]);
      result[r][c + 1] = fmaf(weight[r], value.y, result[r][c + 1]);
      result[r][c + 2] = fmaf(weight[r], value.z, result[r][c + 2]);
      result[r][c + 3] = fmaf(weight[r], value.w, result[r][c + 3]);
    }
  }
}

// result += weights [kRows, kRows], times the rows of x.
template <int kDim>
__device__ void add_weighted(const float* weights, const float* x,
                             typename Tile<kDim>::Result& result) {
  using T = Tile<kDim>;
  x += 4 * thread_x();
#pragma unroll 2
  for (int k = 0; k < T::kRows; k += 4) {
    float w0[T::kEach], w1[T::kEach], w2[T::kEach], w3[T::kEach];
#pragma unroll
    for (int r = 0; r < T::kEach; ++r) {
      const float4 w = four(weights + (thread_y() + r * kGridSide) * T::kWeightStride + k);
      w0[r] = w.x;
      w1[r] = w.y;
      w2[r] = w.z;
      w3[r] = w.w;
    }
    add_row<kDim>(w0, x + k * T::kStride, result);
    add_row<kDim>(w1, x + (k + 1) * T::kStride, result);
    add_row<kDim>(w2, x + (k + 2) * T::kStride, result);
    add_row<kDim>(w3, x + (k + 3) * T::kStride, result);
  }
}

// Element `c` of a thread's columns of a result is this column of the head.
__device__ inline int result_col(int c) { return c / 4 * 64 + 4 * thread_x() + c % 4; }

template <int kDim>
__device__ void store_row(const float (&result)[Tile<kDim>::kCols], float factor, int head_dim,
                          const HeadRows& dst, int64_t row) {
  with_type_here(dst.type, [&](auto element) {
    using E = decltype(element);
    E* to = dst.row<E>(row);
#pragma unroll
    for (int c = 0; c < Tile<kDim>::kCols; ++c)
      if (result_col(c) < head_dim) to[result_col(c)] = narrow<E>(result[c] * factor);
  });
}

// The first key that a query sees: within [0, the query's own], whatever the starts hold. Starts
// come only where queries and keys have the same positions.
__device__ inline int64_t first_key_of(const AttentionArgs& args, int64_t b, int64_t query) {
  if (query >= args.query_length) return 0;
  int64_t first = 0;
  if (args.window > 0) {
    first = query + args.key_length - args.query_length - args.window + 1;
    first = first < 0 ? 0 : first;
  }
  if (!args.starts) return first;
  const int64_t start = args.starts[b * args.query_length + query];
  return start < first ? first : start > query ? query : start;
}

// The last key that it sees.
__device__ inline int64_t last_key_of(const AttentionArgs& args, int64_t query) {
  return args.causal ? query + args.key_length - args.query_length : args.key_length - 1;
}

// Dropout's multipliers of a tile of scores, into shared memory: [queries, keys], or [keys,
// queries]. A thread draws the words of one counter after the other, each good for up to four keys
// of a query.
template <int kDim, bool kByKey>
__device__ void load_multipliers(const AttentionArgs& args, int64_t b, int64_t h,
                                 int64_t first_query, int64_t first_key, float* dst) {
  using T = Tile<kDim>;
  constexpr int kCounters = T::kRows / 4 + 1;  // that the keys of one query fall under
  const int64_t sample = args.mask.samples[b];
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < T::kRows * kCounters; i += kThreads) {
    const int row = i / kCounters;
    const int64_t of_query = (args.first_head + h) * args.query_length + first_query + row;
    const int64_t first = of_query * args.key_length + first_key;
    const int64_t counter = first / 4 + i % kCounters;
    const PhiloxWords words = mask_words(args.mask, sample, static_cast<uint64_t>(counter));
    const auto before = static_cast<int>(4 * counter - first);  // the key of the first word
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int col = before + k;
      if (col < 0 || col >= T::kRows) continue;
      dst[kByKey ? col * T::kWeightStride + row : row * T::kWeightStride + col] =
          multiplier(args.mask, words[k]);
    }
  }
}

// A scaled score, capped.
__device__ inline float capped(const AttentionArgs& args, float score) {
  return args.soft_cap > 0 ? args.soft_cap * tanhf(score * (1.0f / args.soft_cap)) : score;
}

// Calls with the padded width of a head as a constant.
template <class Call>
void with_width(int64_t head_dim, const Call& call) {
  if (head_dim <= 64)
    call(std::integral_constant<int, 64>());
  else if (head_dim <= 128)
    call(std::integral_constant<int, 128>());
  else
    call(std::integral_constant<int, 256>());
}

}  // namespace onefold::cuda
