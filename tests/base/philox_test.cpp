#include "base/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <utility>
#include <vector>

namespace onefold {
namespace {

// Random123's known-answer vectors for philox4x32-10.
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox({0, 0}, {0, 0, 0, 0}),
            (PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox({kOnes, kOnes}, {kOnes, kOnes, kOnes, kOnes}),
            (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformsAreBelowOne) {
  EXPECT_EQ(philox_uniform(0), 0.0f);
  EXPECT_EQ(philox_uniform(0xffffffff), 1 - 0x1p-24f);
  EXPECT_EQ(philox_uniform(0x80000000), 0.5f);
  EXPECT_EQ(philox_uniform(0xff), 0.0f);  // the low 8 bits do not count
}

TEST(Philox, EveryLabelAndSeedBitMakesAnotherKey) {
  std::set<std::pair<uint32_t, uint32_t>> keys;
  const auto insert = [&](PhiloxKey key) { keys.insert({key.lo, key.hi}); };
  insert(philox_key(1, Draw::test));
  insert(philox_key(uint64_t{1} << 32, Draw::test));
  insert(philox_key(0, Draw::dropout));
  insert(philox_key(0, Draw::test, 1));
  insert(philox_key(0, Draw::test, 0, 1));
  insert(philox_key(0, Draw::test, 0, 0, 1));
  insert(philox_key(0, Draw::test));
  EXPECT_EQ(keys.size(), 7u);
}

TEST(Philox, NormalsHaveTheMomentsOfANormal) {
  constexpr int kCount = 200000;
  const PhiloxKey key = philox_key(7, Draw::test);
  double sum = 0, squares = 0, product = 0, previous = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    const double x = philox_normal(key, i);
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
    product += x * previous;
    previous = x;
  }
  // Five standard errors each: of the mean, of the variance (2/n), of the covariance of neighbours.
  EXPECT_NEAR(sum / kCount, 0, 5 / std::sqrt(kCount));
  EXPECT_NEAR(squares / kCount, 1, 5 * std::sqrt(2.0 / kCount));
  EXPECT_NEAR(product / kCount, 0, 5 / std::sqrt(kCount));
}

TEST(Philox, NormalNumbersAreTheSameOneByOne) {
  const PhiloxKey key = philox_key(7, Draw::test);
  for (const uint64_t first : {0, 1, 6, 7})
    for (const size_t count : {0, 1, 2, 3, 8}) {
      std::vector<float> numbers(count);
      philox_normals(key, first, numbers);
      for (size_t i = 0; i < count; ++i) EXPECT_EQ(numbers[i], philox_normal(key, first + i));
    }
}

}  // namespace
}  // namespace onefold
