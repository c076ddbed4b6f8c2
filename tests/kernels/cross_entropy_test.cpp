#include <algorithm>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/support.h"

namespace onefold::test {
namespace {

Doubles oracle(const Doubles& logits, int64_t cols, const Ints& targets) {
  Doubles losses;
  for (size_t row = 0; row < targets.values.size(); ++row) {
    const double* x = logits.data() + static_cast<int64_t>(row) * cols;
    const double max = *std::max_element(x, x + cols);
    double sum = 0;
    for (int64_t col = 0; col < cols; ++col) sum += std::exp(x[col] - max);
    const int32_t target = targets.values[row];
    losses.push_back(target < 0 ? 0 : std::log(sum) + max - x[target]);
  }
  return losses;
}

TEST(CrossEntropy, LossMatchesTheOracle) {
  for (const int64_t cols : {1, 2, 17, 1031, 50257}) {
    Matrix logits = random_matrix(5, cols, 1, cols + 3, 4);
    Ints targets = random_ints(5, static_cast<int32_t>(cols), 2);
    targets.values[3] = -100;
    const Doubles expected = oracle(logits.doubles(), cols, targets);
    for_each_target([&] {
      ThreadPool pool(2);
      Matrix losses(1, 5), untouched = logits;
      cpu::cross_entropy(pool, logits.view(), targets.view(), 0, losses.view());
      // Each term of the sum errs by 2 ulp of exp and by the rounding of its argument of up to 40;
      // blocks of 2048 are summed in float and the rest in double.
      const double error = 45 * kUnit + sum_error(std::min<int64_t>(cols, 2048));
      expect_close(losses, expected, error, 2 * kUnit);
      EXPECT_EQ(logits.bits(), untouched.bits()) << "without a gradient, logits stay";
    });
  }
}

TEST(CrossEntropy, GradientMatchesFiniteDifferences) {
  constexpr float kScale = 0.125f;
  for (const int64_t cols : {1, 3, 37, 64}) {
    const Matrix logits = random_matrix(4, cols, 1, cols + 2, 3);
    Ints targets = random_ints(4, static_cast<int32_t>(cols), 2);
    targets.values[1] = -1;
    const Doubles expected = gradient_of(
        [&](const Doubles& v) {
          double sum = 0;
          for (const double loss : oracle(v, cols, targets)) sum += loss;
          return kScale * sum;
        },
        logits.doubles());
    for_each_target([&] {
      ThreadPool pool(2);
      Matrix gradient = logits, losses(1, 4);
      cpu::cross_entropy(pool, gradient.view(), targets.view(), kScale, losses.view());
      // Probabilities are at most 1; see the loss for their error.
      expect_close(gradient, expected, kScale * (45 * kUnit + sum_error(cols)) + kDifferenceError);
      expect_close(losses, oracle(logits.doubles(), cols, targets), 45 * kUnit + sum_error(cols),
                   2 * kUnit);
    });
  }
}

TEST(CrossEntropy, LargeLogitsDoNotOverflow) {
  for_each_target([] {
    ThreadPool pool(1);
    Matrix logits(1, 3), losses(1, 1);
    logits.at(0, 0) = 3e38f;
    logits.at(0, 1) = -3e38f;
    logits.at(0, 2) = 1;
    Ints targets{{0}};
    cpu::cross_entropy(pool, logits.view(), targets.view(), 1, losses.view());
    EXPECT_EQ(losses.at(0, 0), 0.0f);
    EXPECT_EQ(logits.bits(), (std::vector<float>{0, 0, 0}));
  });
}

TEST(CrossEntropy, NonFiniteLogitsGiveANonFiniteLoss) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const int64_t at : {0, 5, 16, 18}) {
      for_each_target([&] {
        ThreadPool pool(1);
        Matrix logits = random_matrix(1, 19, 1), losses(1, 1);
        logits.at(0, at) = bad;
        Ints targets{{2}};
        cpu::cross_entropy(pool, logits.view(), targets.view(), 1, losses.view());
        EXPECT_FALSE(std::isfinite(losses.at(0, 0)));
      });
    }
  }
}

TEST(CrossEntropy, BitsDoNotDependOnTheThreads) {
  expect_same_bits_for_any_threads([](ThreadPool& pool) {
    Matrix logits = random_matrix(67, 2503, 1), losses(1, 67);
    Ints targets = random_ints(67, 2503, 2);
    cpu::cross_entropy(pool, logits.view(), targets.view(), 0.5f, losses.view());
    std::vector<float> all = logits.bits();
    all.insert(all.end(), losses.bits().begin(), losses.bits().end());
    return all;
  });
}

TEST(CrossEntropy, RefusesTargetsBeyondTheClasses) {
  ThreadPool pool(2);
  Matrix logits(2, 5), losses(1, 2);
  Ints targets{{0, 5}};
  EXPECT_THROW(cpu::cross_entropy(pool, logits.view(), targets.view(), 0, losses.view()),
               InternalError);
}

}  // namespace
}  // namespace onefold::test
