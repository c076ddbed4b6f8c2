// Codes of 8 bits.
#include "base/block8.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace onefold {
namespace {

constexpr Moment8 kBoth[] = {Moment8::first, Moment8::second};

TEST(Block8, CodingWhatWasDecodedGivesTheSameCodesAndScale) {
  for (const Moment8 moment : kBoth)
    for (const float scale : {1.0f, 3.7e-12f, 1e30f, kLeastScale8}) {
      std::vector<float> values;
      std::vector<uint8_t> codes;
      for (int code = 0; code < 256; ++code) {
        if (moment == Moment8::first && code == 0) continue;  // none
        codes.push_back(static_cast<uint8_t>(code));
        values.push_back(decode8(moment, codes.back(), scale));
      }
      EXPECT_EQ(scale8(values), scale);
      for (size_t i = 0; i < codes.size(); ++i)
        EXPECT_EQ(encode8(moment, values[i], scale), codes[i]) << scale;
    }
}

TEST(Block8, TinyBlocksKeepTheirCodesToo) {
  for (const Moment8 moment : kBoth)
    for (const float value : {1e-30f, 1e-38f, 1e-44f}) {
      const std::vector<float> block = {value, value / 3, 0};
      const float scale = scale8(block);
      std::vector<float> decoded;
      std::vector<uint8_t> codes;
      for (const float one : block) {
        codes.push_back(encode8(moment, one, scale, 0.25f));
        decoded.push_back(decode8(moment, codes.back(), scale));
      }
      if (scale8(decoded) == 0) continue;  // a first moment that is nothing beside the least scale
      EXPECT_EQ(scale8(decoded), scale);
      for (size_t i = 0; i < codes.size(); ++i)
        EXPECT_EQ(encode8(moment, decoded[i], scale), codes[i]) << value;
    }
}

TEST(Block8, ANeighbourIsTakenAndTheMeanIsTheValue) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(0, 1);
  for (const Moment8 moment : kBoth)
    for (const float value : {0.9f, 0.3f, 0.01f, 1e-4f}) {
      double sum = 0;
      constexpr int kDraws = 20000;
      const int below = block8::level_below(moment, value);
      for (int i = 0; i < kDraws; ++i) {
        const uint8_t code = encode8(moment, value, 1, uniform(random));
        const int k = moment == Moment8::first ? code - 128 : code;
        EXPECT_TRUE(k == below || k == below + 1);
        sum += decode8(moment, code, 1);
      }
      const double gap = block8::level(moment, below + 1) - block8::level(moment, below);
      EXPECT_NEAR(sum / kDraws, value, 4 * gap / std::sqrt(kDraws));
    }
}

TEST(Block8, ASecondMomentIsZeroOnlyIfItIs) {
  EXPECT_EQ(encode8(Moment8::second, 0, 1), 0);
  EXPECT_EQ(encode8(Moment8::second, 1e-30f, 1, 0.99f), 1);
  EXPECT_EQ(encode8(Moment8::second, 1e-30f, 1e30f, 0.99f), 1);  // no share is left of it
  EXPECT_EQ(encode8(Moment8::second, 0, 0), 0);
  EXPECT_EQ(decode8(Moment8::first, encode8(Moment8::first, -0.5f, 0.5f), 0.5f), -0.5f);
}

}  // namespace
}  // namespace onefold
