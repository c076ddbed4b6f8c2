#include "base/checked.h"

#include <gtest/gtest.h>

namespace onefold {
namespace {

constexpr int64_t kBig = int64_t{1} << 31;

TEST(SaturatingProduct, IsTheProductOrTheLargestNumber) {
  EXPECT_EQ(saturating_product({}), 1);
  EXPECT_EQ(saturating_product({3, 5, 7}), 105);
  EXPECT_EQ(saturating_product({kBig, kBig}), kBig * kBig);
  EXPECT_EQ(saturating_product({kBig, kBig, 2}), INT64_MAX);
  EXPECT_EQ(saturating_product({INT64_MAX, 1}), INT64_MAX);
  // Wrapped around, these would be small again.
  EXPECT_EQ(saturating_product({kBig, kBig, kBig, kBig}), INT64_MAX);
  EXPECT_EQ(saturating_product({int64_t{1} << 62, 4}), INT64_MAX);
  EXPECT_EQ(saturating_product({int64_t{1} << 62, 4, 3}), INT64_MAX);
}

TEST(SaturatingProduct, OfNothingIsNothing) {
  EXPECT_EQ(saturating_product({kBig, kBig, kBig, 0}), 0);
  EXPECT_EQ(saturating_product({0, kBig, kBig, kBig}), 0);
}

TEST(LargestSize, KeepsTheProductWithinTheLimit) {
  EXPECT_EQ(largest_size(100, {3, 5}), 6);
  EXPECT_EQ(largest_size(100, {101}), 0);
  EXPECT_EQ(largest_size(100, {kBig, kBig, kBig}), 0);
}

}  // namespace
}  // namespace onefold
