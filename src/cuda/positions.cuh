// Positions of the rows of a micro-batch, for kernels that look them up in a table.
#pragma once

#include "cuda/ops.h"

namespace onefold::cuda {

// A row's place in its sequence. A micro-batch has fewer than 2^32 rows, and divisions of 32 bits
// are several times as fast.
__device__ inline int64_t place_of(const Positions& positions, int64_t row) {
  if (!positions.places)
    return static_cast<uint32_t>(row) % static_cast<uint32_t>(positions.length);
  const int64_t place = positions.places[row];
  return place < 0 ? 0 : place < positions.end ? place : positions.end - 1;
}

// Within the table, whatever starts and places hold.
__device__ inline int64_t position_of(const Positions& positions, int64_t row) {
  const int64_t in_sequence = place_of(positions, row);
  if (!positions.starts) return positions.first + in_sequence;
  const int64_t start = positions.starts[row];
  return start < 0 || start > in_sequence ? in_sequence : in_sequence - start;
}

}  // namespace onefold::cuda
