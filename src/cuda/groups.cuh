// Tiles of grouped products: which group a block's tile is of, and where in it.
#pragma once

#include "cuda/experts.h"
#include "cuda/launch.cuh"

namespace onefold::cuda {

// Rows of a group: [begin, end).
struct GroupRows {
  int64_t begin, end;
  __device__ GroupRows(const int32_t* offsets, int64_t group)
      : begin(offsets[group]), end(offsets[group + 1]) {}
  __device__ int64_t count() const { return end - begin; }
};

// Number `tile` of the tiles of `size` rows that groups are cut into, each group on its own.
struct RowTile {
  int64_t group;  // groups: there is no such tile
  int64_t first;  // its first row
  int64_t end;    // of the group
  __device__ RowTile(const int32_t* offsets, int64_t groups, int64_t tile, int64_t size) {
    for (group = 0; group < groups; ++group) {
      const GroupRows rows(offsets, group);
      const int64_t tiles = (rows.count() + size - 1) / size;
      if (tile < tiles) {
        first = rows.begin + tile * size;
        end = rows.end;
        return;
      }
      tile -= tiles;
    }
    first = end = 0;
  }
};

// Of all groups, whatever the offsets: each may end with a tile that is not full.
inline int64_t most_row_tiles(int64_t rows, int64_t groups, int64_t size) {
  return rows / size + (groups < rows ? groups : rows);
}

}  // namespace onefold::cuda
