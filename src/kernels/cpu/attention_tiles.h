// What attention does with one tile of scores between its products, on vectors: the softmax of
// FlashAttention and its gradient. A tile is still in cache when it is called for.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/philox.h"
#include "kernels/kernels.h"

namespace onefold::cpu {

// Queries and keys of a tile.
inline constexpr int64_t kTile = 128;

// One tile of scores: rows are queries, columns keys. Row r sees columns [hidden(r), visible(r)).
struct ScoreTile {
  float* data;  // [rows, kTile]
  int64_t rows, cols;
  int64_t visible_in_row0;          // may be <= 0 for rows that see nothing here
  const int32_t* starts = nullptr;  // by row: the first key of its document; null: all see from 0
  int64_t first_key = 0;            // of column 0
  int64_t window = 0;  // columns that a row sees at most, its own being the last; 0: all
  int64_t visible(int64_t row) const { return std::clamp<int64_t>(visible_in_row0 + row, 0, cols); }
  int64_t hidden(int64_t row) const {
    const int64_t document = starts ? starts[row] - first_key : 0;
    const int64_t in_window = window > 0 ? visible_in_row0 + row - window : 0;
    return std::clamp<int64_t>(std::max(document, in_window), 0, visible(row));
  }
};

// Where a tile's dropout multipliers come from: element = first + row * row_step + column.
struct TileDropout {
  float rate = 0;
  PhiloxKey key;
  int64_t sample = 0;
  uint64_t first = 0;
  uint64_t row_step = 0;
};

// Turns scores, times a positive scale, into unnormalised probabilities relative to each row's
// running maximum, and keeps the running maximum, sum and result (`out`, scaled down when the
// maximum grows) of each row in step. Columns that a row does not see become 0.
void online_softmax(const ScoreTile& tile, float scale, bool first, const TileDropout& dropout,
                    float* maxima, float* sums, float* out, int64_t out_stride, int64_t head_dim);
// out[r] /= sums[r]; lse[r] = maximum + log(sum).
void finish_rows(int64_t rows, const float* maxima, const float* sums, float* out,
                 int64_t out_stride, int64_t head_dim, float* lse);
void scale_tile(const ScoreTile& tile, float factor);
// x becomes cap * tanh(x / cap).
void cap_tile(const ScoreTile& tile, float cap);
// Scores fall by the slope for each column that lies before the row's own.
void bias_tile(const ScoreTile& tile, float slope);
// dots[r] = a[r] · b[r]
void row_dots(const Tensor& a, const Tensor& b, float* dots);
// Scores, times score_scale, become probabilities (with dropout's multipliers: what the values were
// weighted with), and `gradient`, given as dout · values', becomes the gradient of the unscaled
// scores, before they were capped. Columns that a row does not see become 0 in both.
void backward_tile(const ScoreTile& tile, float score_scale, float* gradient, const float* lse,
                   const float* delta, float scale, float cap, const TileDropout& dropout);

}  // namespace onefold::cpu
