#include <algorithm>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/support.h"

namespace onefold::test {
namespace {

constexpr float kEps = 1e-5f;

// norm(x) * weight + bias for pieces of weight.size() elements; bias may be empty.
Doubles oracle(Norm norm, const Doubles& x, const Doubles& weight, const Doubles& bias) {
  const size_t n = weight.size();
  Doubles y(x.size());
  for (size_t begin = 0; begin < x.size(); begin += n) {
    double mean = 0;
    if (norm == Norm::layernorm) {
      for (size_t i = 0; i < n; ++i) mean += x[begin + i];
      mean /= static_cast<double>(n);
    }
    double variance = 0;
    for (size_t i = 0; i < n; ++i) variance += (x[begin + i] - mean) * (x[begin + i] - mean);
    variance /= static_cast<double>(n);
    const double rstd = 1 / std::sqrt(variance + static_cast<double>(kEps));
    for (size_t i = 0; i < n; ++i)
      y[begin + i] = (x[begin + i] - mean) * rstd * weight[i] + (bias.empty() ? 0 : bias[i]);
  }
  return y;
}

struct Case {
  Norm norm;
  int64_t rows, cols, groups, stride;
  bool bias;
};

class NormCase : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Shapes, NormCase,
                         testing::Values(Case{Norm::layernorm, 3, 1, 1, 0, true},
                                         Case{Norm::layernorm, 5, 13, 1, 17, true},
                                         Case{Norm::layernorm, 37, 31, 1, 0, false},
                                         Case{Norm::layernorm, 2, 131, 1, 140, true},
                                         Case{Norm::rmsnorm, 7, 67, 1, 0, false},
                                         Case{Norm::rmsnorm, 4, 16, 1, 16, false},
                                         Case{Norm::rmsnorm, 19, 3 * 7, 3, 40, false},
                                         Case{Norm::layernorm, 3, 4 * 16, 4, 0, true}));

TEST_P(NormCase, ForwardMatchesTheOracle) {
  const Case c = GetParam();
  const int64_t n = c.cols / c.groups;
  Matrix x = random_matrix(c.rows, c.cols, 1, c.stride);
  Matrix weight = random_matrix(1, n, 2, 0, 0.5f, 1);
  Matrix bias = random_matrix(1, n, 3);
  const Doubles expected =
      oracle(c.norm, x.doubles(), weight.doubles(), c.bias ? bias.doubles() : Doubles());
  for_each_target([&] {
    ThreadPool pool(2);
    Matrix y(c.rows, c.cols, c.stride);
    const Tensor b = c.bias ? bias.view() : Tensor{};
    cpu::norm_forward(pool, c.norm, x.view(), c.groups, weight.view(), b, kEps, y.view());
    // Mean and variance err by sum_error of values of order 1; |xhat| <= 5, |weight| <= 3.
    expect_close(y, expected, 15 * sum_error(n), 4 * sum_error(n));

    Matrix in_place = x;
    cpu::norm_forward(pool, c.norm, in_place.view(), c.groups, weight.view(), b, kEps,
                      in_place.view());
    EXPECT_EQ(in_place.bits(), y.bits());
  });
}

TEST_P(NormCase, BackwardMatchesFiniteDifferences) {
  const Case c = GetParam();
  const int64_t n = c.cols / c.groups;
  Matrix x = random_matrix(c.rows, c.cols, 1, c.stride);
  Matrix weight = random_matrix(1, n, 2, 0, 0.5f, 1);
  Matrix dy = random_matrix(c.rows, c.cols, 4, c.stride == 0 ? 0 : c.stride + 1);
  const Doubles xs = x.doubles(), ws = weight.doubles(), bs(ws.size(), 0.0), dys = dy.doubles();
  const Doubles dx =
      gradient_of([&](const Doubles& v) { return dot(dys, oracle(c.norm, v, ws, bs)); }, xs);
  const Doubles dw =
      gradient_of([&](const Doubles& v) { return dot(dys, oracle(c.norm, xs, v, bs)); }, ws);
  const Doubles db =
      gradient_of([&](const Doubles& v) { return dot(dys, oracle(c.norm, xs, ws, v)); }, bs);
  // A single element has no variance: rstd is 1/sqrt(eps) and multiplies every rounding by 300. The
  // same curvature is in the differences' error.
  const double steep = n == 1 ? 1 / std::sqrt(kEps) : 3;
  const double dx_error = 15 * steep * sum_error(n) + kDifferenceError * steep * steep;
  // Parameters: sums over rows and groups of terms up to 5 * 4.
  const auto terms = static_cast<double>(c.rows * c.groups);
  const double dw_error =
      20 * terms * (sum_error(n) + sum_error(c.rows * c.groups)) + 10 * kDifferenceError;

  for_each_target([&] {
    for (const bool accumulate : {false, true}) {
      SCOPED_TRACE(accumulate ? "accumulate" : "overwrite");
      ThreadPool pool(2);
      Matrix got_dx = random_matrix(c.rows, c.cols, 5, c.stride);
      Matrix got_dw = random_matrix(1, n, 6);
      Matrix got_db = random_matrix(1, n, 7);
      const Doubles old_dx = got_dx.doubles(), old_dw = got_dw.doubles(), old_db = got_db.doubles();
      Matrix scratch(1, cpu::norm_backward_scratch(c.rows, c.cols, c.groups));
      scratch.fill(NAN);
      cpu::norm_backward(pool, c.norm, x.view(), c.groups, weight.view(), kEps, dy.view(),
                         got_dx.view(), accumulate, got_dw.view(),
                         c.bias ? got_db.view() : Tensor{}, accumulate, scratch.view());
      expect_close(got_dx, accumulate ? plus(dx, old_dx) : dx, dx_error, dx_error);
      expect_close(got_dw, accumulate ? plus(dw, old_dw) : dw, dw_error);
      if (c.bias) expect_close(got_db, accumulate ? plus(db, old_db) : db, dw_error);
    }
  });
}

TEST(Norm, BackwardMayOverwriteDy) {
  ThreadPool pool(2);
  Matrix x = random_matrix(33, 29, 1), weight = random_matrix(1, 29, 2),
         dy = random_matrix(33, 29, 3);
  Matrix dx(33, 29), dw(1, 29), db(1, 29), scratch(1, cpu::norm_backward_scratch(33, 29, 1));
  cpu::norm_backward(pool, Norm::layernorm, x.view(), 1, weight.view(), kEps, dy.view(), dx.view(),
                     false, dw.view(), db.view(), false, scratch.view());
  cpu::norm_backward(pool, Norm::layernorm, x.view(), 1, weight.view(), kEps, dy.view(), dy.view(),
                     false, dw.view(), db.view(), false, scratch.view());
  EXPECT_EQ(dy.bits(), dx.bits());
}

TEST(Norm, LargeMeanDoesNotDrownTheVariance) {
  for_each_target([] {
    ThreadPool pool(1);
    Matrix x = random_matrix(3, 257, 1, 0, 1, 1000), weight(1, 257), y(3, 257);
    weight.fill(1);
    cpu::norm_forward(pool, Norm::layernorm, x.view(), 1, weight.view(), {}, kEps, y.view());
    // The mean of values around 1000 errs by 1000 sum_error, and so does each deviation from it.
    expect_close(y, oracle(Norm::layernorm, x.doubles(), weight.doubles(), {}),
                 1000 * sum_error(257), 1000 * sum_error(257));
  });
}

TEST(Norm, BitsDoNotDependOnTheThreads) {
  expect_same_bits_for_any_threads([](ThreadPool& pool) {
    Matrix x = random_matrix(301, 515, 1), weight = random_matrix(1, 103, 2);
    Matrix dy = random_matrix(301, 515, 3), y(301, 515), dx(301, 515), dw(1, 103), db(1, 103);
    Matrix scratch(1, cpu::norm_backward_scratch(301, 515, 5));
    cpu::norm_forward(pool, Norm::layernorm, x.view(), 5, weight.view(), weight.view(), kEps,
                      y.view());
    cpu::norm_backward(pool, Norm::layernorm, x.view(), 5, weight.view(), kEps, dy.view(),
                       dx.view(), false, dw.view(), db.view(), false, scratch.view());
    std::vector<float> all = y.bits();
    for (const Matrix* m : {&dx, &dw, &db})
      all.insert(all.end(), m->bits().begin(), m->bits().end());
    return all;
  });
}

TEST(Norm, RefusesSizesThatDisagree) {
  ThreadPool pool(1);
  Matrix x(2, 6), weight(1, 4);
  EXPECT_THROW(
      cpu::norm_forward(pool, Norm::rmsnorm, x.view(), 1, weight.view(), {}, kEps, x.view()),
      InternalError);
  EXPECT_THROW(
      cpu::norm_forward(pool, Norm::rmsnorm, x.view(), 4, weight.view(), {}, kEps, x.view()),
      InternalError);
}

}  // namespace
}  // namespace onefold::test
