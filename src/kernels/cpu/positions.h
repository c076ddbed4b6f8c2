// Positions of the rows of a micro-batch (RowPositions), for kernels that look them up in a table.
#pragma once

#include "kernels/kernels.h"

namespace onefold::cpu {

inline int64_t position_of(const RowPositions& positions, int64_t row) {
  const int64_t in_sequence =
      positions.places.empty() ? row % positions.length : positions.places.i32()[row];
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
  if (positions.places.empty()) return;
  require(positions.places.elems() == rows && positions.first == 0, "the places of {} rows for {}",
          positions.places.elems(), rows);
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t place = positions.places.i32()[row];
    require(place >= 0 && place < table_rows, "row {} is at {} of {}", row, place, table_rows);
  }
}

}  // namespace onefold::cpu
