// Sums over rows and over everything.
#include "cuda/pack.cuh"
#include "cuda/partials.cuh"
#include "cuda/segments.cuh"

namespace onefold::cuda {
namespace {

// Each thread has a column, each row of blocks a chunk of rows.
__global__ void column_kernel(View<float> x, int64_t chunk_size, float* partials) {
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x;
  if (col >= x.cols) return;
  const int64_t begin = blockIdx.y * chunk_size;
  const int64_t end = begin + chunk_size < x.rows ? begin + chunk_size : x.rows;
  float sum = 0;
#pragma unroll 8
  for (int64_t row = begin; row < end; ++row) sum += x.row(row)[col];
  partials[blockIdx.y * x.cols + col] = sum;
}

// Of 16-bit types: half a warp has 128 columns of a row, a pack to each lane. The halves of a block
// take the rows of its chunk in turn, and their sums are added in order.
template <class T>
__global__ void __launch_bounds__(kThreads)
    column_packs_kernel(View<T> x, int64_t chunk_size, float* partials, bool is_aligned) {
  constexpr int kElems = kWide<T>, kLanes = kWarp / 2, kHalves = kThreads / kLanes,
                kCols = kLanes * kElems;
  constexpr int kBatch = 8;  // rows that a thread has under way
  __shared__ float shared[kHalves][kCols + kElems];
  const int lane = threadIdx.x % kLanes, half = threadIdx.x / kLanes;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kCols + lane * kElems;
  const int64_t begin = blockIdx.y * chunk_size;
  const int64_t end = begin + chunk_size < x.rows ? begin + chunk_size : x.rows;
  float sums[kElems] = {};
  for (int64_t first = begin + half; first < end; first += kBatch * kHalves) {
    Pack<T> packs[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int64_t row = first + i * kHalves;
      packs[i] = row < end ? load_pack<Pack<T>>(x.row(row), col, x.cols, is_aligned) : Pack<T>{};
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      float values[kElems];
      packs[i].to(values);
#pragma unroll
      for (int k = 0; k < kElems; ++k) sums[k] += values[k];
    }
  }
#pragma unroll
  for (int k = 0; k < kElems; ++k) shared[half][lane * kElems + k] = sums[k];
  __syncthreads();
  const auto mine = static_cast<int>(threadIdx.x);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kCols + mine;
  if (mine >= kCols || at >= x.cols) return;
  float sum = shared[0][mine];
#pragma unroll
  for (int h = 1; h < kHalves; ++h) sum += shared[h][mine];
  partials[blockIdx.y * x.cols + at] = sum;
}

// A lane has a column. The warps of a block have kEachWarp consecutive partials at a time, each
// adds its own in order, and then the warps' sums are added in order.
template <class T>
__global__ void __launch_bounds__(kThreads)
    partials_kernel(const float* partials, int64_t chunks, int64_t spacing, bool accumulate,
                    T* dst0, T* dst1, T* dst2, int64_t elems) {
  after_the_last_kernel();
  T* dst = blockIdx.y == 0 ? dst0 : blockIdx.y == 1 ? dst1 : dst2;
  if (!dst) return;
  partials += blockIdx.y * elems;
  constexpr int kWarps = kThreads / kWarp;
  constexpr int kEachWarp = 17;  // 132 partials are added in one turn
  __shared__ float sums[kWarps][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  float sum = 0;
  for (int64_t first = warp * kEachWarp; first < chunks; first += kWarps * kEachWarp) {
    float values[kEachWarp];
#pragma unroll
    for (int i = 0; i < kEachWarp; ++i)
      values[i] = col < elems && first + i < chunks ? partials[(first + i) * spacing + col] : 0.0f;
#pragma unroll
    for (int i = 0; i < kEachWarp; ++i) sum += values[i];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || col >= elems) return;
#pragma unroll
  for (int w = 1; w < kWarps; ++w) sum += sums[w][lane];
  dst[col] = narrow<T>(accumulate ? widen(dst[col]) + sum : sum);
}

// One of kSumLanes interleaved sums.
template <class T>
__device__ double lane_sum(const T* x, int64_t elems, int lane) {
  constexpr int kBatch = 16;
  double sum = 0;
  for (int64_t first = lane; first < elems; first += kBatch * kSumLanes) {
    T values[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (first + i * kSumLanes < elems) values[i] = x[first + i * kSumLanes];
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (first + i * kSumLanes < elems) sum += static_cast<double>(values[i]);
  }
  return sum;
}

// Their sum, by halves, in lane 0. `lanes` is memory for the sums of these lanes; all of a block's
// threads call together.
__device__ double sum_of_lanes(double sum, int lane, double* lanes) {
  lanes[lane] = sum;
  for (int half = kSumLanes / 2; half >= kWarp; half /= 2) {
    __syncthreads();
    if (lane < half) {
      sum += lanes[lane + half];
      lanes[lane] = sum;
    }
  }
  if (lane < kWarp)
    for (int half = kWarp / 2; half > 0; half /= 2) sum += __shfl_down_sync(~0u, sum, half);
  return sum;
}

template <class T>
__global__ void __launch_bounds__(kSumLanes) sum_kernel(const T* x, int64_t elems, double* dst) {
  after_the_last_kernel();
  __shared__ double lanes[kSumLanes];
  const auto lane = static_cast<int>(threadIdx.x);
  const double sum = sum_of_lanes(lane_sum(x, elems, lane), lane, lanes);
  if (lane == 0) *dst = sum;
}

template <class T>
struct SquaresItem {
  const T* x;
  int64_t elems, chunk;
  double* sums;  // of chunks
  bool is_aligned;
};

// One block to a chunk, each thread with every 256th pack. In double throughout: squares of large
// gradients must not overflow, and the norm of billions of elements must not drift.
template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    squares_kernel(const __grid_constant__ Segments<SquaresItem<T>> segments) {
  after_the_last_kernel();
  const int mine = segments.mine();
  const auto& [x, elems, chunk, sums, is_aligned] = segments.items[mine];
  const int64_t block = segments.block_of(mine);
  constexpr int kElems = kWide<T>, kBatch = 32 / kElems;
  const int64_t begin = block * chunk;
  const int64_t end = begin + chunk < elems ? begin + chunk : elems;
  double sum = 0;
  for (int64_t first = begin + threadIdx.x * kElems; first < end;
       first += kBatch * kThreads * kElems) {
    Pack<T> packs[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      packs[i] = load_pack<Pack<T>>(x, first + i * kThreads * kElems, end, is_aligned);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      float values[kElems];
      packs[i].to(values);
#pragma unroll
      for (int k = 0; k < kElems; ++k) {
        const auto value = static_cast<double>(values[k]);
        sum = fma(value, value, sum);
      }
    }
  }
  sum = team_sum<kThreads>(sum);
  if (threadIdx.x == 0) sums[block] = sum;
}

// Sums of chunks of one tensor.
struct ChunksItem {
  const double* sums;
  int64_t count;
  double* dst;
};
constexpr int kSumTeams = 4;

// Adds up the chunks of each tensor, a few tensors at a time; and then everything, where that is
// wanted, among it what was just added up. One block: the next kernels wait for the last sum.
__global__ void __launch_bounds__(kSumTeams* kSumLanes)
    chunks_kernel(const __grid_constant__ Segments<ChunksItem> segments, const double* all,
                  int64_t count, double* total) {
  after_the_last_kernel();
  __shared__ double lanes[kSumTeams][kSumLanes];
  const int team = static_cast<int>(threadIdx.x) / kSumLanes,
            lane = static_cast<int>(threadIdx.x) % kSumLanes;
  for (int first = 0; first < segments.count; first += kSumTeams) {
    const int index = first + team;
    double sum = 0;
    if (index < segments.count)
      sum = lane_sum(segments.items[index].sums, segments.items[index].count, lane);
    sum = sum_of_lanes(sum, lane, lanes[team]);
    if (index < segments.count && lane == 0) *segments.items[index].dst = sum;
    __syncthreads();  // dst is written, lanes are read
  }
  if (!total) return;
  const double sum = sum_of_lanes(team == 0 ? lane_sum(all, count, lane) : 0.0, lane, lanes[team]);
  if (threadIdx.x == 0) *total = sum;
}

}  // namespace

void add_partials(const float* partials, int64_t chunks, int64_t spacing, bool accumulate,
                  const PartialSums& sums, int64_t elems, cudaStream_t stream) {
  int count = 0;  // up to the last that is wanted
  for (int i = 0; i < PartialSums::kMost; ++i)
    if (sums.dst[i].data) count = i + 1;
  if (count == 0) return;
  with_type(sums.dst[count - 1].type, [&](auto element) {
    using T = decltype(element);
    const auto dst = [&](int i) { return static_cast<T*>(sums.dst[i].data); };
    launch_early(partials_kernel<T>, grid_of(ceil_div(elems, kWarp), count), kThreads, 0, stream,
                 partials, chunks, spacing, accumulate, dst(0), dst(1), dst(2), elems);
  });
}

void column_sum(Matrix x, Vector dst, bool accumulate, float* scratch, cudaStream_t stream) {
  const RowChunks chunks(x.rows);
  if (x.type == Type::f32)
    launch(column_kernel, grid_of(ceil_div(x.cols, kColumnThreads), chunks.count), kColumnThreads,
           0, stream, view<float>(x), chunks.size, scratch);
  else
    with_half(x.type, [&](auto element) {
      using T = decltype(element);
      launch(column_packs_kernel<T>, grid_of(ceil_div(x.cols, kWarp / 2 * kWide<T>), chunks.count),
             kThreads, 0, stream, view<T>(x), chunks.size, scratch, aligned(x));
    });
  add_partials(scratch, chunks.count, x.cols, accumulate, {{dst}}, x.cols, stream);
}

void sum(const float* x, int64_t elems, double* dst, cudaStream_t stream) {
  launch_early(sum_kernel<float>, grid_of(1), kSumLanes, 0, stream, x, elems, dst);
}

void sum(const double* x, int64_t elems, double* dst, cudaStream_t stream) {
  launch_early(sum_kernel<double>, grid_of(1), kSumLanes, 0, stream, x, elems, dst);
}

void sum_squares(std::span<const SquaresArgs> list, const double* all, int64_t count, double* total,
                 double* scratch, cudaStream_t stream) {
  const auto alike = [](const SquaresArgs& a, const SquaresArgs& b) {
    return a.x.type == b.x.type;
  };
  const auto add_chunks = [&](const Segments<ChunksItem>& chunked, bool last) {
    if (chunked.count > 0 || last)
      launch_early(chunks_kernel, grid_of(1), kSumTeams * kSumLanes, 0, stream, chunked, all, count,
                   last ? total : nullptr);
  };
  each_part(list, alike, [&](std::span<const SquaresArgs> part) {
    Segments<ChunksItem> chunked;
    with_type(part[0].x.type, [&](auto element) {
      using T = decltype(element);
      Segments<SquaresItem<T>> segments;
      for (const auto& [x, elems, dst] : part) {
        const int64_t chunk = squares_chunk(elems), chunks = ceil_div(elems, chunk);
        segments.add(
            {static_cast<const T*>(x.data), elems, chunk, chunks == 1 ? dst : scratch, aligned(x)},
            chunks);
        if (chunks == 1) continue;
        chunked.add({scratch, chunks, dst}, 0);
        scratch += chunks;
      }
      launch_early(squares_kernel<T>, segments.grid(), kThreads, 0, stream, segments);
    });
    add_chunks(chunked, part.data() + part.size() == list.data() + list.size());
  });
  if (list.empty()) add_chunks({}, true);
}

}  // namespace onefold::cuda
