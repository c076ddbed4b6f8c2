// Lists of tensors for one kernel: each tensor, a segment, has consecutive blocks of the grid. Most
// parameters of a model are small, and starting a kernel for each would take longer than running
// it.
#pragma once

#include <algorithm>
#include <span>

#include "cuda/launch.cuh"

namespace onefold::cuda {

// Of a kernel: they are among its parameters, and a unit rarely has more.
inline constexpr int kMostSegments = 16;

template <class Item>
struct Segments {
  int count = 0;
  unsigned blocks = 0;  // of all
  unsigned begins[kMostSegments];
  Item items[kMostSegments];

  void add(const Item& item, int64_t item_blocks) {
    begins[count] = blocks;
    items[count++] = item;
    blocks += static_cast<unsigned>(item_blocks);
  }
  dim3 grid() const { return grid_of(blocks); }

  // The segment of the calling block, and the block's number in it. Empty ones have no block.
  __device__ int mine() const {
    int index = 0;
#pragma unroll
    for (int i = 1; i < kMostSegments; ++i)
      if (i < count && blockIdx.x >= begins[i]) index = i;
    return index;
  }
  __device__ int64_t block_of(int index) const { return blockIdx.x - begins[index]; }
};

// call(part) for each part of the list that one kernel takes: consecutive tensors that are alike.
template <class Args, class Alike, class Call>
void each_part(std::span<const Args> list, const Alike& alike, const Call& call) {
  while (!list.empty()) {
    size_t size = 1;
    while (size < std::min<size_t>(list.size(), kMostSegments) && alike(list[0], list[size]))
      ++size;
    call(list.first(size));
    list = list.subspan(size);
  }
}

}  // namespace onefold::cuda
