#include "tensor/box.h"

#include <gtest/gtest.h>

#include <random>

namespace onefold {

inline std::ostream& operator<<(std::ostream& out, const Box& box) {
  return out << box.rows << " x " << box.cols << " at " << box.row << ", " << box.col;
}

namespace {

using Boxes = std::vector<Box>;

TEST(BoxTest, ARangeIsAtMostThreeBoxes) {
  EXPECT_EQ(boxes_of_range(4, 5, 0, 20), (Boxes{{0, 0, 4, 5}}));
  EXPECT_EQ(boxes_of_range(4, 5, 5, 10), (Boxes{{1, 0, 2, 5}}));
  EXPECT_EQ(boxes_of_range(4, 5, 6, 3), (Boxes{{1, 1, 1, 3}}));
  EXPECT_EQ(boxes_of_range(4, 5, 5, 3), (Boxes{{1, 0, 1, 3}}));
  EXPECT_EQ(boxes_of_range(4, 5, 7, 3), (Boxes{{1, 2, 1, 3}}));
  EXPECT_EQ(boxes_of_range(4, 5, 3, 4), (Boxes{{0, 3, 1, 2}, {1, 0, 1, 2}}));
  EXPECT_EQ(boxes_of_range(4, 5, 3, 7), (Boxes{{0, 3, 1, 2}, {1, 0, 1, 5}}));
  EXPECT_EQ(boxes_of_range(4, 5, 0, 12), (Boxes{{0, 0, 2, 5}, {2, 0, 1, 2}}));
  EXPECT_EQ(boxes_of_range(4, 5, 3, 15), (Boxes{{0, 3, 1, 2}, {1, 0, 2, 5}, {3, 0, 1, 3}}));
  EXPECT_EQ(boxes_of_range(1, 9, 2, 4), (Boxes{{0, 2, 1, 4}}));
  EXPECT_EQ(boxes_of_range(9, 1, 2, 4), (Boxes{{2, 0, 4, 1}}));
  EXPECT_EQ(boxes_of_range(4, 5, 20, 0), Boxes());
  EXPECT_EQ(boxes_of_range(0, 5, 0, 0), Boxes());
  EXPECT_EQ(boxes_of_range(5, 0, 0, 0), Boxes());
  EXPECT_THROW(boxes_of_range(4, 5, 18, 3), InternalError);
  EXPECT_THROW(boxes_of_range(4, 5, -1, 3), InternalError);
}

TEST(BoxTest, EveryRangeOfSmallMatricesIsItsElementsInOrder) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{3, 4}, {1, 7}, {7, 1}, {5, 2}})
    for (int64_t first = 0; first <= rows * cols; ++first)
      for (int64_t elems = 0; first + elems <= rows * cols; ++elems) {
        int64_t expected = first;
        const Boxes boxes = boxes_of_range(rows, cols, first, elems);
        EXPECT_LE(boxes.size(), 3);
        for (const Box& box : boxes)
          for (int64_t r = box.row; r < box.row + box.rows; ++r)
            for (int64_t c = box.col; c < box.col + box.cols; ++c)
              EXPECT_EQ(r * cols + c, expected++);
        EXPECT_EQ(expected, first + elems);
      }
}

TEST(BoxTest, IntersectionIsWhatBothHave) {
  const Box box{2, 3, 4, 5};
  EXPECT_EQ(intersection(box, box), box);
  EXPECT_EQ(intersection(box, {0, 0, 3, 4}), (Box{2, 3, 1, 1}));
  EXPECT_EQ(intersection(box, {3, 0, 1, 100}), (Box{3, 3, 1, 5}));
  EXPECT_EQ(intersection({3, 4, 1, 1}, box), (Box{3, 4, 1, 1}));
  EXPECT_TRUE(intersection(box, {0, 0, 2, 100}).empty());  // above, and touching
  EXPECT_TRUE(intersection(box, {6, 0, 2, 100}).empty());
  EXPECT_TRUE(intersection(box, {0, 8, 100, 1}).empty());
  EXPECT_TRUE(intersection(box, {0, 0, 0, 0}).empty());
}

TEST(BoxTest, AnExactCoverIsToldFromEveryOther) {
  const Boxes mixed = {{0, 0, 2, 3}, {0, 3, 1, 2}, {1, 3, 3, 2}, {2, 0, 2, 1}, {2, 1, 2, 2}};
  EXPECT_EQ(cover_of(mixed, 4, 5), Cover::exact);
  EXPECT_EQ(cover_of(Boxes{{0, 0, 4, 2}, {0, 2, 4, 3}}, 4, 5), Cover::exact);  // by columns
  EXPECT_EQ(cover_of(Boxes{{3, 0, 1, 5}, {0, 0, 3, 5}}, 4, 5), Cover::exact);  // in any order
  EXPECT_EQ(cover_of(Boxes(), 0, 5), Cover::exact);
  EXPECT_EQ(cover_of(Boxes(), 4, 5), Cover::gaps);
  for (size_t i = 0; i < mixed.size(); ++i) {
    Boxes others = mixed;
    others.erase(others.begin() + static_cast<int64_t>(i));
    EXPECT_EQ(cover_of(others, 4, 5), Cover::gaps) << mixed[i];
    others = mixed;
    others.push_back(mixed[i]);
    EXPECT_EQ(cover_of(others, 4, 5), Cover::overlapping) << mixed[i];
    // Wider or taller by one: over another, or over the edge.
    others = mixed;
    ++others[i].cols;
    EXPECT_NE(cover_of(others, 4, 5), Cover::exact) << mixed[i];
    others = mixed;
    ++others[i].rows;
    EXPECT_NE(cover_of(others, 4, 5), Cover::exact) << mixed[i];
  }
  // As many elements as there are, and not each of them.
  EXPECT_EQ(cover_of(Boxes{{0, 0, 1, 2}, {0, 1, 1, 2}}, 2, 2), Cover::outside);
  EXPECT_EQ(cover_of(Boxes{{0, 0, 1, 2}, {0, 0, 2, 1}}, 2, 2), Cover::overlapping);
  EXPECT_EQ(cover_of(Boxes{{0, 0, 2, 1}, {0, 0, 1, 2}}, 2, 2), Cover::overlapping);
  EXPECT_EQ(cover_of(Boxes{{0, 1, 2, 2}, {1, 0, 1, 4}, {0, 0, 1, 1}, {0, 3, 1, 1}}, 2, 5),
            Cover::overlapping);
}

TEST(BoxTest, WhatIsOutsideIsFoundWithoutOverflow) {
  constexpr int64_t kHuge = INT64_MAX;
  for (const Box& box : Boxes{{-1, 0, 1, 1},
                              {0, -1, 1, 1},
                              {0, 0, 0, 1},
                              {0, 0, 1, -1},
                              {4, 0, 1, 1},
                              {0, 5, 1, 1},
                              {1, 0, 4, 1},
                              {0, 1, 1, 5},
                              {kHuge, 0, kHuge, 1},
                              {0, kHuge, 1, kHuge},
                              {1, 1, kHuge, kHuge}})
    EXPECT_EQ(cover_of(Boxes{box}, 4, 5), Cover::outside) << box;
}

// By counting, on random boxes.
Cover counted(const Boxes& boxes, int64_t rows, int64_t cols) {
  std::vector<int> count(static_cast<size_t>(rows * cols));
  for (const Box& box : boxes)
    for (int64_t r = box.row; r < box.row + box.rows; ++r)
      for (int64_t c = box.col; c < box.col + box.cols; ++c)
        ++count[static_cast<size_t>(r * cols + c)];
  if (*std::max_element(count.begin(), count.end()) > 1) return Cover::overlapping;
  return *std::min_element(count.begin(), count.end()) == 1 ? Cover::exact : Cover::gaps;
}

// Cuts a box again and again: an exact cover by construction.
void cut(const Box& box, std::mt19937& random, Boxes& boxes) {
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  if (box.rows > 1 && below(3) > 0) {
    const int64_t at = 1 + below(box.rows - 1);
    cut({box.row, box.col, at, box.cols}, random, boxes);
    cut({box.row + at, box.col, box.rows - at, box.cols}, random, boxes);
  } else if (box.cols > 1 && below(3) > 0) {
    const int64_t at = 1 + below(box.cols - 1);
    cut({box.row, box.col, box.rows, at}, random, boxes);
    cut({box.row, box.col + at, box.rows, box.cols - at}, random, boxes);
  } else {
    boxes.push_back(box);
  }
}

TEST(BoxTest, RandomCoversAreAsCounted) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const auto rows = static_cast<int64_t>(1 + random() % 9),
               cols = static_cast<int64_t>(1 + random() % 9);
    Boxes boxes;
    cut({0, 0, rows, cols}, random, boxes);
    std::shuffle(boxes.begin(), boxes.end(), random);
    EXPECT_EQ(cover_of(boxes, rows, cols), Cover::exact);
    Box& moved = boxes[random() % boxes.size()];  // to any other place
    moved.row = static_cast<int64_t>(random() % static_cast<uint64_t>(rows - moved.rows + 1));
    moved.col = static_cast<int64_t>(random() % static_cast<uint64_t>(cols - moved.cols + 1));
    EXPECT_EQ(cover_of(boxes, rows, cols), counted(boxes, rows, cols));
  }
}

TEST(BoxTest, ManyBoxesTakeNoSquareOfTheirNumber) {
  constexpr int64_t kSide = 400;  // 160,000 boxes: pair by pair that would be 10^10 comparisons
  Boxes boxes;
  for (int64_t r = 0; r < kSide; ++r)
    for (int64_t c = 0; c < kSide; ++c) boxes.push_back({r * 2, c * 3, 2, 3});
  EXPECT_EQ(cover_of(boxes, kSide * 2, kSide * 3), Cover::exact);
}

}  // namespace
}  // namespace onefold
