#include "kernels/cpu/cpu_kernels.h"
#include "kernels/support.h"

namespace onefold::test {
namespace {

TEST(ColumnSum, MatchesTheOracle) {
  struct Case {
    int64_t rows, cols, stride;
  };
  for (const Case& c : {Case{1, 1, 0}, Case{3, 17, 20}, Case{37, 131, 0}, Case{1031, 7, 9}}) {
    Matrix x = random_matrix(c.rows, c.cols, 1, c.stride);
    Doubles expected(static_cast<size_t>(c.cols));
    for (int64_t row = 0; row < c.rows; ++row)
      for (int64_t col = 0; col < c.cols; ++col)
        expected[static_cast<size_t>(col)] += x.at(row, col);
    for_each_target([&] {
      for (const bool accumulate : {false, true}) {
        ThreadPool pool(2);
        Matrix sums = random_matrix(1, c.cols, 2);
        const Doubles old = sums.doubles();
        Matrix scratch(1, cpu::column_sum_scratch(c.rows, c.cols));
        scratch.fill(NAN);
        cpu::column_sum(pool, x.view(), sums.view(), accumulate, scratch.view());
        // Chunks of max(16, rows / 64) rows four at a time, then at most 64 partials: chains of
        // max(4, rows / 256) + 2 + 64 additions over values whose magnitudes sum to about 0.8 rows
        // + 1.
        const auto rows = static_cast<double>(c.rows);
        const double chain = std::max(4.0, rows / 256) + 3 + std::min(64.0, rows / 16 + 1);
        expect_close(sums, accumulate ? plus(expected, old) : expected, chain * (rows + 4) * kUnit);
      }
    });
  }
}

TEST(ColumnSum, BitsDoNotDependOnTheThreads) {
  expect_same_bits_for_any_threads([](ThreadPool& pool) {
    Matrix x = random_matrix(2057, 1033, 1), sums(1, 1033);
    Matrix scratch(1, cpu::column_sum_scratch(2057, 1033));
    cpu::column_sum(pool, x.view(), sums.view(), false, scratch.view());
    return sums.bits();
  });
}

TEST(Copy, CopiesStridedRowsOfAnyType) {
  ThreadPool pool(2);
  Matrix src = random_matrix(5, 40009, 1, 40011), dst(5, 40009, 40010), flat(5, 40009);
  cpu::copy(pool, src.view(), dst.view());
  EXPECT_EQ(dst.doubles(), src.doubles());
  EXPECT_TRUE(dst.gaps_untouched());
  cpu::copy(pool, dst.view(), flat.view());
  EXPECT_EQ(flat.doubles(), src.doubles());
  Ints from = random_ints(1000, 1 << 30, 2), to{std::vector<int32_t>(1000)};
  cpu::copy(pool, from.view(), to.view());
  EXPECT_EQ(to.values, from.values);
  EXPECT_THROW(cpu::copy(pool, from.view(), flat.view()), InternalError);
}

TEST(Fill, FillsRowsAndNothingElse) {
  for_each_target([] {
    for (const int64_t stride : {0, 70003}) {
      ThreadPool pool(2);
      Matrix dst(3, 70001, stride);
      cpu::fill(pool, dst.view(), 2.5f);
      expect_close(dst, Doubles(3 * 70001, 2.5), 0);
    }
  });
}

TEST(Add, IsTheRoundedSum) {
  for (const int64_t stride : {0, 40}) {
    Matrix a = random_matrix(7, 37, 1, stride), b = random_matrix(7, 37, 2, stride);
    for_each_target([&] {
      ThreadPool pool(2);
      Matrix sum(7, 37, stride), in_place = a;
      cpu::add(pool, a.view(), b.view(), sum.view());
      for (int64_t row = 0; row < 7; ++row)
        for (int64_t col = 0; col < 37; ++col)
          ASSERT_EQ(sum.at(row, col), a.at(row, col) + b.at(row, col));
      EXPECT_TRUE(sum.gaps_untouched());
      cpu::add(pool, in_place.view(), b.view(), in_place.view());
      EXPECT_EQ(in_place.bits(), sum.bits());
    });
  }
}

double sum_squares(ThreadPool& pool, Matrix& x) {
  Matrix scratch(1, cpu::sum_squares_scratch(x.rows() * x.cols()));
  return cpu::sum_squares(pool, x.view(), scratch.view());
}

TEST(SumSquares, MatchesTheOracleInDouble) {
  for (const int64_t n : {1, 7, 33, 1031, 100003}) {
    Matrix x = random_matrix(1, n, 1);
    double expected = 0;
    for (const double v : x.doubles()) expected += v * v;
    for_each_target([&] {
      ThreadPool pool(2);
      // Both sums are in double; each rounds at most n times.
      EXPECT_NEAR(sum_squares(pool, x), expected, 2 * static_cast<double>(n) * 0x1p-53 * expected);
    });
  }
}

TEST(SumSquares, LargeValuesDoNotOverflow) {
  ThreadPool pool(1);
  Matrix x(1, 3);
  x.fill(1e38f);
  const double square = static_cast<double>(1e38f) * static_cast<double>(1e38f);
  EXPECT_NEAR(sum_squares(pool, x) / (3 * square), 1, 4 * 0x1p-53);
}

TEST(SumSquares, NonFiniteValuesComeThrough) {
  for_each_target([] {
    ThreadPool pool(2);
    Matrix x = random_matrix(1, 50021, 1);
    x.at(0, 50020) = std::numeric_limits<float>::infinity();
    EXPECT_TRUE(std::isinf(sum_squares(pool, x)));
    x.at(0, 3) = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(sum_squares(pool, x)));
  });
}

TEST(SumSquares, BitsDoNotDependOnTheThreads) {
  expect_same_bits_for_any_threads([](ThreadPool& pool) {
    Matrix x = random_matrix(1, 300007, 1);
    const double sum = sum_squares(pool, x);
    std::vector<float> bits(2);
    std::memcpy(bits.data(), &sum, sizeof(sum));
    return bits;
  });
}

TEST(Elementwise, EmptyTensorsAreFine) {
  ThreadPool pool(2);
  Matrix none(0, 5), dst(1, 5), scratch(1, 1);
  dst.fill(3);
  cpu::copy(pool, none.view(), none.view());
  cpu::fill(pool, none.view(), 1);
  cpu::add(pool, none.view(), none.view(), none.view());
  EXPECT_EQ(cpu::sum_squares(pool, none.view(), scratch.view()), 0);
  cpu::column_sum(pool, none.view(), dst.view(), true, {});
  EXPECT_EQ(dst.at(0, 0), 3);
  cpu::column_sum(pool, none.view(), dst.view(), false, {});
  EXPECT_EQ(dst.at(0, 0), 0);
}

}  // namespace
}  // namespace onefold::test
