// How much scratch the card's kernels take, and the sizes that follow from: functions of shapes
// alone, in host code, so that a plan for the card can be made where there is none. The plugin
// (src/cuda) uses the same functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

namespace onefold {

class KernelScratch;
struct AttentionShape;

// What the device cuda takes.
std::unique_ptr<KernelScratch> make_cuda_scratch();

namespace cuda {

// Blocks of the card's memory are whole multiples of this.
inline constexpr int64_t kMemoryBlockBytes = 512;
inline int64_t whole_memory_blocks(int64_t bytes) {
  return (bytes + kMemoryBlockBytes - 1) / kMemoryBlockBytes * kMemoryBlockBytes;
}

// Of a matrix product: as much as the library recommends for Hopper. Where dst is small, terms are
// divided over blocks, whose sums meet there. The same for every product; algorithms that need more
// are not considered.
inline constexpr int64_t kProductWorkspaceBytes = int64_t{32} << 20;
inline constexpr int64_t kProductWorkspaceAlign = 256;

// Rows in chunks, each with a partial sum: at most `most` of them, and at least 16 rows behind
// each, so that adding up the partials stays a small part of the work.
struct RowChunks {
  int64_t rows, size, count;
  explicit RowChunks(int64_t total, int64_t most = 128)
      : rows(total),
        size(std::max<int64_t>(16, (total + most - 1) / most)),
        count((total + size - 1) / size) {}
};

// Of a norm's gradients in 16 bits: a block for each chunk, and one block to each of the 132
// multiprocessors of an H100 or H200 (norm_backward.cu).
inline RowChunks norm_chunks(int64_t pieces) {
  constexpr int64_t kMultiprocessors = 132;
  return RowChunks(pieces, kMultiprocessors);
}

// Of a router's gradients: likewise.
inline RowChunks route_chunks(int64_t tokens) { return norm_chunks(tokens); }

// Elements of a partial sum of squares: 8 Ki, or as many as make no more partial sums than blocks
// run at a time.
inline int64_t squares_chunk(int64_t elems) {
  constexpr int64_t kLeast = 8 * 1024, kMostChunks = 132 * 4, kWhole = 2048;
  return std::max(kLeast, (elems + kMostChunks * kWhole - 1) / (kMostChunks * kWhole) * kWhole);
}

// Attention by the library, backward and deterministic, keeps the gradients of all scores of the
// sequences that it takes at a time: so many, that this stays within kAttentionSliceBytes if it
// can.
int64_t attention_slice(const AttentionShape& shape);
// What the library may ask for, of so many sequences.
int64_t attention_library_bytes(const AttentionShape& shape, int64_t sequences);

}  // namespace cuda
}  // namespace onefold
