#include <string>
#include <tuple>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/support.h"

namespace onefold::test {
namespace {

// Which operands are stored transposed: NN, NT and TN are training's, TT completes them.
struct Orientation {
  bool a, b;
};
constexpr Orientation kOrientations[] = {
    {false, false}, {false, true}, {true, false}, {true, true}};

// op(a) · op(b), and what the roundings of each sum are relative to: the same of magnitudes.
struct Product {
  Doubles sums, magnitudes;
};
Product product(const Matrix& a, const Matrix& b, Orientation transposed, int64_t m, int64_t n,
                int64_t k) {
  const auto size = static_cast<size_t>(m * n);
  Product p{Doubles(size), Doubles(size)};
  for (int64_t row = 0; row < m; ++row)
    for (int64_t i = 0; i < k; ++i) {
      const double left = transposed.a ? a.at(i, row) : a.at(row, i);
      for (int64_t col = 0; col < n; ++col) {
        const double right = transposed.b ? b.at(col, i) : b.at(i, col);
        p.sums[static_cast<size_t>(row * n + col)] += left * right;
        p.magnitudes[static_cast<size_t>(row * n + col)] += std::abs(left * right);
      }
    }
  return p;
}

void add_to(Product& p, const Matrix& term, bool same_row_everywhere = false) {
  const auto n = static_cast<size_t>(term.cols());
  for (size_t i = 0; i < p.sums.size(); ++i) {
    const double value =
        term.at(same_row_everywhere ? 0 : static_cast<int64_t>(i / n), static_cast<int64_t>(i % n));
    p.sums[i] += value;
    p.magnitudes[i] += std::abs(value);
  }
}

void expect_product(const Matrix& actual, const Product& expected, int64_t k) {
  EXPECT_TRUE(actual.gaps_untouched());
  // However the k terms are grouped, none goes through more than k roundings in the sum, and 4 on
  // the way: of the product itself, onto dst, onto the bias, onto the residual.
  const double relative = static_cast<double>(k + 4) * kUnit;
  for (size_t i = 0; i < expected.sums.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / actual.cols();
    const auto col = static_cast<int64_t>(i) % actual.cols();
    ASSERT_NEAR(actual.at(row, col), expected.sums[i], relative * expected.magnitudes[i])
        << "row " << row << " column " << col;
  }
}

struct Case {
  int64_t m, n, k, gap;
};

class GemmCase : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(SmallerThanATile, GemmCase,
                         testing::Values(Case{1, 1, 1, 0}, Case{1, 7, 13, 3}, Case{1, 211, 67, 0},
                                         Case{7, 1, 5, 1}, Case{13, 17, 1, 2}, Case{2, 3, 1031, 0},
                                         Case{31, 37, 41, 7}, Case{67, 131, 29, 5},
                                         Case{64, 48, 16, 0}));
// From eight tiles on they are 512x384: one more row or column than whole tiles; more rows than
// columns, and the reverse, hand out tiles in another order.
INSTANTIATE_TEST_SUITE_P(ManyTiles, GemmCase,
                         testing::Values(Case{3585, 5, 7, 1}, Case{3, 2689, 11, 0},
                                         Case{1031, 389, 3, 2}, Case{513, 1153, 2, 1}));

TEST_P(GemmCase, MatchesTheOracleInEveryOrientationWithEveryEpilogue) {
  const auto [m, n, k, gap] = GetParam();
  Matrix old = random_matrix(m, n, 3, n + gap);
  Matrix bias = random_matrix(1, n, 4);
  Matrix residual = random_matrix(m, n, 5, n + 2 * gap);
  Matrix garbage = old;
  garbage.fill(NAN);  // without accumulate, what dst held must not reach the result
  for (const Orientation transposed : kOrientations) {
    SCOPED_TRACE(std::string(transposed.a ? "T" : "N") + (transposed.b ? "T" : "N"));
    const int64_t a_cols = transposed.a ? m : k, b_cols = transposed.b ? k : n;
    Matrix a = random_matrix(transposed.a ? k : m, a_cols, 1, a_cols + gap);
    Matrix b = random_matrix(transposed.b ? n : k, b_cols, 2, b_cols + 3 * gap);
    const Product plain = product(a, b, transposed, m, n, k);
    for (const bool accumulate : {false, true})
      for (const bool with_bias : {false, true})
        for (const bool with_residual : {false, true}) {
          SCOPED_TRACE(testing::Message() << "accumulate " << accumulate << ", bias " << with_bias
                                          << ", residual " << with_residual);
          Product expected = plain;
          if (accumulate) add_to(expected, old);
          if (with_bias) add_to(expected, bias, true);
          if (with_residual) add_to(expected, residual);
          const auto check = [&] {
            ThreadPool pool(2);
            Matrix dst = accumulate ? old : garbage;
            cpu::gemm(pool, {.a = a.view(),
                             .b = b.view(),
                             .dst = dst.view(),
                             .a_transposed = transposed.a,
                             .b_transposed = transposed.b,
                             .accumulate = accumulate,
                             .bias = with_bias ? bias.view() : Tensor{},
                             .residual = with_residual ? residual.view() : Tensor{}});
            expect_product(dst, expected, k);
          };
          // Only what follows the product is ours to dispatch.
          if (with_bias || with_residual)
            for_each_target(check);
          else
            check();
        }
  }
}

TEST(Gemm, EpilogueAddsBiasThenResidualToTheBitsOfTheProduct) {
  for_each_target([] {
    ThreadPool pool(2);
    Matrix a = random_matrix(131, 19, 1), b = random_matrix(67, 19, 2), plain(131, 67),
           dst(131, 67);
    Matrix bias = random_matrix(1, 67, 3), residual = random_matrix(131, 67, 4);
    Gemm gemm{.a = a.view(), .b = b.view(), .dst = plain.view(), .b_transposed = true};
    cpu::gemm(pool, gemm);
    gemm.dst = dst.view();
    gemm.bias = bias.view();
    gemm.residual = residual.view();
    cpu::gemm(pool, gemm);
    for (int64_t row = 0; row < 131; ++row)
      for (int64_t col = 0; col < 67; ++col) {
        const float with_bias = plain.at(row, col) + bias.at(0, col);
        ASSERT_EQ(dst.at(row, col), with_bias + residual.at(row, col));
      }
  });
}

TEST(Gemm, BitsDoNotDependOnTheThreads) {
  for (const Orientation transposed : kOrientations) {
    // Many small tiles, then several of the largest.
    for (const auto& [m, n, k] : {std::tuple{389, 211, 97}, {1031, 1153, 31}}) {
      Matrix a = transposed.a ? random_matrix(k, m, 1) : random_matrix(m, k, 1);
      Matrix b = transposed.b ? random_matrix(n, k, 2) : random_matrix(k, n, 2);
      Matrix old = random_matrix(m, n, 3), bias = random_matrix(1, n, 4), residual = old;
      expect_same_bits_for_any_threads([&](ThreadPool& pool) {
        Matrix dst = old;
        cpu::gemm(pool, {.a = a.view(),
                         .b = b.view(),
                         .dst = dst.view(),
                         .a_transposed = transposed.a,
                         .b_transposed = transposed.b,
                         .accumulate = true,
                         .bias = bias.view(),
                         .residual = residual.view()});
        return dst.bits();
      });
    }
  }
}

TEST(Gemm, RefusesSizesThatDisagree) {
  ThreadPool pool(1);
  Matrix a(3, 5), b(5, 7), dst(3, 7), bias(1, 7), residual(3, 7);
  const Gemm good{.a = a.view(),
                  .b = b.view(),
                  .dst = dst.view(),
                  .bias = bias.view(),
                  .residual = residual.view()};
  EXPECT_NO_THROW(cpu::gemm(pool, good));
  const auto refuses = [&](auto change) {
    Gemm bad = good;
    change(bad);
    EXPECT_THROW(cpu::gemm(pool, bad), InternalError);
  };
  refuses([](Gemm& g) { g.a = g.a.row_range(0, 2); });
  refuses([](Gemm& g) { g.a = g.a.col_range(0, 4); });
  refuses([](Gemm& g) { g.b = g.b.row_range(0, 4); });
  refuses([](Gemm& g) { g.b = g.b.col_range(0, 6); });
  refuses([](Gemm& g) { g.dst = g.dst.row_range(0, 2); });
  refuses([](Gemm& g) { g.dst = g.dst.col_range(0, 6); });
  refuses([](Gemm& g) { g.a_transposed = true; });
  refuses([](Gemm& g) { g.b_transposed = true; });
  refuses([](Gemm& g) { g.bias = g.bias.col_range(0, 6); });
  refuses([](Gemm& g) { g.residual = g.residual.row_range(0, 2); });
  refuses([](Gemm& g) { g.residual = g.residual.col_range(0, 6); });
  refuses([](Gemm& g) { g.b.dtype = DType::i32; });
}

}  // namespace
}  // namespace onefold::test
