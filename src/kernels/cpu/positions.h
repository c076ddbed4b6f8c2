// Positions of the rows of a micro-batch (RowPositions), for kernels that look them up in a table.
#pragma once

#include "kernels/kernels.h"

namespace onefold::cpu {

inline int64_t position_of(const RowPositions& positions, int64_t row) {
  const int64_t in_sequence = row % positions.length;
  if (positions.starts.empty()) return positions.first + in_sequence;
  const int64_t start = positions.starts.i32()[row];
  require(start >= 0 && start <= in_sequence, "row {} is at {}, its document begins at {}", row,
          in_sequence, start);
  return in_sequence - start;
}

// That a table of `table_rows` has every position that there can be.
inline void check_positions(const RowPositions& positions, int64_t rows, int64_t table_rows) {
  require(positions.length > 0 && positions.first >= 0 &&
              positions.first + positions.length <= table_rows,
          "positions {}+{} of {}", positions.first, positions.length, table_rows);
  require(positions.starts.empty() || (positions.starts.elems() == rows && positions.first == 0),
          "the starts of {} rows for {}", positions.starts.elems(), rows);
}

}  // namespace onefold::cpu
