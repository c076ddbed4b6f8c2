// Products of groups of rows, each with a matrix of its own: plain tiles, in fp32 or widened to it,
// of every type and shape. A tile is cut by the shape of its group alone. What 16 bits and Hopper's
// tensor cores can do is in grouped_gemm_wgmma.cu.
#include "cuda/groups.cuh"
#include "cuda/pack.cuh"

namespace onefold::cuda {
namespace {

constexpr int kSide = 64;     // of a tile of dst
constexpr int kTerms = 16;    // at a time
constexpr int kEachSide = 4;  // rows and columns of a thread: 16 apart
constexpr int kThreadsSide = 16;

// A panel [kTerms, kSide] in shared memory; one float further from row to row, so that neither way
// of filling it meets one bank.
using Panel = float[kTerms][kSide + 1];

// Element (term, i) = x.row(first + i)[first_term + term]: terms along rows.
template <class T>
__device__ void load_along_rows(const View<T>& x, int64_t first, int64_t end, int64_t first_term,
                                int64_t end_term, Panel& panel) {
  for (int at = static_cast<int>(threadIdx.x); at < kSide * kTerms; at += kThreads) {
    const int i = at / kTerms, term = at % kTerms;
    const bool there = first + i < end && first_term + term < end_term;
    panel[term][i] = there ? widen(x.row(first + i)[first_term + term]) : 0.0f;
  }
}

// Element (term, i) = x.row(first_term + term)[first + i]: a row for each term.
template <class T>
__device__ void load_across_rows(const View<T>& x, int64_t first, int64_t end, int64_t first_term,
                                 int64_t end_term, Panel& panel) {
  for (int at = static_cast<int>(threadIdx.x); at < kSide * kTerms; at += kThreads) {
    const int i = at % kSide, term = at / kSide;
    const bool there = first + i < end && first_term + term < end_term;
    panel[term][i] = there ? widen(x.row(first_term + term)[first + i]) : 0.0f;
  }
}

struct Sums {
  float values[kEachSide][kEachSide] = {};

  __device__ void add(const Panel& left, const Panel& right) {
    const int x = static_cast<int>(threadIdx.x) % kThreadsSide,
              y = static_cast<int>(threadIdx.x) / kThreadsSide;
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
      float a[kEachSide], b[kEachSide];
#pragma unroll
      for (int i = 0; i < kEachSide; ++i) {
        a[i] = left[term][y + i * kThreadsSide];
        b[i] = right[term][x + i * kThreadsSide];
      }
#pragma unroll
      for (int r = 0; r < kEachSide; ++r)
#pragma unroll
        for (int c = 0; c < kEachSide; ++c) values[r][c] = fmaf(a[r], b[c], values[r][c]);
    }
  }

  template <class D>
  __device__ void store(const View<D>& dst, int64_t first_row, int64_t end_row, int64_t first_col,
                        bool accumulate) const {
    const int x = static_cast<int>(threadIdx.x) % kThreadsSide,
              y = static_cast<int>(threadIdx.x) / kThreadsSide;
#pragma unroll
    for (int r = 0; r < kEachSide; ++r)
#pragma unroll
      for (int c = 0; c < kEachSide; ++c) {
        const int64_t row = first_row + y + r * kThreadsSide,
                      col = first_col + x + c * kThreadsSide;
        if (row >= end_row || col >= dst.cols) continue;
        D& to = dst.row(row)[col];
        to = narrow<D>(accumulate ? values[r][c] + widen(to) : values[r][c]);
      }
  }
};

// dst[rows of g] = a[rows of g] · op(b of g)
template <class T, class D>
__global__ void __launch_bounds__(kThreads)
    rows_kernel(View<T> a, View<T> b, View<D> dst, const int32_t* offsets, int64_t groups,
                bool b_transposed) {
  const RowTile tile(offsets, groups, blockIdx.x, kSide);
  if (tile.group == groups) return;
  __shared__ Panel left, right;
  const int64_t terms = a.cols, first_col = static_cast<int64_t>(blockIdx.y) * kSide;
  // Of the group's matrix.
  const View<T> own{b.row(tile.group * (b.rows / groups)), b.rows / groups, b.cols, b.stride};
  Sums sums;
  for (int64_t term = 0; term < terms; term += kTerms) {
    __syncthreads();  // the last panels have been read
    load_along_rows(a, tile.first, tile.end, term, terms, left);
    if (b_transposed)
      load_along_rows(own, first_col, dst.cols, term, terms, right);
    else
      load_across_rows(own, first_col, dst.cols, term, terms, right);
    __syncthreads();
    sums.add(left, right);
  }
  sums.store(dst, tile.first, tile.end, first_col, false);
}

// dst of g (+)= a[rows of g]' · b[rows of g]
template <class T, class D>
__global__ void __launch_bounds__(kThreads)
    weights_kernel(View<T> a, View<T> b, View<D> dst, const int32_t* offsets, int64_t row_tiles,
                   bool accumulate) {
  __shared__ Panel left, right;
  const int64_t group = blockIdx.x / row_tiles, first_row = blockIdx.x % row_tiles * kSide,
                first_col = static_cast<int64_t>(blockIdx.y) * kSide;
  const GroupRows rows(offsets, group);
  if (accumulate && rows.count() == 0) return;
  const View<D> own{dst.row(group * a.cols), a.cols, dst.cols, dst.stride};
  Sums sums;
  for (int64_t term = rows.begin; term < rows.end; term += kTerms) {
    __syncthreads();  // the last panels have been read
    load_across_rows(a, first_row, a.cols, term, rows.end, left);
    load_across_rows(b, first_col, b.cols, term, rows.end, right);
    __syncthreads();
    sums.add(left, right);
  }
  sums.store(own, first_row, a.cols, first_col, accumulate);
}

}  // namespace

void grouped_gemm(const GroupedArgs& g, cudaStream_t stream) {
  const int64_t col_tiles = ceil_div(g.dst.cols, kSide);
  with_types(g.a.type, g.dst.type, [&](auto element, auto result) {
    using T = decltype(element);
    using D = decltype(result);
    if (g.a_transposed) {
      const int64_t row_tiles = ceil_div(g.a.cols, kSide);
      launch(weights_kernel<T, D>, grid_of(g.groups * row_tiles, col_tiles), kThreads, 0, stream,
             view<T>(g.a), view<T>(g.b), view<D>(g.dst), g.offsets, row_tiles, g.accumulate);
    } else {
      launch(rows_kernel<T, D>, grid_of(most_row_tiles(g.a.rows, g.groups, kSide), col_tiles),
             kThreads, 0, stream, view<T>(g.a), view<T>(g.b), view<D>(g.dst), g.offsets, g.groups,
             g.b_transposed);
    }
  });
}

}  // namespace onefold::cuda
