// Token and position embeddings. Backward sorts the rows by token and adds up those of each token
// in row order: nothing is added atomically but counts, and in fp32 the bits are the CPU's.
#include "cuda/launch.cuh"
#include "cuda/pack.cuh"
#include "cuda/partials.cuh"
#include "cuda/positions.cuh"

namespace onefold::cuda {
namespace {

constexpr int kScanThreads = 1024;

__device__ inline bool in_table(int32_t token, int64_t vocabulary) {
  return token >= 0 && token < vocabulary;
}

template <class T>
__global__ void forward_kernel(const int32_t* tokens, View<T> table, View<T> position_table,
                               Positions positions, View<T> dst, Share share) {
  constexpr int kElems = kWide<T>;
  Pack<T> values[kEach], added[kEach];
  share.each([&](int i, int64_t row, int64_t col) {
    const int32_t token = tokens[row];
    values[i] = load_pack<Pack<T>>(table.row(in_table(token, table.rows) ? token : 0), col,
                                   dst.cols, share.aligned);
    if (position_table.data)
      added[i] = load_pack<Pack<T>>(position_table.row(position_of(positions, row)), col, dst.cols,
                                    share.aligned);
  });
  share.each([&](int i, int64_t row, int64_t col) {
    const bool known = in_table(tokens[row], table.rows);
    float x[kElems], y[kElems];
    values[i].to(x);
    if (position_table.data) added[i].to(y);
#pragma unroll
    for (int k = 0; k < kElems; ++k) {
      if (!known) x[k] = nanf("");
      if (position_table.data) x[k] += y[k];
    }
    store_pack<T>(x, dst.row(row), col, dst.cols, share.aligned);
  });
}

// Where rows go: to their tokens or, without these, to their positions.
struct Targets {
  const int32_t* tokens;
  Positions positions;
  __device__ int32_t of(int64_t row) const {
    return tokens ? tokens[row] : static_cast<int32_t>(position_of(positions, row));
  }
};

// The order in which counts grow does not matter.
__global__ void count_kernel(Targets targets, int64_t rows, int32_t* counts, int64_t vocabulary) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= rows) return;
  const int32_t token = targets.of(row);
  if (in_table(token, vocabulary)) atomicAdd(&counts[token], 1);
}

// ends[token] = where the token's rows begin, which place_kernel moves to where they end. Each
// block has kScanThreads tokens and adds up all counts before them by itself: a few hundred KB at
// most, read once from the cache, are faster than another kernel.
__global__ void __launch_bounds__(kScanThreads)
    begins_kernel(const int32_t* counts, int64_t vocabulary, int32_t* ends) {
  __shared__ int32_t sums[kScanThreads];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kScanThreads;
  int32_t before = 0;
#pragma unroll 8
  for (int64_t token = threadIdx.x; token < first; token += kScanThreads) before += counts[token];
  before = team_sum<kScanThreads>(before);
  const int64_t mine = first + threadIdx.x;
  const int32_t own = mine < vocabulary ? counts[mine] : 0;
  sums[threadIdx.x] = own;
  for (int step = 1; step < kScanThreads; step *= 2) {
    __syncthreads();
    const int32_t left =
        static_cast<int>(threadIdx.x) >= step ? sums[threadIdx.x - static_cast<unsigned>(step)] : 0;
    __syncthreads();
    sums[threadIdx.x] += left;
  }
  if (mine < vocabulary) ends[mine] = before + sums[threadIdx.x] - own;
}

// Each row next to the others of its token, in any order.
__global__ void place_kernel(Targets targets, int64_t rows, int32_t* ends, int64_t vocabulary,
                             int32_t* placed) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= rows) return;
  const int32_t token = targets.of(row);
  if (in_table(token, vocabulary)) placed[atomicAdd(&ends[token], 1)] = static_cast<int32_t>(row);
}

__device__ inline int32_t begin_of(const int32_t* ends, int64_t token) {
  return token == 0 ? 0 : ends[token - 1];
}

// The rows of each token in their order: how many of them come before a row is its place, whatever
// order they were in.
__global__ void order_kernel(Targets targets, const int32_t* ends, int64_t vocabulary,
                             const int32_t* placed, int32_t* order) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= ends[vocabulary - 1]) return;
  const int32_t row = placed[at], token = targets.of(row);
  const int32_t begin = begin_of(ends, token), end = ends[token];
  int32_t before = 0;
#pragma unroll 8
  for (int32_t i = begin; i < end; ++i) before += placed[i] < row ? 1 : 0;
  order[begin + before] = row;
}

// A lane's pack of columns: the sum over rows begin, begin + 1, ... of row_of, in that order.
template <class T, class RowOf>
__device__ void add_rows(const View<T>& dx, int64_t col, bool is_aligned, int64_t count,
                         const RowOf& row_of, float (&sums)[kWide<T>]) {
  constexpr int kBatch = 8;  // rows that are under way
  for (int64_t first = 0; first < count; first += kBatch) {
    Pack<T> packs[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (first + i < count)
        packs[i] = load_pack<Pack<T>>(dx.row(row_of(first + i)), col, dx.cols, is_aligned);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i >= count) continue;
      float values[kWide<T>];
      packs[i].to(values);
#pragma unroll
      for (int k = 0; k < kWide<T>; ++k) sums[k] += values[k];
    }
  }
}

// Gradients G of as many columns as a pack of T has.
template <class T, class G>
__device__ void load_sums(const G* row, int64_t col, int64_t cols, float (&sums)[kWide<T>]) {
#pragma unroll
  for (int k = 0; k < kWide<T>; ++k) sums[k] = col + k < cols ? widen(row[col + k]) : 0.0f;
}
template <class T, class G>
__device__ void store_sums(const float (&sums)[kWide<T>], G* row, int64_t col, int64_t cols,
                           bool is_aligned) {
  if constexpr (sizeof(G) == sizeof(T)) {
    store_pack<G>(sums, row, col, cols, is_aligned);
  } else {
#pragma unroll
    for (int part = 0; part < kWide<T>; part += kWide<G>) {
      float some[kWide<G>];
#pragma unroll
      for (int k = 0; k < kWide<G>; ++k) some[k] = sums[part + k];
      store_pack<G>(some, row, col + part, cols, is_aligned);
    }
  }
}

// A warp has a token and a pack of columns in each lane.
template <class T, class G>
__global__ void __launch_bounds__(kThreads)
    table_kernel(View<T> dx, const int32_t* ends, const int32_t* order, View<G> dtable,
                 bool accumulate, bool is_aligned) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  const int64_t col = (static_cast<int64_t>(blockIdx.y) * kWarp + threadIdx.x % kWarp) * kWide<T>;
  if (token >= dtable.rows || col >= dtable.cols) return;
  const int32_t begin = begin_of(ends, token), end = ends[token];
  if (accumulate && begin == end) return;
  float sums[kWide<T>] = {};
  G* dst = dtable.row(token);
  if (accumulate) load_sums<T>(dst, col, dtable.cols, sums);
  add_rows(
      dx, col, is_aligned, end - begin, [&](int64_t i) { return order[begin + i]; }, sums);
  store_sums<T>(sums, dst, col, dtable.cols, is_aligned);
}

// A thread has a position and a pack of columns. Where documents begin anywhere, the rows of a
// position are found by looking at all that could be.
template <class T, class G>
__global__ void __launch_bounds__(kColumnThreads)
    positions_kernel(View<T> dx, Positions positions, View<G> dpositions, bool accumulate,
                     bool is_aligned) {
  const int64_t col = (static_cast<int64_t>(blockIdx.y) * kColumnThreads + threadIdx.x) * kWide<T>;
  if (col >= dpositions.cols) return;
  const int64_t length = positions.length, place = blockIdx.x - positions.first;
  G* dst = dpositions.row(blockIdx.x);
  float sums[kWide<T>] = {};
  if (accumulate) load_sums<T>(dst, col, dpositions.cols, sums);
  const bool in_sequence = place >= 0 && place < length;
  if (in_sequence && !positions.starts) {
    const int64_t count = dx.rows > place ? (dx.rows - place + length - 1) / length : 0;
    add_rows(
        dx, col, is_aligned, count, [&](int64_t i) { return place + i * length; }, sums);
  }
  for (int64_t first = 0; first < dx.rows && in_sequence && positions.starts; first += length)
    for (int64_t row = first + place; row < first + length && row < dx.rows; ++row)
      if (position_of(positions, row) == place)
        add_rows(
            dx, col, is_aligned, 1, [&](int64_t) { return row; }, sums);
  store_sums<T>(sums, dst, col, dpositions.cols, is_aligned);
}

}  // namespace

void embedding_forward(const int32_t* tokens, Matrix table, Matrix position_table,
                       const Positions& positions, Matrix dst, cudaStream_t stream) {
  with_type(dst.type, [&](auto element) {
    using T = decltype(element);
    const Share share(dst.rows, dst.cols, kWide<T>, all_aligned(table, position_table, dst));
    launch(forward_kernel<T>, share.grid(), kThreads, 0, stream, tokens, view<T>(table),
           view<T>(position_table), positions, view<T>(dst), share);
  });
}

// scratch: each token's count, [vocabulary]; where its rows end, [vocabulary]; the rows by token,
// [rows], and in their order, [rows].
namespace {

// dst (+)= the sums of the rows of dx that go to each of its rows, in their order.
template <class T, class G>
void add_sorted_rows(const Targets& targets, const Matrix& dx, const Matrix& dst, bool accumulate,
                     int32_t* scratch, cudaStream_t stream) {
  const int64_t rows = dx.rows;
  int32_t* counts = scratch;
  int32_t* ends = counts + dst.rows;
  int32_t* placed = ends + dst.rows;
  int32_t* order = placed + rows;
  const dim3 by_row = grid_of(ceil_div(rows, kThreads));
  check(cudaMemsetAsync(counts, 0, static_cast<size_t>(dst.rows) * sizeof(int32_t), stream),
        "clear counts");
  launch(count_kernel, by_row, kThreads, 0, stream, targets, rows, counts, dst.rows);
  launch(begins_kernel, grid_of(ceil_div(dst.rows, kScanThreads)), kScanThreads, 0, stream, counts,
         dst.rows, ends);
  launch(place_kernel, by_row, kThreads, 0, stream, targets, rows, ends, dst.rows, placed);
  launch(order_kernel, by_row, kThreads, 0, stream, targets, ends, dst.rows, placed, order);
  launch(table_kernel<T, G>,
         grid_of(ceil_div(dst.rows, kThreads / kWarp), ceil_div(dst.cols, kWarp * kWide<T>)),
         kThreads, 0, stream, view<T>(dx), ends, order, view<G>(dst), accumulate,
         all_aligned(dx, dst));
}

}  // namespace

void embedding_backward(const EmbeddingBackward& args, cudaStream_t stream) {
  with_types(args.dx.type, args.dtable.type, [&](auto element, auto gradient) {
    using T = decltype(element);
    using G = decltype(gradient);
    add_sorted_rows<T, G>({args.tokens, {}}, args.dx, args.dtable, args.accumulate_table,
                          args.scratch, stream);
    if (!args.dpositions.data) return;
    if (args.positions.places)
      return add_sorted_rows<T, G>({nullptr, args.positions}, args.dx, args.dpositions,
                                   args.accumulate_positions, args.scratch, stream);
    launch(positions_kernel<T, G>,
           grid_of(args.dpositions.rows, ceil_div(args.dpositions.cols, kColumnThreads * kWide<T>)),
           kColumnThreads, 0, stream, view<T>(args.dx), args.positions, view<G>(args.dpositions),
           args.accumulate_positions, all_aligned(args.dx, args.dpositions));
  });
}

}  // namespace onefold::cuda
