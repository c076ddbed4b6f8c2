// Grouped products of 16 bits on Hopper. Blocks stay for the whole product, one to a
// multiprocessor, and take tiles of 128 x 256 results in a fixed order: bands of rows, column by
// column, so that what tiles of one time read meets in the cache. In a block one thread copies
// operands, 64 terms of both at a time, into a ring in shared memory; two groups of four warps
// multiply 64 rows each.
//
// Which group a tile is of is looked up in the card's memory, so nothing waits for the host. A tile
// may reach into the next group's rows: what it computes there is not stored. Of terms that are
// rows (gradients of weights) those of other groups are cleared in shared memory.
#include "cuda/grouped_wgmma.h"
#include "cuda/launch.cuh"
#include "cuda/wgmma.cuh"

namespace onefold::cuda {
namespace {

constexpr int kRows = 128, kCols = 256, kTerms = 64, kStages = 4;
constexpr int kGroupThreads = 128, kGroupRows = 64;
constexpr int kWorkers = 2;                                    // groups of warps that multiply
constexpr int kBlockThreads = (1 + kWorkers) * kGroupThreads;  // the first copies
constexpr int kChunk = 64;  // elements in 128 bytes: the width of what is copied at once
constexpr int kChunkBytes = kChunk * kTerms * 2;
constexpr int kABytes = kRows * kTerms * 2, kBBytes = kCols * kTerms * 2;
constexpr int kStageBytes = kABytes + kBBytes;
constexpr int kBand = 8;  // tiles below each other
constexpr int kMostGroups = 256;

struct Shared {
  Barrier full[kStages], empty[kStages];
  int tiles_before[kMostGroups + 1];  // of rows, in groups before this one
};
constexpr int64_t kAlign = 1024;  // of operands, for the swizzle
constexpr int64_t kSharedBytes = kStages * kStageBytes + sizeof(Shared) + kAlign;

// What a product needs beside its operands.
struct Product {
  const int32_t* offsets;
  int groups;
  int rows, cols, terms;  // of dst of a group and its terms; of rows that are sorted, rows of all
  bool accumulate;
};

// Where a tile's results go, and its terms.
struct TileWork {
  int group;
  int first_row, end_row;  // of dst
  int first_col;
  int first_term, end_term;
  __device__ int steps() const { return (end_term - first_term + kTerms - 1) / kTerms; }
};

// Tiles in bands, column by column.
struct TilePlace {
  int row, col;
  __device__ TilePlace(int tile, int row_tiles, int col_tiles) {
    const int band = tile / (kBand * col_tiles), in_band = tile - band * kBand * col_tiles;
    const int height = min(kBand, row_tiles - band * kBand);
    row = band * kBand + in_band % height;
    col = in_band / height;
  }
};

template <bool kWeights>
struct Tiles {
  const Product& p;
  const Shared& shared;
  int col_tiles, row_tiles;  // row_tiles: of a group's weights, or of all sorted rows

  __device__ Tiles(const Product& product, const Shared& from)
      : p(product),
        shared(from),
        col_tiles((product.cols + kCols - 1) / kCols),
        row_tiles(kWeights ? (product.rows + kRows - 1) / kRows
                           : from.tiles_before[product.groups]) {}
  __device__ int count() const { return row_tiles * col_tiles * (kWeights ? p.groups : 1); }

  __device__ TileWork operator[](int tile) const {
    if constexpr (kWeights) {
      const int of_group = row_tiles * col_tiles, group = tile / of_group;
      const TilePlace place(tile - group * of_group, row_tiles, col_tiles);
      return {group,
              group * p.rows + place.row * kRows,
              (group + 1) * p.rows,
              place.col * kCols,
              p.offsets[group],
              p.offsets[group + 1]};
    } else {
      const TilePlace place(tile, row_tiles, col_tiles);
      int group = 0, beyond = p.groups;  // the last that does not begin after the tile
      while (beyond - group > 1) {
        const int middle = (group + beyond) / 2;
        (shared.tiles_before[middle] <= place.row ? group : beyond) = middle;
      }
      const int first = p.offsets[group] + (place.row - shared.tiles_before[group]) * kRows;
      return {group, first, p.offsets[group + 1], place.col * kCols, 0, p.terms};
    }
  }
};

// A ring of stages, and the parity of its round.
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// kATerms, kBTerms: the operand's rows are terms, as of both for gradients of weights.
template <bool kATerms, bool kBTerms>
__device__ void copy_operands(const CUtensorMap& a, const CUtensorMap& b, const Product& p,
                              Shared& shared, char* stages) {
  const Tiles<kATerms> tiles(p, shared);
  Ring ring;
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles.count();
       tile += static_cast<int>(gridDim.x)) {
    const TileWork work = tiles[tile];
    const int first_row = kATerms ? work.first_row - work.group * p.rows : work.first_row;
    for (int step = 0; step < work.steps(); ++step, ring.next()) {
      Barrier& full = shared.full[ring.stage];
      shared.empty[ring.stage].wait(ring.parity ^ 1);
      full.arrive_and_expect(kStageBytes);
      char* const to_a = stages + ring.stage * kStageBytes;
      char* const to_b = to_a + kABytes;
      const int term = work.first_term + step * kTerms;
      if constexpr (kATerms)
        for (int i = 0; i < kRows / kChunk; ++i)
          copy_box(a, first_row + i * kChunk, term, 0, to_a + i * kChunkBytes, full);
      else
        copy_box(a, term, first_row, 0, to_a, full);
      const int matrix = kATerms ? 0 : work.group;
      if constexpr (kBTerms)
        for (int i = 0; i < kCols / kChunk; ++i)
          copy_box(b, work.first_col + i * kChunk, term, matrix, to_b + i * kChunkBytes, full);
      else
        copy_box(b, term, work.first_col, matrix, to_b, full);
    }
  }
}

// All threads that multiply.
__device__ inline void meet_workers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kWorkers * kGroupThreads) : "memory");
}

// Terms from `count` on become 0: rows of 128 bytes of each chunk. A group of warps has its own
// chunk of a, and its part of b's.
__device__ inline void clear_terms(char* a, char* b, int count, int worker) {
  constexpr int kOfWorker = kCols / kChunk / kWorkers;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  const auto clear = [&](char* chunk) {
    for (int at = count * 128 + thread * 16; at < kChunkBytes; at += kGroupThreads * 16)
      *reinterpret_cast<uint4*>(chunk + at) = uint4{};
  };
  clear(a + worker * kChunkBytes);
  for (int i = 0; i < kOfWorker; ++i) clear(b + (worker * kOfWorker + i) * kChunkBytes);
  fence_shared();
  meet_workers();
}

// Word i of the four lanes' words `lane`, in lane i: what a lane then has is consecutive.
__device__ inline uint4 exchanged(const uint32_t (&words)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 4;
  const auto pick = [&](int i) {
    return i == 0 ? words[0] : i == 1 ? words[1] : i == 2 ? words[2] : words[3];
  };
  uint32_t got[4];  // from lane ^ r
  got[0] = pick(lane);
#pragma unroll
  for (int r = 1; r < 4; ++r) got[r] = __shfl_xor_sync(~0u, pick(lane ^ r), r);
  const auto from = [&](int i) {
    const int r = i ^ lane;
    return r == 0 ? got[0] : r == 1 ? got[1] : r == 2 ? got[2] : got[3];
  };
  return make_uint4(from(0), from(1), from(2), from(3));
}

// A thread has, of two rows eight apart, two columns of each eight.
template <class D>
__device__ void store_sums(const float (&sums)[128], const View<D>& dst, const TileWork& work,
                           int worker, bool accumulate) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads, lane = thread % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row =
        work.first_row + worker * kGroupRows + thread / kWarp * 16 + thread % kWarp / 4 + half * 8;
    const bool there = row < work.end_row;
    D* const to = dst.row(there ? row : work.first_row);
#pragma unroll
    for (int block = 0; block < kCols / 8; block += 4) {
      uint32_t words[4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int col = work.first_col + (block + i) * 8 + 2 * lane;
        float low = sums[(block + i) * 4 + half * 2], high = sums[(block + i) * 4 + half * 2 + 1];
        const bool inside = there && col < dst.cols;
        if constexpr (sizeof(D) == 4) {
          if (!inside) continue;
          float2& at = *reinterpret_cast<float2*>(to + col);
          at = accumulate ? make_float2(low + at.x, high + at.y) : make_float2(low, high);
        } else {
          if (accumulate && inside) {
            float low_before, high_before;
            widen_pair(*reinterpret_cast<const uint32_t*>(to + col), low_before, high_before, D{});
            low += low_before;
            high += high_before;
          }
          words[i] = narrow_pair(low, high, D{});
        }
      }
      if constexpr (sizeof(D) == 2) {
        const uint4 eight = exchanged(words);
        const int col = work.first_col + (block + lane) * 8;
        if (there && col < dst.cols) *reinterpret_cast<uint4*>(to + col) = eight;
      }
    }
  }
}

template <class T, class D, bool kATerms, bool kBTerms>
__device__ void multiply_tiles(const Product& p, const View<D>& dst, Shared& shared, char* stages) {
  const Tiles<kATerms> tiles(p, shared);
  const int worker = static_cast<int>(threadIdx.x) / kGroupThreads - 1;
  const bool signals = threadIdx.x % kWarp == 0;
  constexpr uint32_t kAStep = kATerms ? 16 * 128 : 32, kBStep = kBTerms ? 16 * 128 : 32;
  Ring ring;
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles.count();
       tile += static_cast<int>(gridDim.x)) {
    const TileWork work = tiles[tile];
    const int steps = work.steps();
    float sums[128];
#pragma unroll
    for (float& sum : sums) sum = 0;
    int last = -1;  // the stage that the batch before this one reads
    for (int step = 0; step < steps; ++step, ring.next()) {
      char* const at_a = stages + ring.stage * kStageBytes;
      char* const at_b = at_a + kABytes;
      shared.full[ring.stage].wait(ring.parity);
      if constexpr (kATerms)
        if (const int left = work.end_term - work.first_term - step * kTerms; left < kTerms)
          clear_terms(at_a, at_b, left, worker);
      const uint32_t a = shared_address(at_a) + worker * (kABytes / kWorkers),
                     b = shared_address(at_b);
      begin_products();
#pragma unroll
      for (int i = 0; i < kTerms / 16; ++i)
        multiply<T, kATerms, kBTerms>(sums, operand_at(a + i * kAStep, kChunkBytes),
                                      operand_at(b + i * kBStep, kChunkBytes), step > 0 || i > 0);
      end_products();
      wait_for_products<1>();
      if (last >= 0 && signals) shared.empty[last].arrive();
      last = ring.stage;
    }
    wait_for_products<0>();
    if (last >= 0 && signals) shared.empty[last].arrive();
    if (steps > 0 || !p.accumulate) store_sums(sums, dst, work, worker, p.accumulate);
  }
}

template <class T, class D, bool kATerms, bool kBTerms>
__global__ void __launch_bounds__(kBlockThreads, 1)
    tiles_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                 Product p, View<D> dst) {
#if defined(ONEFOLD_HAS_WGMMA) || !defined(__CUDA_ARCH__)
  const auto memory = reinterpret_cast<uintptr_t>(shared_floats());
  char* const stages = reinterpret_cast<char*>((memory + kAlign - 1) / kAlign * kAlign);
  Shared& shared = *reinterpret_cast<Shared*>(stages + kStages * kStageBytes);
  if constexpr (!kATerms) {
    for (int g = static_cast<int>(threadIdx.x); g < p.groups; g += kBlockThreads)
      shared.tiles_before[g + 1] = (p.offsets[g + 1] - p.offsets[g] + kRows - 1) / kRows;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    if constexpr (!kATerms) {
      shared.tiles_before[0] = 0;
      for (int g = 0; g < p.groups; ++g) shared.tiles_before[g + 1] += shared.tiles_before[g];
    }
    for (int stage = 0; stage < kStages; ++stage) {
      shared.full[stage].make(1);
      shared.empty[stage].make(kWorkers * kGroupThreads / kWarp);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    fence_shared();
  }
  __syncthreads();
  if (threadIdx.x >= kGroupThreads)
    multiply_tiles<T, D, kATerms, kBTerms>(p, dst, shared, stages);
  else if (threadIdx.x == 0)
    copy_operands<kATerms, kBTerms>(a, b, p, shared, stages);
#else
  __trap();
#endif
}

// Of the calling thread's card, if it is one that has wgmma; else 0.
int64_t multiprocessors() {
  const auto attribute = [](cudaDeviceAttr which) {
    int card = 0, value = 0;
    check(cudaGetDevice(&card), "ask for the thread's card");
    check(cudaDeviceGetAttribute(&value, which, card), "ask what the card can do");
    return value;
  };
  return attribute(cudaDevAttrComputeCapabilityMajor) == 9
             ? attribute(cudaDevAttrMultiProcessorCount)
             : 0;
}

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function that describes a tensor to copies.
Encode encode_function() {
  static const Encode found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                           cudaEnableDefault, &result),
          "ask the driver for copies of boxes");
    return result == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(function) : nullptr;
  }();
  return found;
}

// `count` matrices below each other, which are copied in boxes of 64 columns.
CUtensorMap describe(const Matrix& m, int64_t count, int box_rows) {
  const auto rows = static_cast<uint64_t>(m.rows / count), stride = static_cast<uint64_t>(m.stride);
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(m.cols), rows,
                               static_cast<cuuint64_t>(count)};
  const cuuint64_t strides[2] = {stride * 2, rows * stride * 2};
  const cuuint32_t box[3] = {kChunk, static_cast<cuuint32_t>(box_rows), 1}, steps[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result = encode_function()(
      &map,
      m.type == Type::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3,
      m.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) check(cudaErrorInvalidValue, "describe an operand");
  return map;
}

template <class T, class D, bool kATerms, bool kBTerms>
void start(const GroupedArgs& g, cudaStream_t stream) {
  const Product p{g.offsets,
                  static_cast<int>(g.groups),
                  static_cast<int>(kATerms ? g.a.cols : g.a.rows),
                  static_cast<int>(g.dst.cols),
                  static_cast<int>(kATerms ? g.a.rows : g.a.cols),
                  g.accumulate};
  launch(tiles_kernel<T, D, kATerms, kBTerms>, grid_of(multiprocessors()), kBlockThreads,
         kSharedBytes, stream, describe(g.a, 1, kATerms ? kTerms : kRows),
         describe(g.b, kATerms ? 1 : g.groups, kBTerms ? kTerms : kCols), p, view<D>(g.dst));
}

}  // namespace

bool grouped_gemm_wgmma(const GroupedArgs& g, cudaStream_t stream) {
  const bool weights = g.a_transposed;
  constexpr int64_t kMost = INT32_MAX;
  if (g.a.type == Type::f32 || multiprocessors() == 0 || g.groups > kMostGroups ||
      !all_aligned(g.a, g.b, g.dst) || g.dst.cols % 8 != 0 || g.a.rows == 0 || g.a.cols == 0 ||
      (!weights && g.dst.type != g.a.type) || g.dst.rows > kMost || g.a.rows > kMost ||
      !encode_function())
    return false;
  with_half(g.a.type, [&](auto element) {
    using T = decltype(element);
    if (!weights)
      g.b_transposed ? start<T, T, false, false>(g, stream) : start<T, T, false, true>(g, stream);
    else if (g.dst.type == Type::f32)
      start<T, float, true, true>(g, stream);
    else
      start<T, T, true, true>(g, stream);
  });
  return true;
}

}  // namespace onefold::cuda
