// Boxes: rows x columns of a matrix. Whatever way a parameter is split over ranks (flat ranges, row
// or column parallelism), a part of it is a few boxes, and what one split has saved another reads
// by intersecting them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"

namespace onefold {

// Elements [row, row + rows) x [col, col + cols) of a matrix; empty if rows or cols is 0.
struct Box {
  int64_t row = 0, col = 0, rows = 0, cols = 0;

  int64_t elems() const { return rows * cols; }
  bool empty() const { return rows == 0 || cols == 0; }
  bool operator==(const Box&) const = default;
};

// What two boxes have in common.
inline Box intersection(const Box& a, const Box& b) {
  const int64_t row = std::max(a.row, b.row), col = std::max(a.col, b.col);
  const int64_t rows = std::min(a.row + a.rows, b.row + b.rows) - row;
  const int64_t cols = std::min(a.col + a.cols, b.col + b.cols) - col;
  if (rows <= 0 || cols <= 0) return {};
  return {row, col, rows, cols};
}

// Elements [first, first + elems) of a matrix, row after row, as boxes in that order. There are at
// most three: the rest of the first row, whole rows, the beginning of the last.
inline std::vector<Box> boxes_of_range(int64_t rows, int64_t cols, int64_t first, int64_t elems) {
  require(first >= 0 && elems >= 0 && elems <= rows * cols - first, "elements {}+{} of {} x {}",
          first, elems, rows, cols);
  std::vector<Box> boxes;
  const auto add = [&](int64_t count, int64_t wide) {
    boxes.push_back({first / cols, first % cols, count, wide});
    first += count * wide;
    elems -= count * wide;
  };
  if (elems > 0 && first % cols != 0) add(1, std::min(elems, cols - first % cols));
  if (elems > 0 && elems >= cols) add(elems / cols, cols);
  if (elems > 0) add(1, elems);
  return boxes;
}

// How boxes that are not empty cover a matrix of `rows` x `cols`.
enum class Cover : uint8_t {
  exact,        // every element once
  outside,      // a box is not inside the matrix
  overlapping,  // an element is in two boxes
  gaps,         // an element is in none
};

// In n log n steps for n boxes. No product of their sizes overflows if rows * cols does not.
inline Cover cover_of(std::span<const Box> boxes, int64_t rows, int64_t cols) {
  int64_t left = rows * cols;
  for (const Box& box : boxes) {
    const bool inside = box.row >= 0 && box.row < rows && box.rows > 0 &&
                        box.rows <= rows - box.row && box.col >= 0 && box.col < cols &&
                        box.cols > 0 && box.cols <= cols - box.col;
    if (!inside) return Cover::outside;
  }
  // From row to row: `open` has the columns, first to end, of the boxes that the row goes through.
  struct Edge {
    int64_t row;
    bool begins;
    const Box* box;
  };
  std::vector<Edge> edges;
  for (const Box& box : boxes) {
    if (box.elems() > left) return Cover::overlapping;
    left -= box.elems();
    edges.push_back({box.row, true, &box});
    edges.push_back({box.row + box.rows, false, &box});
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    return std::pair(a.row, a.begins) < std::pair(b.row, b.begins);  // what ends goes first
  });
  std::map<int64_t, int64_t> open;
  for (const Edge& edge : edges) {
    const int64_t first = edge.box->col, end = first + edge.box->cols;
    if (!edge.begins) {
      open.erase(first);
      continue;
    }
    const auto next = open.lower_bound(first);
    if (next != open.end() && next->first < end) return Cover::overlapping;
    if (next != open.begin() && std::prev(next)->second > first) return Cover::overlapping;
    open.emplace_hint(next, first, end);
  }
  return left == 0 ? Cover::exact : Cover::gaps;
}

}  // namespace onefold
