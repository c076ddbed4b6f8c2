#include <functional>
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

// op(a) · op(b), and what the roundings of each sum are relative to: the same of magnitudes, for
// the library; the norm of a's row times that of b's column, for paired products.
struct Product {
  Doubles sums, magnitudes, norms;
};
Product product(const Matrix& a, const Matrix& b, Orientation transposed, int64_t m, int64_t n,
                int64_t k) {
  const auto size = static_cast<size_t>(m * n);
  Product p{Doubles(size), Doubles(size), Doubles(size)};
  Doubles rows(static_cast<size_t>(m)), cols(static_cast<size_t>(n));
  for (int64_t row = 0; row < m; ++row)
    for (int64_t i = 0; i < k; ++i) {
      const double left = transposed.a ? a.at(i, row) : a.at(row, i);
      rows[static_cast<size_t>(row)] += left * left;
      for (int64_t col = 0; col < n; ++col) {
        const double right = transposed.b ? b.at(col, i) : b.at(i, col);
        if (row == 0) cols[static_cast<size_t>(col)] += right * right;
        p.sums[static_cast<size_t>(row * n + col)] += left * right;
        p.magnitudes[static_cast<size_t>(row * n + col)] += std::abs(left * right);
      }
    }
  for (size_t i = 0; i < size; ++i)
    p.norms[i] = std::sqrt(rows[i / static_cast<size_t>(n)] * cols[i % static_cast<size_t>(n)]);
  return p;
}

void add_to(Product& p, const Matrix& term, bool same_row_everywhere = false) {
  const auto n = static_cast<size_t>(term.cols());
  for (size_t i = 0; i < p.sums.size(); ++i) {
    const double value =
        term.at(same_row_everywhere ? 0 : static_cast<int64_t>(i / n), static_cast<int64_t>(i % n));
    p.sums[i] += value;
    p.magnitudes[i] += std::abs(value);
    p.norms[i] += std::abs(value);
  }
}

void expect_product(const Matrix& actual, const Product& expected, int64_t k, Products products) {
  EXPECT_TRUE(actual.gaps_untouched());
  const bool paired = products == Products::paired;
  // However the k terms are grouped, none goes through more than k roundings in the sum, and 4 on
  // the way: of the product itself, onto dst, onto the bias, onto the residual. Paired: scaled
  // lines have a mean square in [1, 4), so the magnitudes of what is summed are at most 2.5 times
  // the product of the norms; k / 3 of them are pairs and k / 3 ordinary terms. Corrections are
  // half of that, in sums of k / 3.
  const double relative =
      (paired ? 2.5 * static_cast<double>(k) + 32 : static_cast<double>(k + 4)) * kUnit;
  for (size_t i = 0; i < expected.sums.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / actual.cols();
    const auto col = static_cast<int64_t>(i) % actual.cols();
    ASSERT_NEAR(actual.at(row, col), expected.sums[i],
                relative * (paired ? expected.norms[i] : expected.magnitudes[i]))
        << "row " << row << " column " << col;
  }
}

// Computes g in one of the two ways, with scratch that ends where it must.
void compute(ThreadPool& pool, Gemm g, Products products) {
  const int64_t elems = cpu::gemm_scratch(g, products, pool.threads());
  ASSERT_EQ(elems > 0, products == Products::paired);
  Matrix scratch(1, elems);
  if (elems > 0) g.scratch = scratch.view();
  cpu::gemm(pool, g);
}

struct Case {
  int64_t m, n, k, gap;
  Products products = Products::library;
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

// Lines that fill no panel, terms that fill no round; on the widest target strips of 32 lines,
// tasks of 64, 1024 shared ones, and passes of 1024 terms.
INSTANTIATE_TEST_SUITE_P(
    Paired, GemmCase,
    testing::Values(Case{1, 1, 1, 0, Products::paired}, Case{1, 7, 13, 3, Products::paired},
                    Case{7, 1, 5, 1, Products::paired}, Case{8, 32, 6, 0, Products::paired},
                    Case{13, 67, 9, 2, Products::paired}, Case{67, 131, 29, 5, Products::paired},
                    Case{2, 3, 2053, 0, Products::paired}, Case{40, 33, 1031, 1, Products::paired},
                    Case{1031, 1033, 7, 2, Products::paired},
                    Case{131, 71, 257, 1, Products::paired}));

TEST_P(GemmCase, MatchesTheOracleInEveryOrientationWithEveryEpilogue) {
  const auto [m, n, k, gap, products] = GetParam();
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
            compute(pool,
                    {.a = a.view(),
                     .b = b.view(),
                     .dst = dst.view(),
                     .a_transposed = transposed.a,
                     .b_transposed = transposed.b,
                     .accumulate = accumulate,
                     .bias = with_bias ? bias.view() : Tensor{},
                     .residual = with_residual ? residual.view() : Tensor{}},
                    products);
            expect_product(dst, expected, k, products);
          };
          // Of the library's products, only what follows them is ours to dispatch.
          if (with_bias || with_residual || products == Products::paired)
            for_each_target(check);
          else
            check();
        }
  }
}

class GemmProducts : public testing::TestWithParam<Products> {};

INSTANTIATE_TEST_SUITE_P(Gemm, GemmProducts, testing::Values(Products::library, Products::paired),
                         [](const auto& info) {
                           return info.param == Products::paired ? "Paired" : "ByTheLibrary";
                         });

TEST_P(GemmProducts, EpilogueAddsBiasThenResidualToTheBitsOfTheProduct) {
  for_each_target([] {
    ThreadPool pool(2);
    Matrix a = random_matrix(131, 19, 1), b = random_matrix(67, 19, 2), plain(131, 67),
           dst(131, 67);
    Matrix bias = random_matrix(1, 67, 3), residual = random_matrix(131, 67, 4);
    Gemm gemm{.a = a.view(), .b = b.view(), .dst = plain.view(), .b_transposed = true};
    compute(pool, gemm, GetParam());
    gemm.dst = dst.view();
    gemm.bias = bias.view();
    gemm.residual = residual.view();
    compute(pool, gemm, GetParam());
    for (int64_t row = 0; row < 131; ++row)
      for (int64_t col = 0; col < 67; ++col) {
        const float with_bias = plain.at(row, col) + bias.at(0, col);
        ASSERT_EQ(dst.at(row, col), with_bias + residual.at(row, col));
      }
  });
}

TEST_P(GemmProducts, BitsDoNotDependOnTheThreads) {
  for (const Orientation transposed : kOrientations) {
    // Many small tiles, then several of the largest.
    for (const auto& [m, n, k] : {std::tuple{389, 211, 97}, {1031, 1153, 31}}) {
      Matrix a = transposed.a ? random_matrix(k, m, 1) : random_matrix(m, k, 1);
      Matrix b = transposed.b ? random_matrix(n, k, 2) : random_matrix(k, n, 2);
      Matrix old = random_matrix(m, n, 3), bias = random_matrix(1, n, 4), residual = old;
      expect_same_bits_for_any_threads([&](ThreadPool& pool) {
        Matrix dst = old;
        compute(pool,
                {.a = a.view(),
                 .b = b.view(),
                 .dst = dst.view(),
                 .a_transposed = transposed.a,
                 .b_transposed = transposed.b,
                 .accumulate = true,
                 .bias = bias.view(),
                 .residual = residual.view()},
                GetParam());
        return dst.bits();
      });
    }
  }
}

// A small paired product of a [m, k] and b [n, k]', as most of training's are.
Matrix paired(Matrix& a, Matrix& b) {
  ThreadPool pool(2);
  Matrix dst(a.rows(), b.rows());
  compute(pool, {.a = a.view(), .b = b.view(), .dst = dst.view(), .b_transposed = true},
          Products::paired);
  return dst;
}

TEST(PairedGemm, WhatIsMultipliedByZerosIsExactlyZero) {
  for_each_target([] {
    Matrix a = random_matrix(37, 211, 1), b = random_matrix(41, 211, 2);
    for (int64_t i = 0; i < 211; ++i) a.at(5, i) = b.at(7, i) = 0;
    const Matrix dst = paired(a, b);
    for (int64_t col = 0; col < 41; ++col) EXPECT_EQ(dst.at(5, col), 0);
    for (int64_t row = 0; row < 37; ++row) EXPECT_EQ(dst.at(row, 7), 0);
    EXPECT_NE(dst.at(4, 6), 0);
  });
}

// Lines are brought to a common scale first: a line's own scale, however extreme, costs nothing.
TEST(PairedGemm, ScalingALineByAPowerOfTwoScalesItsResultsExactly) {
  for_each_target([] {
    Matrix a = random_matrix(37, 211, 1), b = random_matrix(41, 211, 2);
    const Matrix before = paired(a, b);
    for (int64_t i = 0; i < 211; ++i) {
      a.at(5, i) *= 0x1p40f;
      b.at(7, i) *= 0x1p-44f;
    }
    const Matrix after = paired(a, b);
    for (int64_t row = 0; row < 37; ++row)
      for (int64_t col = 0; col < 41; ++col)
        ASSERT_EQ(after.at(row, col),
                  before.at(row, col) * (row == 5 ? 0x1p40f : 1) * (col == 7 ? 0x1p-44f : 1));
  });
}

// Also where the squares of a line's terms leave fp32's range.
TEST(PairedGemm, LinesOfTheSmallestAndLargestNumbersKeepTheirAccuracy) {
  for_each_target([] {
    for (const float scale : {0x1p-90f, 0x1p-64f, 0x1p64f, 0x1p90f}) {
      Matrix a = random_matrix(9, 211, 1), b = random_matrix(11, 211, 2);
      for (int64_t i = 0; i < 211; ++i) {
        a.at(3, i) *= scale;
        b.at(4, i) /= scale;
      }
      expect_product(paired(a, b), product(a, b, {false, true}, 9, 11, 211), 211, Products::paired);
    }
  });
}

TEST(PairedGemm, NonFiniteTermsReachTheirLineAndNoOther) {
  for_each_target([] {
    for (const float bad : {NAN, INFINITY}) {
      Matrix a = random_matrix(19, 23, 1), b = random_matrix(17, 23, 2);
      a.at(5, 11) = bad;
      b.at(7, 3) = bad;
      const Matrix dst = paired(a, b);
      for (int64_t row = 0; row < 19; ++row)
        for (int64_t col = 0; col < 17; ++col)
          ASSERT_EQ(std::isfinite(dst.at(row, col)), row != 5 && col != 7)
              << row << ", " << col << " with " << bad;
    }
  });
}

// Root mean square errors, relative to the results', for what activations and gradients look like.
// The library is at 2 roundings (where most terms are zero) to 9, pairing at 3 to 7.
TEST(PairedGemm, ErrorsOfWhatTrainingMultipliesAreBelowTenRoundings) {
  constexpr int64_t m = 64, n = 96, k = 768;
  const auto error = [&](const Matrix& actual, const Product& exact) {
    double errors = 0, results = 0;
    for (size_t i = 0; i < exact.sums.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      errors += std::pow(actual.at(at / n, at % n) - exact.sums[i], 2);
      results += std::pow(exact.sums[i], 2);
    }
    return std::sqrt(errors / results);
  };
  const std::pair<const char*, std::function<float(int64_t, int64_t, float)>> kinds[] = {
      {"as drawn", [](int64_t, int64_t, float x) { return x; }},
      {"all positive", [](int64_t, int64_t, float x) { return std::abs(x); }},
      {"mostly zero", [](int64_t, int64_t i, float x) { return i % 16 ? 0.0f : x; }},
      {"large in some columns", [](int64_t, int64_t i, float x) { return i % 97 ? x : 50 * x; }},
      {"neighbours dominate", [](int64_t, int64_t i, float x) { return i < 2 ? 1000 + x : x; }},
      {"large in pairs of columns",
       [](int64_t, int64_t i, float x) { return i % 97 < 2 ? 50 * x : x; }},
      {"one row apart", [](int64_t row, int64_t, float x) { return row % 2 ? x : 1e-6f * x; }},
      {"one term dominates",
       [](int64_t, int64_t i, float x) { return i == 5 ? 1.0f : 1e-4f * x; }}};
  for (const auto& [name, change] : kinds) {
    SCOPED_TRACE(name);
    Matrix a = random_matrix(m, k, 1), b = random_matrix(n, k, 2), by_library(m, n);
    for (int64_t row = 0; row < m; ++row)
      for (int64_t i = 0; i < k; ++i) a.at(row, i) = change(row, i, a.at(row, i));
    const Product exact = product(a, b, {false, true}, m, n, k);
    ThreadPool pool(2);
    cpu::gemm(pool, {.a = a.view(), .b = b.view(), .dst = by_library.view(), .b_transposed = true});
    const double library = error(by_library, exact), ours = error(paired(a, b), exact);
    EXPECT_LT(ours, 10 * kUnit);
    EXPECT_LT(library, 10 * kUnit);
    RecordProperty(name, fmt::format("{:.1e}, library {:.1e}", ours, library));
  }
}

TEST(PairedGemm, IsChosenForLargeProductsWhereTheProcessorGains) {
  const auto scratch = [](int64_t m, int64_t n, int64_t k, Products products) {
    const Tensor a = matrix(nullptr, m, k, DType::f32), b = matrix(nullptr, k, n, DType::f32);
    return cpu::gemm_scratch({.a = a, .b = b, .dst = matrix(nullptr, m, n, DType::f32)}, products,
                             2);
  };
  EXPECT_EQ(scratch(1024, 768, 768, Products::library), 0);
  EXPECT_GT(scratch(1, 1, 1, Products::paired), 0);
  EXPECT_EQ(scratch(1024, 768, 768, Products::automatic) > 0, cpu_gains_by_pairing());
  EXPECT_EQ(scratch(1024, 127, 768, Products::automatic), 0);
  EXPECT_EQ(scratch(1024, 768, 127, Products::automatic), 0);
  EXPECT_EQ(scratch(255, 255, 768, Products::automatic), 0);
  // It does not grow with the product beyond what is packed at once.
  EXPECT_EQ(scratch(1024, 1024, 1024, Products::paired),
            scratch(8192, 50257, 4096, Products::paired));
}

TEST(PairedGemm, RefusesTooLittleScratch) {
  ThreadPool pool(1);
  Matrix a(3, 5), b(5, 7), dst(3, 7), scratch(1, 8);
  EXPECT_THROW(
      cpu::gemm(pool, {.a = a.view(), .b = b.view(), .dst = dst.view(), .scratch = scratch.view()}),
      InternalError);
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
