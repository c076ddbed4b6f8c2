#include "kernels/cpu/cpu_kernels.h"
#include "kernels/support.h"

namespace onefold::test {
namespace {

double value(Activation act, double x) {
  switch (act) {
    case Activation::relu:
      return x > 0 ? x : 0;
    case Activation::gelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::silu:
      return x / (1 + std::exp(-x));
  }
  return 0;
}

// x is [rows, n] or, gated, [rows, 2n] with the gate first.
Doubles oracle(Activation act, bool gated, int64_t n, const Doubles& x) {
  if (!gated) {
    Doubles y;
    for (const double v : x) y.push_back(value(act, v));
    return y;
  }
  Doubles y;
  for (size_t row = 0; row < x.size(); row += 2 * static_cast<size_t>(n))
    for (size_t i = row; i < row + static_cast<size_t>(n); ++i)
      y.push_back(value(act, x[i]) * x[i + static_cast<size_t>(n)]);
  return y;
}

class ActivationCase : public testing::TestWithParam<std::tuple<Activation, bool>> {};

INSTANTIATE_TEST_SUITE_P(All, ActivationCase,
                         testing::Combine(testing::Values(Activation::relu, Activation::gelu,
                                                          Activation::gelu_tanh, Activation::silu),
                                          testing::Bool()));

TEST_P(ActivationCase, ForwardMatchesTheOracle) {
  const auto [act, gated] = GetParam();
  for (const int64_t n : {1, 15, 17, 131}) {
    Matrix x = random_matrix(5, gated ? 2 * n : n, 1, 2 * n + 3, 3);
    const Doubles expected = oracle(act, gated, n, x.doubles());
    for_each_target([&, act = act, gated = gated] {
      ThreadPool pool(2);
      Matrix y(5, n, n + 2);
      cpu::activation_forward(pool, act, gated, x.view(), y.view());
      // 6 ulp of the function; arguments of tanh and of exp(x²) err by up to 12 units of |x|² / 2
      // <= 72, which matters only where the value has decayed: below 0.1 in all.
      expect_close(y, expected, 16 * kUnit, 16 * kUnit);
    });
  }
}

TEST_P(ActivationCase, BackwardMatchesFiniteDifferences) {
  const auto [act, gated] = GetParam();
  for (const int64_t n : {1, 7, 33}) {
    const int64_t cols = gated ? 2 * n : n;
    Matrix x = random_matrix(3, cols, 1, cols + 5, 2);
    Matrix dy = random_matrix(3, n, 2, n + 1);
    const Doubles dys = dy.doubles();
    const Doubles expected =
        gradient_of([&, act = act, gated = gated](
                        const Doubles& v) { return dot(dys, oracle(act, gated, n, v)); },
                    x.doubles());
    for_each_target([&, act = act, gated = gated] {
      ThreadPool pool(2);
      Matrix dx(3, cols, cols + 3), y(3, n, n + 2), forward(3, n, n + 2);
      cpu::activation_backward(pool, act, gated, x.view(), dy.view(), dx.view(), y.view());
      // Slopes are below 1.2 and values up to |x| <= 8, times dy and up of at most 4 and 8; their
      // terms cancel to 16 ulp.
      expect_close(dx, expected, 16 * 32 * kUnit + 10 * kDifferenceError, 16 * kUnit);
      cpu::activation_forward(pool, act, gated, x.view(), forward.view());
      EXPECT_EQ(y.bits(), forward.bits()) << "backward rewrites y with forward's bits";

      Matrix without_y(3, cols, cols + 3);
      cpu::activation_backward(pool, act, gated, x.view(), dy.view(), without_y.view(), {});
      EXPECT_EQ(without_y.bits(), dx.bits());
    });
  }
}

TEST_P(ActivationCase, NanComesThrough) {
  const auto [act, gated] = GetParam();
  for_each_target([act = act, gated = gated] {
    ThreadPool pool(1);
    Matrix x(1, 6), y(1, gated ? 3 : 6);
    x.fill(1);
    x.at(0, 1) = NAN;
    cpu::activation_forward(pool, act, gated, x.view(), y.view());
    EXPECT_FALSE(std::isnan(y.at(0, 0)));
    EXPECT_TRUE(std::isnan(y.at(0, 1)));
    EXPECT_FALSE(std::isnan(y.at(0, 2)));
  });
}

TEST_P(ActivationCase, LargeArgumentsHaveSlopeZeroOrOne) {
  const auto [act, gated] = GetParam();
  if (gated) return;
  for_each_target([act = act] {
    ThreadPool pool(1);
    Matrix x(1, 4), dy(1, 4), dx(1, 4);
    dy.fill(1);
    const std::vector<float> large = {-1e30f, -200.0f, 200.0f, 1e30f};
    for (int64_t i = 0; i < 4; ++i) x.at(0, i) = large[static_cast<size_t>(i)];
    cpu::activation_backward(pool, act, false, x.view(), dy.view(), dx.view(), {});
    EXPECT_EQ(dx.bits(), (std::vector<float>{0, 0, 1, 1}));
  });
}

TEST(Activation, LongRowsAreCutWithoutChangingBits) {
  expect_same_bits_for_any_threads([](ThreadPool& pool) {
    Matrix x = random_matrix(2, 2 * 40009, 1), dy = random_matrix(2, 40009, 2);
    Matrix y(2, 40009), dx(2, 2 * 40009);
    cpu::activation_forward(pool, Activation::gelu, true, x.view(), y.view());
    cpu::activation_backward(pool, Activation::gelu, true, x.view(), dy.view(), dx.view(), {});
    std::vector<float> all = y.bits();
    all.insert(all.end(), dx.bits().begin(), dx.bits().end());
    return all;
  });
}

}  // namespace
}  // namespace onefold::test
