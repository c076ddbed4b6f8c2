// Wire formats that choose what they send, as src/comm has them on the host: the same numbers, at
// the same places of the packet. What is chosen is found by counting: bins of magnitudes until the
// cut is known; then how many of each tile are above it, and how many before each tile; and so the
// place of each. All counts are whole numbers, so their order does not matter.
#include "cuda/wire.cuh"

namespace onefold::cuda {

// What is chosen: magnitudes above `cut`, and the first `equal` of those that are as large. From
// place `begin` on and around; `before` and `all` are counts of what is above.
struct SparseCut {
  uint32_t cut;
  int64_t wanted;  // of those that are left while bins are searched
  int64_t equal;
  int64_t begin, before, all;
};

namespace {

using packing::kBins;
using packing::kTile;

constexpr int kWarps = kThreads / kWarp;
constexpr int kScanThreads = 1024;
constexpr int kEachLane = static_cast<int>(kTile) / kThreads;  // of a warp's share of a tile
constexpr int64_t kMostBlocks = 132 * 16;

dim3 grid_for(int64_t work, int64_t each) {
  return grid_of(std::min(ceil_div(work, each), kMostBlocks));
}

// ---- What is looked at

// Folds what is given into what is kept: from there on numbers are looked at there.
template <class T>
__global__ void fold_kernel(__grid_constant__ const GivenShard given) {
  const Numbers<T> numbers(given);
  if (!numbers.folds) return;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < given.elems;
       i += int64_t{gridDim.x} * kThreads)
    given.kept[i] = numbers.take(given.scales, i);
}

// Magnitudes of numbers from `first` on, every so many.
template <class T>
struct Magnitudes {
  const T* values;
  int64_t first, stride, count;
  __device__ uint32_t operator()(int64_t i) const {
    return magnitude_of(widen(values[first + i * stride]));
  }
};
struct Norms {
  const uint32_t* norms;
  int64_t count;
  __device__ uint32_t operator()(int64_t i) const { return norms[i]; }
};

// As norm_magnitude(): sums are in double, of every sixteenth number, added by a tree. Half a warp
// has a block.
template <class T>
__global__ void norms_kernel(const T* values, int64_t elems, int64_t block, uint32_t* norms) {
  const int64_t blocks = ceil_div(elems, block);
  const int lane = static_cast<int>(threadIdx.x) % 16;
  const int64_t halves = int64_t{gridDim.x} * (kThreads / 16);
  const int64_t rounds = ceil_div(blocks, halves);  // the same for both halves of a warp
  for (int64_t round = 0; round < rounds; ++round) {
    const int64_t b = round * halves + int64_t{blockIdx.x} * (kThreads / 16) + threadIdx.x / 16;
    const int64_t end = min(elems, (b + 1) * block);
    double squares = 0;
    uint32_t largest = 0;
    for (int64_t i = b * block + lane; i < end; i += 16) {
      const float value = widen(values[i]);
      squares += static_cast<double>(value) * static_cast<double>(value);
      largest = max(largest, magnitude_of(value));
    }
    for (int half = 8; half > 0; half /= 2) {
      squares += __shfl_down_sync(~0u, squares, half, 16);
      largest = max(largest, __shfl_down_sync(~0u, largest, half, 16));
    }
    if (lane != 0 || b >= blocks) continue;
    const uint32_t norm = magnitude_of(static_cast<float>(sqrt(squares)));
    norms[b] = largest >= kInfiniteBits ? largest : min(norm, kInfiniteBits - 1);
  }
}

// ---- The cut: three rounds of bins, by the upper bits, those in the middle, and the lower ones

struct Bits {
  int shift, count;
};
constexpr Bits kRounds[] = {{20, 11}, {10, 10}, {0, 10}};

__global__ void begin_cut_kernel(int64_t wanted, SparseCut* cut) {
  *cut = {.cut = 0, .wanted = wanted, .equal = 0, .begin = 0, .before = 0, .all = 0};
}

template <class Of>
__global__ void bins_kernel(Of magnitudes, Bits bits, const SparseCut* cut, uint32_t* bins) {
  __shared__ uint32_t own[kBins];
  for (int b = static_cast<int>(threadIdx.x); b < kBins; b += kThreads) own[b] = 0;
  __syncthreads();
  const int upper = bits.shift + bits.count;
  const uint32_t found = cut->cut >> upper;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < magnitudes.count;
       i += int64_t{gridDim.x} * kThreads) {
    const uint32_t m = magnitudes(i);
    if (m >> upper == found) atomicAdd(&own[m >> bits.shift & ((1u << bits.count) - 1)], 1u);
  }
  __syncthreads();
  for (int b = static_cast<int>(threadIdx.x); b < kBins; b += kThreads)
    if (own[b] != 0) atomicAdd(&bins[b], own[b]);
}

// The bin that has the wanted one, counted from the largest: each thread has eight neighbours.
__global__ void pick_bin_kernel(Bits bits, SparseCut* cut, uint32_t* bins) {
  constexpr int kEach = static_cast<int>(kBins) / kThreads;
  __shared__ int64_t counts[kThreads];
  const int top = (kThreads - 1 - static_cast<int>(threadIdx.x)) * kEach;
  int64_t sum = 0;
  for (int k = 0; k < kEach; ++k) sum += bins[top + k];
  counts[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    int64_t left = cut->wanted;
    int t = 0;
    while (t + 1 < kThreads && counts[t] < left) left -= counts[t++];
    int bin = (kThreads - t) * kEach - 1;
    while (bin > 0 && bins[bin] < left) left -= bins[bin--];
    cut->cut |= static_cast<uint32_t>(bin) << bits.shift;
    cut->wanted = left;
    cut->equal = left;  // those above the cut are as many fewer than the room
  }
  __syncthreads();
  for (int k = 0; k < kEach; ++k) bins[top + k] = 0;
}

// Of a sample the cut is the least magnitude that is sent, and never 0; from a place on and around.
__global__ void around_kernel(uint32_t least, int64_t begin, SparseCut* cut) {
  const uint32_t from = max(1u, least > 0 ? least : cut->cut);
  *cut = {.cut = from - 1, .wanted = 0, .equal = 0, .begin = begin, .before = 0, .all = 0};
}

template <class Of>
void find_cut(const Of& magnitudes, int64_t wanted, const SparseRoom& room, cudaStream_t stream) {
  launch(begin_cut_kernel, grid_of(1), 1, 0, stream, wanted, room.cut);
  check(cudaMemsetAsync(room.bins, 0, kBins * sizeof(uint32_t), stream), "clear bins");
  for (const Bits& bits : kRounds) {
    launch(bins_kernel<Of>, grid_for(magnitudes.count, kThreads * 8), kThreads, 0, stream,
           magnitudes, bits, room.cut, room.bins);
    launch(pick_bin_kernel, grid_of(1), kThreads, 0, stream, bits, room.cut, room.bins);
  }
}

// ---- Places

// A warp has 16 times 32 neighbours of a tile: of each 32, which lanes are above and at the cut.
struct Found {
  uint32_t above[kEachLane], equal[kEachLane];
  uint2 counts;

  template <class Of>
  __device__ Found(const Of& magnitudes, int64_t first, uint32_t cut) : counts{0, 0} {
    const int64_t lane = threadIdx.x % kWarp;
#pragma unroll
    for (int k = 0; k < kEachLane; ++k) {
      const int64_t i = first + k * kWarp + lane;
      const bool in = i < magnitudes.count;
      const uint32_t m = in ? magnitudes(i) : 0;
      above[k] = __ballot_sync(~0u, in && m > cut);
      equal[k] = __ballot_sync(~0u, in && m == cut);
      counts.x += static_cast<uint32_t>(__popc(above[k]));
      counts.y += static_cast<uint32_t>(__popc(equal[k]));
    }
  }
  __device__ static int64_t first_of_warp(int64_t tile) {
    return tile * kTile + int64_t{threadIdx.x / kWarp} * kEachLane * kWarp;
  }
};

template <class Of>
__global__ void count_kernel(Of magnitudes, const SparseCut* cut, uint2* tiles) {
  __shared__ uint2 warps[kWarps];
  const int64_t count = ceil_div(magnitudes.count, kTile);
  for (int64_t tile = blockIdx.x; tile < count; tile += gridDim.x) {
    const Found found(magnitudes, Found::first_of_warp(tile), cut->cut);
    if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = found.counts;
    __syncthreads();
    if (threadIdx.x == 0) {
      uint2 sum{0, 0};
      for (const uint2& warp : warps) sum = {sum.x + warp.x, sum.y + warp.y};
      tiles[tile] = sum;
    }
    __syncthreads();
  }
}

// tiles = how many are before each; and how many are above the cut in all, and before `begin`.
template <class Of>
__global__ void scan_kernel(Of magnitudes, SparseCut* cut, uint2* tiles) {
  __shared__ uint2 sums[kScanThreads];
  const int64_t count = ceil_div(magnitudes.count, kTile);
  const int64_t each = ceil_div(count, int64_t{kScanThreads});
  const int64_t first = min(count, threadIdx.x * each), end = min(count, first + each);
  uint2 own{0, 0};
  for (int64_t t = first; t < end; ++t) own = {own.x + tiles[t].x, own.y + tiles[t].y};
  sums[threadIdx.x] = own;
  __syncthreads();
  for (int step = 1; step < kScanThreads; step *= 2) {
    const uint2 lower = threadIdx.x >= step ? sums[threadIdx.x - step] : uint2{0, 0};
    __syncthreads();
    sums[threadIdx.x].x += lower.x;
    sums[threadIdx.x].y += lower.y;
    __syncthreads();
  }
  uint2 before{sums[threadIdx.x].x - own.x, sums[threadIdx.x].y - own.y};
  for (int64_t t = first; t < end; ++t) {
    const uint2 here = tiles[t];
    tiles[t] = before;
    before = {before.x + here.x, before.y + here.y};
  }
  __syncthreads();
  // Of the tile in which `begin` is, those before it.
  const int64_t tile = cut->begin / kTile;
  __shared__ uint32_t part;
  if (threadIdx.x == 0) part = 0;
  __syncthreads();
  for (int64_t i = tile * kTile + threadIdx.x; i < cut->begin; i += kScanThreads)
    if (magnitudes(i) > cut->cut) atomicAdd(&part, 1u);
  __syncthreads();
  if (threadIdx.x != 0) return;
  cut->before = int64_t{part} + (tile < count ? tiles[tile].x : 0);
  cut->all = sums[kScanThreads - 1].x;
}

// Calls chosen(i, position) for what is chosen, and left(i) for the rest.
template <class Of, class Chosen, class Left>
__device__ void place_tile(const Of& magnitudes, int64_t tile, int64_t room, const SparseCut& cut,
                           const uint2* tiles, const Chosen& chosen, const Left& left) {
  __shared__ uint2 warps[kWarps];
  const int64_t first = Found::first_of_warp(tile);
  const Found found(magnitudes, first, cut.cut);
  const uint32_t lane = threadIdx.x % kWarp, below = (1u << lane) - 1;
  __syncthreads();  // the counts of the last tile have been read
  if (lane == 0) warps[threadIdx.x / kWarp] = found.counts;
  __syncthreads();
  int64_t above = tiles[tile].x, equal = tiles[tile].y;
  for (uint32_t w = 0; w < threadIdx.x / kWarp; ++w) {
    above += warps[w].x;
    equal += warps[w].y;
  }
#pragma unroll
  for (int k = 0; k < kEachLane; ++k) {
    const int64_t i = first + k * kWarp + lane;
    const int64_t rank = above + __popc(found.above[k] & below);
    const int64_t ties = equal + __popc(found.equal[k] & below);
    const int64_t around = i >= cut.begin ? rank - cut.before : rank + cut.all - cut.before;
    const int64_t position = around + min(ties, cut.equal);
    const bool is_above = (found.above[k] >> lane & 1) != 0;
    const bool is_tie = (found.equal[k] >> lane & 1) != 0 && ties < cut.equal;
    if (i < magnitudes.count) {
      if ((is_above || is_tie) && position < room)
        chosen(i, position);
      else
        left(i);
    }
    above += __popc(found.above[k]);
    equal += __popc(found.equal[k]);
  }
}

struct Entries {
  float* values;
  uint32_t* places;
};

__global__ void empty_kernel(Entries entries, int64_t room, uint32_t elems) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < room;
       i += int64_t{gridDim.x} * kThreads) {
    entries.values[i] = 0;
    entries.places[i] = elems;
  }
}

// What becomes of a number in what is kept, and of its velocity.
struct Rest {
  float *kept, *velocity;
  bool masks;

  __device__ Rest(const GivenShard& given, bool masked)
      : kept(nullptr), velocity(nullptr), masks(masked) {
    if (given.kept == nullptr || given.flags->not_finite != 0) return;
    kept = given.kept;
    velocity = given.velocity;
  }
  __device__ void sent(int64_t i) const {
    if (kept == nullptr) return;
    kept[i] = 0;
    if (masks && velocity != nullptr) velocity[i] = 0;
  }
  __device__ void left(int64_t i, float value) const {
    if (kept != nullptr && !is_finite(value)) kept[i] = 0;
  }
};

__device__ double square_of(float value) {
  return static_cast<double>(value) * static_cast<double>(value);
}

template <class T>
__global__ void numbers_kernel(__grid_constant__ const GivenShard given, const T* values,
                               int64_t room, bool masks, Entries entries, const SparseCut* at,
                               const uint2* tiles, BlockSquares* partials) {
  const Rest rest(given, masks);
  const Magnitudes<T> magnitudes{values, 0, 1, given.elems};
  const SparseCut cut = *at;
  double squares = 0, lost = 0;
  for (int64_t tile = blockIdx.x; tile < ceil_div(given.elems, kTile); tile += gridDim.x)
    place_tile(
        magnitudes, tile, room, cut, tiles,
        [&](int64_t i, int64_t position) {
          const float value = widen(values[i]);
          entries.values[position] = value;
          entries.places[position] = static_cast<uint32_t>(i);
          squares += square_of(value);
          rest.sent(i);
        },
        [&](int64_t i) {
          const float value = widen(values[i]);
          squares += square_of(value);
          lost += square_of(value);
          rest.left(i, value);
        });
  leave_squares(squares, lost, partials);
}

__global__ void block_places_kernel(Norms norms, int64_t room, uint32_t* places,
                                    const SparseCut* at, const uint2* tiles) {
  const SparseCut cut = *at;
  for (int64_t tile = blockIdx.x; tile < ceil_div(norms.count, kTile); tile += gridDim.x)
    place_tile(
        norms, tile, room, cut, tiles,
        [&](int64_t b, int64_t position) { places[position] = static_cast<uint32_t>(b); },
        [](int64_t) {});
}

// Afterwards norms are marks: of what is sent, all bits.
__global__ void mark_blocks_kernel(const uint32_t* places, int64_t room, uint32_t* norms) {
  for (int64_t p = int64_t{blockIdx.x} * kThreads + threadIdx.x; p < room;
       p += int64_t{gridDim.x} * kThreads)
    norms[places[p]] = ~0u;
}

template <class T>
__global__ void copy_blocks_kernel(const T* values, int64_t elems, int64_t block, Entries entries,
                                   int64_t room) {
  for (int64_t p = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; p < room;
       p += int64_t{gridDim.x} * kWarps) {
    const int64_t first = int64_t{entries.places[p]} * block;
    for (int64_t k = threadIdx.x % kWarp; k < block; k += kWarp)
      entries.values[p * block + k] = first + k < elems ? widen(values[first + k]) : 0.0f;
  }
}

template <class T>
__global__ void leave_blocks_kernel(__grid_constant__ const GivenShard given, const T* values,
                                    int64_t block, bool masks, const uint32_t* marks,
                                    BlockSquares* partials) {
  const Rest rest(given, masks);
  double squares = 0, lost = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < given.elems;
       i += int64_t{gridDim.x} * kThreads) {
    const float value = widen(values[i]);
    squares += square_of(value);
    if (marks[i / block] == ~0u) {
      rest.sent(i);
    } else {
      lost += square_of(value);
      rest.left(i, value);
    }
  }
  leave_squares(squares, lost, partials);
}

// Stretch s of so many: its bounds, and the number of it that is drawn.
struct Stretch {
  int64_t begin, end, place;
  __device__ Stretch(PhiloxKey key, int64_t s, int64_t room, int64_t elems)
      : begin(s * elems / room), end((s + 1) * elems / room) {
    place = begin + static_cast<int64_t>(drawn_word(key, s) % static_cast<uint64_t>(end - begin));
  }
};

template <class T>
__global__ void random_kernel(__grid_constant__ const GivenShard given, const T* values,
                              int64_t room, PhiloxKey common, bool masks, float* entries,
                              BlockSquares* partials) {
  const Rest rest(given, masks);
  double squares = 0, lost = 0;
  for (int64_t s = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; s < room;
       s += int64_t{gridDim.x} * kWarps) {
    const Stretch stretch(common, s, room, given.elems);
    for (int64_t i = stretch.begin + threadIdx.x % kWarp; i < stretch.end; i += kWarp) {
      const float value = widen(values[i]);
      squares += square_of(value);
      if (i == stretch.place) {
        entries[s] = value;
        rest.sent(i);
      } else {
        lost += square_of(value);
        rest.left(i, value);
      }
    }
  }
  leave_squares(squares, lost, partials);
}

// What is not finite is not lost: without room for it, the first number stands for it.
__global__ void mark_not_finite_kernel(const BlockSquares* partials, int64_t blocks,
                                       const SlabFlags* flags, Entries entries) {
  double lost = 0;
  for (int64_t b = threadIdx.x; b < blocks; b += kThreads) lost += partials[b].lost;
  lost = team_sum<kThreads>(lost);
  if (threadIdx.x != 0 || (isfinite(lost) && (flags == nullptr || flags->not_finite == 0))) return;
  entries.values[0] = __uint_as_float(0x7FC00000u);
  if (entries.places != nullptr) entries.places[0] = 0;
}

template <class Of>
void find_places(const Of& magnitudes, const SparseRoom& room, cudaStream_t stream) {
  const dim3 grid = grid_for(magnitudes.count, kTile);
  launch(count_kernel<Of>, grid, kThreads, 0, stream, magnitudes, room.cut, room.tiles);
  launch(scan_kernel<Of>, grid_of(1), kScanThreads, 0, stream, magnitudes, room.cut, room.tiles);
}

// As wire_sampled.cpp: every so many numbers, from a drawn place on.
template <class T>
int64_t cut_sample(const T* values, int64_t elems, const SparsePacket& format,
                   const SparseRoom& room, cudaStream_t stream) {
  constexpr int64_t kLeastSample = 1024, kShare = 256, kAboveCut = 32;
  const int64_t wanted = std::max({kLeastSample, elems / kShare, kAboveCut * elems / format.room});
  const int64_t stride = std::max<int64_t>(1, elems / std::min(wanted, elems));
  const auto first =
      static_cast<int64_t>(philox_word(format.own, 1) % static_cast<uint64_t>(stride));
  const int64_t sample = (elems - first + stride - 1) / stride;
  find_cut(Magnitudes<T>{values, first, stride, sample},
           std::max<int64_t>(1, format.room * sample / elems), room, stream);
  return sample;
}

template <class T>
void choose(const SparsePacket& format, const GivenShard& given, const T* values, std::byte* packet,
            const SparseRoom& room, cudaStream_t stream) {
  const int64_t elems = given.elems;
  const bool of_blocks = format.chosen == Chosen::blocks;
  const int64_t numbers = format.room * (of_blocks ? format.block : 1);
  auto* const first = reinterpret_cast<float*>(packet);
  Entries entries{first, reinterpret_cast<uint32_t*>(first + numbers)};
  int64_t blocks = 0;
  if (format.chosen == Chosen::random) {
    entries.places = nullptr;
    blocks = wire_blocks(ceil_div(format.room, int64_t{kWarps}));
    launch(random_kernel<T>, grid_of(blocks), kThreads, 0, stream, given, values, format.room,
           format.common, format.masks, first, room.partials);
  } else if (of_blocks) {
    const Norms norms{room.norms, ceil_div(elems, format.block)};
    launch(norms_kernel<T>, grid_for(norms.count, kThreads / 16), kThreads, 0, stream, values,
           elems, format.block, room.norms);
    find_cut(norms, format.room, room, stream);
    find_places(norms, room, stream);
    launch(block_places_kernel, grid_for(norms.count, kTile), kThreads, 0, stream, norms,
           format.room, entries.places, room.cut, room.tiles);
    launch(mark_blocks_kernel, grid_for(format.room, kThreads), kThreads, 0, stream, entries.places,
           format.room, room.norms);
    launch(copy_blocks_kernel<T>, grid_for(format.room, kWarps), kThreads, 0, stream, values, elems,
           format.block, entries, format.room);
    blocks = wire_blocks(ceil_div(elems, int64_t{kThreads} * 8));
    launch(leave_blocks_kernel<T>, grid_of(blocks), kThreads, 0, stream, given, values,
           format.block, format.masks, room.norms, room.partials);
  } else {
    const Magnitudes<T> magnitudes{values, 0, 1, elems};
    const auto begin =
        static_cast<int64_t>(philox_word(format.own, 0) % static_cast<uint64_t>(elems));
    if (format.chosen == Chosen::largest) {
      find_cut(magnitudes, format.room, room, stream);
    } else {
      if (format.chosen == Chosen::sampled) cut_sample(values, elems, format, room, stream);
      launch(around_kernel, grid_of(1), 1, 0, stream,
             format.chosen == Chosen::sampled ? 0u : std::max(format.least, 1u), begin, room.cut);
    }
    find_places(magnitudes, room, stream);
    launch(empty_kernel, grid_for(format.room, kThreads), kThreads, 0, stream, entries, format.room,
           static_cast<uint32_t>(elems));
    blocks = wire_blocks(ceil_div(elems, kTile));
    launch(numbers_kernel<T>, grid_of(blocks), kThreads, 0, stream, given, values, format.room,
           format.masks, entries, room.cut, room.tiles, room.partials);
  }
  launch(mark_not_finite_kernel, grid_of(1), kThreads, 0, stream, room.partials, blocks,
         given.kept != nullptr ? given.flags : nullptr, entries);
  add_squares(room.partials, blocks, room.totals, stream);
}

// ---- Sums

__global__ void add_numbers_kernel(const float* values, const uint32_t* places, int64_t room,
                                   float* dst, int64_t elems) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < room;
       i += int64_t{gridDim.x} * kThreads)
    if (places[i] < elems) dst[places[i]] += values[i];
}

__global__ void add_blocks_kernel(const float* values, const uint32_t* places, int64_t room,
                                  int64_t block, float* dst, int64_t elems) {
  for (int64_t p = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; p < room;
       p += int64_t{gridDim.x} * kWarps) {
    const int64_t first = int64_t{places[p]} * block;
    for (int64_t k = threadIdx.x % kWarp; k < block; k += kWarp)
      if (first + k < elems) dst[first + k] += values[p * block + k];
  }
}

__global__ void add_random_kernel(const float* values, int64_t room, PhiloxKey common, float* dst,
                                  int64_t elems) {
  for (int64_t s = int64_t{blockIdx.x} * kThreads + threadIdx.x; s < room;
       s += int64_t{gridDim.x} * kThreads)
    dst[Stretch(common, s, room, elems).place] += values[s];
}

template <class T>
__global__ void finish_kernel(const float* wide, __grid_constant__ const SummedShard sum) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < sum.elems;
       i += int64_t{gridDim.x} * kThreads) {
    float value = wide[i];
    if (sum.scales.count > 0) value /= scale_at(sum.scales, i);
    static_cast<T*>(sum.values)[i] = narrow<T>(value);
  }
}

}  // namespace

void pack_sparse(const SparsePacket& format, const GivenShard& given, std::byte* packet,
                 const SparseRoom& room, cudaStream_t stream) {
  if (given.elems == 0) return;
  with_type(given.type, [&](auto element) {
    using T = decltype(element);
    if (given.kept == nullptr)
      return choose(format, given, static_cast<const T*>(given.values), packet, room, stream);
    launch(fold_kernel<T>, grid_for(given.elems, kThreads * 4), kThreads, 0, stream, given);
    choose(format, given, static_cast<const float*>(given.kept), packet, room, stream);
  });
}

void sum_sparse(const SparsePacket& format, const Received& packets, const SummedShard& sum,
                float* wide, cudaStream_t stream) {
  const bool in_place = sum.type == Type::f32;
  float* const dst = in_place ? static_cast<float*>(sum.values) : wide;
  check(cudaMemsetAsync(dst, 0, static_cast<size_t>(sum.elems) * sizeof(float), stream),
        "clear a sum");
  const int64_t numbers = format.room * (format.chosen == Chosen::blocks ? format.block : 1);
  for (int source = 0; source < packets.count; ++source) {
    const auto* const values =
        reinterpret_cast<const float*>(packets.first + source * packets.stride);
    const auto* const places = reinterpret_cast<const uint32_t*>(values + numbers);
    if (format.chosen == Chosen::random)
      launch(add_random_kernel, grid_for(format.room, kThreads), kThreads, 0, stream, values,
             format.room, format.common, dst, sum.elems);
    else if (format.chosen == Chosen::blocks)
      launch(add_blocks_kernel, grid_for(format.room, kWarps), kThreads, 0, stream, values, places,
             format.room, format.block, dst, sum.elems);
    else
      launch(add_numbers_kernel, grid_for(format.room, kThreads), kThreads, 0, stream, values,
             places, format.room, dst, sum.elems);
  }
  if (in_place && sum.scales.count == 0) return;
  with_type(sum.type, [&](auto element) {
    launch(finish_kernel<decltype(element)>, grid_for(sum.elems, kThreads * 4), kThreads, 0, stream,
           dst, sum);
  });
}

}  // namespace onefold::cuda
