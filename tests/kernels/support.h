// What the kernel tests share: matrices that own their memory to the last element (so that the
// address sanitizer sees one float too many), oracles' arithmetic in double, central differences,
// and the two promises every kernel makes: the same result for each SIMD target, the same bits for
// any threads.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "base/philox.h"
#include "base/thread_pool.h"
#include "kernels/cpu/targets.h"
#include "tensor/tensor.h"
// After targets.h, which configures it.
#include "hwy/highway.h"

namespace onefold::test {

// Half the distance from 1 to the next float: the relative error of one rounding.
inline constexpr double kUnit = 0x1p-24;

// Bounds the relative error of the kernels' vector sums of n terms against the sum of magnitudes:
// at least 4 lanes in each of 4 accumulators, and then a tree of 16, make chains of n / 16 + 4
// additions; 4 more for the arithmetic of a term.
inline double sum_error(int64_t n) { return (static_cast<double>(n) / 16 + 8) * kUnit; }

using Doubles = std::vector<double>;

// Rows a stride apart; the gaps hold a value that no kernel may change.
class Matrix {
 public:
  static constexpr float kGap = -12345.0f;

  Matrix(int64_t rows, int64_t cols, int64_t stride = 0)
      : rows_(rows), cols_(cols), stride_(stride == 0 ? cols : stride) {
    data_.assign(static_cast<size_t>(rows == 0 ? 0 : (rows - 1) * stride_ + cols), kGap);
    fill(0);
  }

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  float* data() { return data_.data(); }
  float& at(int64_t row, int64_t col) { return data_[static_cast<size_t>(row * stride_ + col)]; }
  float at(int64_t row, int64_t col) const {
    return data_[static_cast<size_t>(row * stride_ + col)];
  }
  Tensor view() { return {data_.data(), DType::f32, rows_, cols_, stride_}; }
  const std::vector<float>& bits() const { return data_; }

  void fill(float value) {
    for (int64_t r = 0; r < rows_; ++r)
      for (int64_t c = 0; c < cols_; ++c) at(r, c) = value;
  }
  Doubles doubles() const {
    Doubles values;
    for (int64_t r = 0; r < rows_; ++r)
      for (int64_t c = 0; c < cols_; ++c) values.push_back(at(r, c));
    return values;
  }
  bool gaps_untouched() const {
    for (size_t i = 0; i < data_.size(); ++i)
      if (static_cast<int64_t>(i) % stride_ >= cols_ && data_[i] != kGap) return false;
    return true;
  }

 private:
  int64_t rows_, cols_, stride_;
  std::vector<float> data_;
};

// Standard normals times `scale`, plus `mean`; `seed` names the stream.
inline Matrix random_matrix(int64_t rows, int64_t cols, uint64_t seed, int64_t stride = 0,
                            float scale = 1, float mean = 0) {
  Matrix matrix(rows, cols, stride);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c)
      matrix.at(r, c) = mean + scale * philox_normal(philox_key(seed, Draw::test, 1),
                                                     static_cast<uint64_t>(r * cols + c));
  return matrix;
}

struct Ints {
  std::vector<int32_t> values;
  Tensor view() {
    return {values.data(), DType::i32, 1, static_cast<int64_t>(values.size()),
            static_cast<int64_t>(values.size())};
  }
};

// count numbers in [0, limit).
inline Ints random_ints(int64_t count, int32_t limit, uint64_t seed) {
  Ints ints;
  for (int64_t i = 0; i < count; ++i)
    ints.values.push_back(static_cast<int32_t>(
        philox(philox_key(seed, Draw::test, 2), {static_cast<uint32_t>(i), 0, 0, 0})[0] %
        static_cast<uint32_t>(limit)));
  return ints;
}

// |actual - expected| <= absolute + relative * |expected|, for each element.
inline void expect_close(const Matrix& actual, const Doubles& expected, double absolute,
                         double relative = 0) {
  ASSERT_EQ(static_cast<size_t>(actual.rows() * actual.cols()), expected.size());
  EXPECT_TRUE(actual.gaps_untouched());
  const Doubles values = actual.doubles();
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_NEAR(values[i], expected[i], absolute + relative * std::abs(expected[i]))
        << "row " << static_cast<int64_t>(i) / actual.cols() << " column "
        << static_cast<int64_t>(i) % actual.cols();
}

// Central differences of a function of doubles: the oracle of every backward. With step h the error
// is about h² f''' / 6 + 1e-16 f / h: below 1e-8 for the functions here, whose values are of order
// 1 to 100.
inline constexpr double kDifferenceError = 1e-8;
inline Doubles gradient_of(const std::function<double(const Doubles&)>& f, Doubles x) {
  constexpr double kStep = 1e-4;
  Doubles gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double center = x[i];
    x[i] = center + kStep;
    const double above = f(x);
    x[i] = center - kStep;
    const double below = f(x);
    x[i] = center;
    gradient[i] = (above - below) / (2 * kStep);
  }
  return gradient;
}

inline double dot(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline Doubles plus(const Doubles& a, const Doubles& b) {
  Doubles sum = a;
  for (size_t i = 0; i < a.size(); ++i) sum[i] += b[i];
  return sum;
}

// Runs `check` once for each SIMD target that is compiled in and that this processor has.
inline void for_each_target(const std::function<void()>& check) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    check();
  }
  hwy::GetChosenTarget().DeInit();
}

// `run` returns what a kernel wrote; the bits must be the same for 1, 2, 4 and 7 threads.
inline void expect_same_bits_for_any_threads(
    const std::function<std::vector<float>(ThreadPool&)>& run) {
  ThreadPool one(1);
  const std::vector<float> expected = run(one);
  for (const int threads : {2, 4, 7}) {
    ThreadPool pool(threads);
    const std::vector<float> actual = run(pool);
    ASSERT_EQ(actual.size(), expected.size());
    EXPECT_EQ(std::memcmp(actual.data(), expected.data(), actual.size() * sizeof(float)), 0)
        << threads << " threads";
  }
}

}  // namespace onefold::test
