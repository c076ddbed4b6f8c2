// Splitting floats for the matrix unit by the processor's own conversions.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/bf16_unit.h"

namespace onefold::test {
namespace {

constexpr int64_t kStride = 72, kPart = 2 * 32 * 64, kTerms = 64;

struct Aligned {
  alignas(64) Bf16 values[cpu::kAllParts * kPart];
};

// Of part p of row r and column c: as rows, in which a column has the 16th after it beside it, and
// as terms from the 32nd on.
float in_rows(const Aligned& to, int part, int64_t row, int64_t col) {
  const int64_t place = col / 32 * 32 + col % 16 * 2 + col / 16 % 2;
  return widened(to.values[part * kPart + row * kStride + place]);
}
float in_terms(const Aligned& to, int part, int64_t row, int64_t col) {
  const int64_t tile = col / 16 * (kTerms / 32) + 1;
  return widened(to.values[part * kPart + tile * 512 + row / 2 * 32 + col % 16 * 2 + row % 2]);
}

// Ordinary numbers, zeros of both signs, and numbers from 1e-20 to 1e30 side by side.
float hostile_number(std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> exponent(-20, 30);
  switch (random() % 4) {
    case 0:
      return normal(random);
    case 1:
      return random() % 2 == 0 ? 0.0f : -0.0f;
    default:
      return std::copysign(std::pow(10.0f, exponent(random)), normal(random));
  }
}

// Both places of all parts of a split: `error` is what their sum may be off by, of the float.
void expect_split(int parts, float error) {
  std::mt19937 random(1);
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{32, 64}, {32, 32}, {7, 45}, {1, 1}}) {
    std::vector<float> x(32 * kStride, NAN);  // beyond rows and columns
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t col = 0; col < cols; ++col)
        x[static_cast<size_t>(row * kStride + col)] = hostile_number(random);
    static Aligned lines, terms;
    std::memset(&lines, 0x7F, sizeof(lines));
    std::memset(&terms, 0x7F, sizeof(terms));
    cpu::unit_split(x.data(), kStride, rows, cols, {lines.values, kStride, kPart},
                    {terms.values, kTerms, 32, kPart}, parts);
    for (int64_t row = 0; row < 32; ++row)
      for (int64_t col = 0; col < (cols + 31) / 32 * 32; ++col) {
        float sum = 0, expected = 0;
        if (row < rows && col < cols) expected = x[static_cast<size_t>(row * kStride + col)];
        for (int part = parts - 1; part >= 0; --part) {
          sum += in_rows(lines, part, row, col);
          ASSERT_EQ(in_rows(lines, part, row, col), in_terms(terms, part, row, col));
        }
        ASSERT_LE(std::abs(sum - expected), error * std::abs(expected))
            << row << ", " << col << " of " << rows << "x" << cols << " in " << parts;
      }
  }
}

TEST(Bf16Split, PartsAddUpToTheFloatWhereverTheyLie) {
  if (!cpu::has_bf16_unit()) GTEST_SKIP() << "this processor has no conversions to bf16";
  expect_split(cpu::kAllParts, 0);
  // The first leaves less than 2^-7, the second half a unit of its 8 bits of that.
  expect_split(cpu::kTwoParts, 0x1p-16f);
}

TEST(Bf16Split, SumsAreRoundedAndTransposed) {
  if (!cpu::has_bf16_unit()) GTEST_SKIP() << "this processor has no conversions to bf16";
  std::mt19937 random(2);
  constexpr int64_t kRows = 40, kCols = 37, kDstStride = 43;
  std::vector<float> x(kRows * kStride);
  for (float& value : x) value = hostile_number(random);
  std::vector<Bf16> dst(kCols * kDstStride, narrowed<Bf16>(3.0f));
  cpu::unit_store_transposed(x.data(), kStride, kRows, kCols, dst.data(), kDstStride);
  for (int64_t row = 0; row < kCols; ++row)
    for (int64_t col = 0; col < kDstStride; ++col) {
      const float expected =
          col < kRows ? widened(narrowed<Bf16>(x[static_cast<size_t>(col * kStride + row)])) : 3.0f;
      ASSERT_EQ(widened(dst[static_cast<size_t>(row * kDstStride + col)]), expected);
    }
}

}  // namespace
}  // namespace onefold::test
