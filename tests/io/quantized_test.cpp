// Blocks of GGUF's types: as the reference package reads them, and within their bounds on data that
// does its worst. tests/golden/README.md says how the golden file was made.
#include "io/quantized.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/gguf.h"
#include "error_text.h"
#include "io/hf_folder.h"

namespace onefold {
namespace {

const std::string kBlocksGolden = std::string(ONEFOLD_GOLDEN_DIR) + "/gguf/blocks.gguf";

class Quantized : public testing::TestWithParam<const char*> {
 protected:
  static constexpr size_t kElems = 512;
  std::string type_ = GetParam();

  std::vector<float> there_and_back(const std::vector<float>& values, int64_t lost = 0) const {
    std::vector<std::byte> bytes(
        static_cast<size_t>(dtype_bytes(type_, static_cast<int64_t>(values.size()))));
    EXPECT_EQ(quantize(type_, values, bytes), lost);
    std::vector<float> back(values.size());
    read_values(type_, bytes, 0, back);
    return back;
  }
  // Within the bound of each block by itself.
  void expect_bounded(const std::vector<float>& values) const {
    const std::vector<float> back = there_and_back(values);
    const auto block = static_cast<size_t>(ggml_type_named(type_)->elems);
    for (size_t at = 0; at < values.size(); at += block) {
      double largest = 0;
      for (size_t i = at; i < at + block; ++i)
        largest = std::max(largest, std::fabs(double{values[i]}));
      const double bound = quantized_error(type_, largest) * (1 + 1e-5);
      for (size_t i = at; i < at + block; ++i)
        ASSERT_LE(std::fabs(double{values[i]} - back[i]), bound)
            << values[i] << " of at most " << largest;
    }
  }
};

TEST_P(Quantized, BlocksAreReadAsTheReferenceReadsThem) {
  const TensorFiles golden = TensorFiles::open_file(kBlocksGolden);
  std::string name = type_;
  for (char& c : name) c = static_cast<char>(std::tolower(c));
  std::vector<float> values(static_cast<size_t>(golden.entry(name).elems())), wanted(values);
  golden.read(name, 0, std::span<float>(values));
  golden.read(name + ".values", 0, std::span<float>(wanted));
  ASSERT_EQ(golden.entry(name).shape, golden.entry(name + ".values").shape);
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], wanted[i]) << i;
  // Any range of them.
  for (const auto& [first, count] :
       {std::pair<int64_t, size_t>{0, 1}, {5, 60}, {31, 2}, {64, 64}}) {
    std::vector<float> part(count);
    golden.read(name, first, std::span<float>(part));
    for (size_t i = 0; i < count; ++i)
      ASSERT_EQ(part[i], wanted[static_cast<size_t>(first) + i]) << first << " " << i;
  }
}

TEST_P(Quantized, RandomValuesAreNear) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(64 * kElems);
  for (float& value : values) value = normal(random);
  expect_bounded(values);
  const std::vector<float> back = there_and_back(values);
  double error = 0, sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    error += std::pow(values[i] - back[i], 2);
    sum += std::pow(values[i], 2);
  }
  EXPECT_LT(std::sqrt(error / sum), type_ == "Q8_0" ? 0.006 : 0.075);
}

TEST_P(Quantized, HostileValuesStayWithinTheBound) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> values(kElems);
  expect_bounded(values);  // zeros
  for (const float scale : {1e-45f, 1e-40f, 1e-12f, 1e-7f, 3e-6f, 1e-4f, 1.0f, 1e3f, 1e6f}) {
    for (float& value : values) value = scale * normal(random);
    expect_bounded(values);
    for (float& value : values) value = scale;  // all equal
    expect_bounded(values);
    for (float& value : values) value = -scale;
    expect_bounded(values);
    for (float& value : values) value = 1e-3f * scale * normal(random);
    values[17] = scale;  // one spike
    values[300] = -scale;
    expect_bounded(values);
    for (size_t i = 0; i < values.size(); ++i)  // magnitudes of all sizes
      values[i] = scale * std::pow(10.0f, -static_cast<float>(i % 30)) * (i % 2 == 0 ? 1 : -1);
    expect_bounded(values);
    for (size_t i = 0; i < values.size(); ++i)  // groups of very different widths
      values[i] = scale * std::pow(10.0f, -static_cast<float>(i / 32 % 8)) * normal(random);
    expect_bounded(values);
    for (float& value : values) value = scale * (5 + 0.01f * normal(random));  // far from zero
    expect_bounded(values);
  }
}

TEST_P(Quantized, WhatItCannotHoldIsCounted) {
  std::vector<float> values(kElems, 1.0f);
  values[3] = std::numeric_limits<float>::infinity();
  values[4] = std::numeric_limits<float>::quiet_NaN();
  there_and_back(values, 2);
  std::vector<float> huge(kElems, 1.0f);
  huge[3] = 1e30f;
  there_and_back(huge, ggml_type_named(type_)->elems);
  huge[3] = std::numeric_limits<float>::max();
  huge[4] = -huge[3];
  there_and_back(huge, ggml_type_named(type_)->elems);
}

INSTANTIATE_TEST_SUITE_P(Types, Quantized, testing::Values("Q8_0", "Q4_K"));

TEST(QuantizedTypes, OthersAreRefusedByName) {
  EXPECT_FALSE(is_readable_dtype("Q6_K"));
  EXPECT_TRUE(is_readable_dtype("BF16"));
  EXPECT_EQ(dtype_bytes("Q8_0", 64), 68);
  EXPECT_EQ(dtype_bytes("Q4_K", 512), 288);
  EXPECT_EQ(dtype_bytes("F16", 3), 6);
}

}  // namespace
}  // namespace onefold
