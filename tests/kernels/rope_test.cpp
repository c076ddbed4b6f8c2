#include "kernels/cpu/cpu_kernels.h"
#include "kernels/support.h"

namespace onefold::test {
namespace {

// [positions, head_dim]: cosines then sines, as the kernel reads them.
Matrix angles(int64_t positions, int64_t head_dim, int64_t stride = 0) {
  Matrix table(positions, head_dim, stride);
  for (int64_t p = 0; p < positions; ++p)
    for (int64_t i = 0; i < head_dim / 2; ++i) {
      const double angle =
          static_cast<double>(p) *
          std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
      table.at(p, i) = static_cast<float>(std::cos(angle));
      table.at(p, i + head_dim / 2) = static_cast<float>(std::sin(angle));
    }
  return table;
}

Doubles oracle(const Doubles& x, int64_t cols, int64_t heads, const Matrix& table, int64_t first,
               int64_t length) {
  const int64_t head_dim = cols / heads, half = head_dim / 2;
  Doubles y(x.size());
  for (size_t e = 0; e < x.size(); ++e) {
    const int64_t row = static_cast<int64_t>(e) / cols, i = static_cast<int64_t>(e) % head_dim;
    const int64_t position = first + row % length;
    const double c = table.at(position, i % half), s = table.at(position, i % half + half);
    const auto h = static_cast<size_t>(half);
    y[e] = i < half ? x[e] * c - x[e + h] * s : x[e] * c + x[e - h] * s;
  }
  return y;
}

struct Case {
  int64_t rows, heads, head_dim, first, length, stride;
};
const std::vector<Case> kCases = {
    {1, 1, 2, 0, 1, 0}, {6, 3, 10, 2, 3, 37}, {14, 2, 64, 5, 7, 0}, {5, 1, 34, 0, 5, 40}};

TEST(Rope, RotatesAsTheOracle) {
  for (const Case& c : kCases) {
    const int64_t cols = c.heads * c.head_dim;
    Matrix table = angles(c.first + c.length, c.head_dim, c.head_dim + 1);
    const Matrix x = random_matrix(c.rows, cols, 1, c.stride);
    const Doubles expected = oracle(x.doubles(), cols, c.heads, table, c.first, c.length);
    for_each_target([&] {
      ThreadPool pool(2);
      Matrix y = x;
      cpu::rope(pool, y.view(), c.heads, table.view(), c.first, c.length, false);
      expect_close(y, expected, 3 * 5 * kUnit);  // two products of |x| <= 5 and their sum
    });
  }
}

TEST(Rope, InverseMatchesFiniteDifferences) {
  for (const Case& c : kCases) {
    const int64_t cols = c.heads * c.head_dim;
    Matrix table = angles(c.first + c.length, c.head_dim);
    const Matrix x = random_matrix(c.rows, cols, 1), dy = random_matrix(c.rows, cols, 2, c.stride);
    const Doubles dys = dy.doubles();
    const Doubles expected = gradient_of(
        [&](const Doubles& v) {
          return dot(dys, oracle(v, cols, c.heads, table, c.first, c.length));
        },
        x.doubles());
    for_each_target([&] {
      ThreadPool pool(2);
      Matrix dx = dy;
      cpu::rope(pool, dx.view(), c.heads, table.view(), c.first, c.length, true);
      expect_close(dx, expected, 3 * 5 * kUnit + kDifferenceError);
    });
  }
}

TEST(Rope, BitsDoNotDependOnTheThreads) {
  expect_same_bits_for_any_threads([](ThreadPool& pool) {
    Matrix table = angles(67, 48), x = random_matrix(4 * 67, 5 * 48, 1);
    cpu::rope(pool, x.view(), 5, table.view(), 0, 67, false);
    return x.bits();
  });
}

TEST(Rope, RefusesPositionsBeyondTheTable) {
  ThreadPool pool(1);
  Matrix table = angles(4, 8), x(5, 8);
  EXPECT_THROW(cpu::rope(pool, x.view(), 1, table.view(), 0, 5, false), InternalError);
}

}  // namespace
}  // namespace onefold::test
