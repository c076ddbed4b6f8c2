#include "io/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "error_text.h"

namespace onefold {
namespace {

// The value of a 16-bit float by its definition, in double.
double value_of(uint16_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1)
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

struct Type {
  const char* name;
  int exponent_bits, fraction_bits;
  float (*widen)(uint16_t);
  uint16_t (*narrow)(float);
};
const Type kTypes[] = {{"F16", 5, 10, f16_to_f32, f32_to_f16},
                       {"BF16", 8, 7, bf16_to_f32, f32_to_bf16}};

TEST(Half, EveryValueWidensExactlyAndNarrowsBackToItself) {
  for (const Type& type : kTypes) {
    for (uint32_t i = 0; i < 0x10000; ++i) {
      const auto bits = static_cast<uint16_t>(i);
      const double expected = value_of(bits, type.exponent_bits, type.fraction_bits);
      const float wide = type.widen(bits);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(wide)) << type.name << " " << i;
        ASSERT_TRUE(std::isnan(type.widen(type.narrow(wide)))) << type.name << " " << i;
        continue;
      }
      ASSERT_EQ(static_cast<double>(wide), expected) << type.name << " " << i;
      ASSERT_EQ(std::signbit(wide), std::signbit(expected)) << type.name << " " << i;
      ASSERT_EQ(type.narrow(wide), bits) << type.name;
    }
  }
}

// Between two neighbours: below the middle the lower, above it the upper, on it the even one.
TEST(Half, RoundsToTheNearestAndTiesToEven) {
  for (const Type& type : kTypes) {
    for (const uint32_t sign : {0u, 0x8000u}) {
      const uint32_t infinity = ((1u << type.exponent_bits) - 1) << type.fraction_bits;
      for (uint32_t i = 0; i + 1 < infinity; ++i) {
        const auto low = static_cast<uint16_t>(sign | i), high = static_cast<uint16_t>(low + 1);
        const float middle = static_cast<float>(
            (static_cast<double>(type.widen(low)) + type.widen(high)) / 2);  // fp32 holds it
        ASSERT_EQ(type.narrow(middle), i % 2 == 0 ? low : high) << type.name << " " << i;
        ASSERT_EQ(type.narrow(std::nextafter(middle, type.widen(low))), low) << type.name;
        ASSERT_EQ(type.narrow(std::nextafter(middle, type.widen(high))), high) << type.name;
      }
    }
  }
}

TEST(Half, WhatIsTooLargeBecomesInfiniteAndIsCounted) {
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7C00);
  EXPECT_EQ(f32_to_f16(-1e10f), 0xFC00);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {1, 70000, -70000, infinity, NAN};
  std::vector<std::byte> bytes(values.size() * 2);
  EXPECT_EQ(from_f32("F16", values, bytes), 2) << "an infinity does not overflow";
  EXPECT_EQ(from_f32("BF16", values, bytes), 0);
}

// Of all words, exactly the share that a value lies above its lower neighbour choose the upper one.
TEST(Half, RandomWordsChooseNeighboursByTheirDistance) {
  struct Drawn {
    uint16_t (*draw)(float, uint32_t);
    float (*widen)(uint16_t);
    float value;
    uint16_t low;
    double share;
  };
  const Drawn all[] = {
      {f32_to_bf16_drawn, bf16_to_f32, 1.0f, 0x3F80, 0},
      {f32_to_bf16_drawn, bf16_to_f32, 1 + 0x1p-9f, 0x3F80, 0.25},
      {f32_to_bf16_drawn, bf16_to_f32, -1 - 0x1.8p-8f, 0xBF80, 0.75},
      {f32_to_bf16_drawn, bf16_to_f32, 1 + 0x1p-23f, 0x3F80, 0x1p-16},
      {f32_to_f16_drawn, f16_to_f32, 1 + 0x1p-12f, 0x3C00, 0.25},
      {f32_to_f16_drawn, f16_to_f32, 1 + 0x1p-23f, 0x3C00, 0x1p-13},
      {f32_to_f16_drawn, f16_to_f32, 0x1.4p-24f, 0x0001, 0.25},  // subnormal
      {f32_to_f16_drawn, f16_to_f32, 0x1p-28f, 0x0000, 0.0625},
      {f32_to_f16_drawn, f16_to_f32, -0x1p-34f, 0x8000, 0x1p-10},
      {f32_to_f16_drawn, f16_to_f32, 65504 + 8, 0x7BFF, 0.25},  // the upper one is infinite
  };
  for (const Drawn& d : all) {
    uint32_t above = 0;
    for (uint32_t i = 0; i < 0x10000; ++i) {
      const uint16_t bits = d.draw(d.value, i << 16 | 0xFFFF);
      ASSERT_TRUE(bits == d.low || bits == d.low + 1) << d.value;
      above += bits != d.low;
    }
    EXPECT_EQ(above, d.share * 0x10000) << d.value;
  }
}

TEST(Half, RandomWordsLeaveWhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const uint32_t word : {0u, ~0u}) {
    EXPECT_EQ(f32_to_bf16_drawn(-infinity, word), 0xFF80);
    EXPECT_EQ(f32_to_f16_drawn(infinity, word), 0x7C00);
    EXPECT_EQ(f32_to_f16_drawn(1e6f, word), 0x7C00);
    EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16_drawn(NAN, word))));
    EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16_drawn(NAN, word))));
  }
}

TEST(Half, SpansConvertAtAnyAlignment) {
  const std::vector<float> values = {0.5f, -3, 1e-3f, 0};
  for (const char* dtype : {"F32", "F16", "BF16"}) {
    const size_t bytes = values.size() * (std::string(dtype) == "F32" ? 4 : 2);
    std::vector<std::byte> space(bytes + 1);
    const std::span<std::byte> odd(space.data() + 1, bytes);
    EXPECT_EQ(from_f32(dtype, values, odd), 0);
    std::vector<float> back(values.size());
    to_f32(dtype, odd, back);
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(back[i], values[i], std::abs(values[i]) / 256) << dtype;  // BF16: 8 bits
  }
  std::vector<float> one(1);
  EXPECT_THROW(to_f32("I32", std::vector<std::byte>(4), one), InternalError);
}

TEST(Half, EveryTypeOfAFileCanBeLookedAt) {
  const auto widened = [](const char* dtype, auto value) {
    std::vector<double> wide(1);
    to_f64(dtype, std::as_bytes(std::span(&value, 1)), wide);
    return wide[0];
  };
  EXPECT_EQ(widened("F64", 0.1), 0.1);
  EXPECT_EQ(widened("F32", 0.5f), 0.5);
  EXPECT_EQ(widened("F16", uint16_t{0xC000}), -2);
  EXPECT_EQ(widened("BF16", uint16_t{0xC000}), -2);
  EXPECT_EQ(widened("I64", int64_t{-7}), -7);
  EXPECT_EQ(widened("I32", int32_t{-7}), -7);
  EXPECT_EQ(widened("I16", int16_t{-7}), -7);
  EXPECT_EQ(widened("I8", int8_t{-7}), -7);
  EXPECT_EQ(widened("U64", uint64_t{1} << 63), 0x1p63);
  EXPECT_EQ(widened("U32", ~uint32_t{0}), 4294967295.0);
  EXPECT_EQ(widened("U16", uint16_t{65535}), 65535);
  EXPECT_EQ(widened("U8", uint8_t{255}), 255);
  EXPECT_EQ(widened("BOOL", uint8_t{9}), 1);
}

}  // namespace
}  // namespace onefold
