#include "kernels/cpu/cpu_kernels.h"
#include "kernels/support.h"

namespace onefold::test {
namespace {

struct Case {
  int64_t batch, length, vocabulary, cols, first, stride;
};
const std::vector<Case> kCases = {
    {1, 1, 1, 1, 0, 0}, {2, 5, 7, 13, 3, 17}, {3, 11, 101, 33, 0, 0}, {4, 3, 5, 64, 2, 70}};

// dst[row] = table[token] + positions[first + row % length]; positions may be empty.
Doubles oracle(const Ints& tokens, const Doubles& table, const Doubles& positions, int64_t first,
               int64_t length, int64_t cols) {
  Doubles y;
  for (size_t row = 0; row < tokens.values.size(); ++row)
    for (int64_t col = 0; col < cols; ++col) {
      const int64_t position = first + static_cast<int64_t>(row) % length;
      y.push_back(table[static_cast<size_t>(tokens.values[row] * cols + col)] +
                  (positions.empty() ? 0 : positions[static_cast<size_t>(position * cols + col)]));
    }
  return y;
}

TEST(Embedding, ForwardMatchesTheOracle) {
  for (const Case& c : kCases) {
    Ints tokens = random_ints(c.batch * c.length, static_cast<int32_t>(c.vocabulary), 1);
    Matrix table = random_matrix(c.vocabulary, c.cols, 2, c.stride);
    Matrix positions = random_matrix(c.first + c.length + 1, c.cols, 3, c.stride);
    for_each_target([&] {
      ThreadPool pool(2);
      Matrix y(c.batch * c.length, c.cols, c.stride);
      cpu::embedding_forward(pool, tokens.view(), table.view(), {}, c.first, c.length, y.view());
      expect_close(y, oracle(tokens, table.doubles(), {}, c.first, c.length, c.cols), 0);
      cpu::embedding_forward(pool, tokens.view(), table.view(), positions.view(), c.first, c.length,
                             y.view());
      expect_close(y,
                   oracle(tokens, table.doubles(), positions.doubles(), c.first, c.length, c.cols),
                   0, kUnit);
    });
  }
}

TEST(Embedding, BackwardMatchesFiniteDifferences) {
  for (const Case& c : kCases) {
    Ints tokens = random_ints(c.batch * c.length, static_cast<int32_t>(c.vocabulary), 1);
    Matrix table = random_matrix(c.vocabulary, c.cols, 2);
    Matrix positions = random_matrix(c.length + 2, c.cols, 3);
    Matrix dx = random_matrix(c.batch * c.length, c.cols, 4, c.stride);
    const Doubles ts = table.doubles(), ps = positions.doubles(), dxs = dx.doubles();
    const Doubles dtable = gradient_of(
        [&](const Doubles& v) { return dot(dxs, oracle(tokens, v, ps, 0, c.length, c.cols)); }, ts);
    const Doubles dpositions = gradient_of(
        [&](const Doubles& v) { return dot(dxs, oracle(tokens, ts, v, 0, c.length, c.cols)); }, ps);
    // At most all rows, of |dx| <= 5, added one by one. The function is linear.
    const auto rows = static_cast<double>(c.batch * c.length);
    const double error = rows * rows * 5 * kUnit + kDifferenceError;

    for_each_target([&] {
      for (const bool accumulate : {false, true}) {
        ThreadPool pool(2);
        Matrix got_table = random_matrix(c.vocabulary, c.cols, 5, c.stride);
        Matrix got_positions = random_matrix(c.length + 2, c.cols, 6, c.stride);
        const Doubles old_table = got_table.doubles(), old_positions = got_positions.doubles();
        Matrix scratch(1, cpu::embedding_backward_scratch(c.batch * c.length, c.vocabulary));
        scratch.fill(NAN);
        cpu::embedding_backward(pool, tokens.view(), dx.view(), c.length, got_table.view(),
                                accumulate, got_positions.view(), accumulate, scratch.view());
        expect_close(got_table, accumulate ? plus(dtable, old_table) : dtable, error);
        expect_close(got_positions, accumulate ? plus(dpositions, old_positions) : dpositions,
                     error);
      }
    });
  }
}

TEST(Embedding, UntouchedTokensAreZeroedOnlyWhenOverwriting) {
  ThreadPool pool(2);
  Ints tokens{{2, 2}};
  Matrix dx(2, 3), dtable(4, 3), scratch(1, cpu::embedding_backward_scratch(2, 4));
  dx.fill(1);
  dtable.fill(7);
  cpu::embedding_backward(pool, tokens.view(), dx.view(), 2, dtable.view(), true, {}, false,
                          scratch.view());
  EXPECT_EQ(dtable.bits(), (std::vector<float>{7, 7, 7, 7, 7, 7, 9, 9, 9, 7, 7, 7}));
  cpu::embedding_backward(pool, tokens.view(), dx.view(), 2, dtable.view(), false, {}, false,
                          scratch.view());
  EXPECT_EQ(dtable.bits(), (std::vector<float>{0, 0, 0, 0, 0, 0, 2, 2, 2, 0, 0, 0}));
}

TEST(Embedding, RowsOfATokenAreAddedInRowOrder) {
  ThreadPool pool(2);
  // In float, (1 + 2^24) + -2^24 is 0 and any other order gives 1.
  Ints tokens{{0, 1, 0, 0}};
  Matrix dx(4, 1), dtable(2, 1), scratch(1, cpu::embedding_backward_scratch(4, 2));
  const std::vector<float> values = {1.0f, 5.0f, 0x1p24f, -0x1p24f};
  for (int64_t row = 0; row < 4; ++row) dx.at(row, 0) = values[static_cast<size_t>(row)];
  cpu::embedding_backward(pool, tokens.view(), dx.view(), 4, dtable.view(), false, {}, false,
                          scratch.view());
  EXPECT_EQ(dtable.bits(), (std::vector<float>{0, 5}));
}

TEST(Embedding, BitsDoNotDependOnTheThreads) {
  expect_same_bits_for_any_threads([](ThreadPool& pool) {
    Ints tokens = random_ints(4 * 129, 997, 1);
    Matrix dx = random_matrix(4 * 129, 301, 2), dtable(997, 301), dpositions(129, 301);
    Matrix scratch(1, cpu::embedding_backward_scratch(4 * 129, 997));
    cpu::embedding_backward(pool, tokens.view(), dx.view(), 129, dtable.view(), false,
                            dpositions.view(), false, scratch.view());
    std::vector<float> all = dtable.bits();
    all.insert(all.end(), dpositions.bits().begin(), dpositions.bits().end());
    return all;
  });
}

TEST(Embedding, RefusesTokensOutsideTheVocabulary) {
  ThreadPool pool(2);
  Matrix table(4, 3), y(2, 3), scratch(1, cpu::embedding_backward_scratch(2, 4));
  for (const int32_t token : {-1, 4}) {
    Ints tokens{{0, token}};
    EXPECT_THROW(cpu::embedding_forward(pool, tokens.view(), table.view(), {}, 0, 2, y.view()),
                 InternalError);
    EXPECT_THROW(cpu::embedding_backward(pool, tokens.view(), y.view(), 2, table.view(), false, {},
                                         false, scratch.view()),
                 InternalError);
  }
}

}  // namespace
}  // namespace onefold::test
