#include "kernels/cpu/cpu_kernels.h"
#include "kernels/support.h"

namespace onefold::test {
namespace {

constexpr PhiloxKey kKey = {0x12345678u, 0x9abcdef0u};

// The contract in dropout-inl.h, word for word.
float multiplier(PhiloxKey key, uint64_t sample, uint64_t element, float rate) {
  const uint64_t block = element / 4;
  const PhiloxWords words =
      philox(key, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                   static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)});
  return philox_uniform(words[element % 4]) >= rate ? 1.0f / (1.0f - rate) : 0.0f;
}

TEST(Dropout, MaskIsTheScalarContractAtAnyAlignment) {
  const std::vector<int64_t> samples = {3, 0x100000007, 0};
  for (const int64_t cols : {1, 3, 7, 64, 101, 1031}) {
    Matrix x(6, cols, cols + 1);
    x.fill(1);
    Matrix expected(6, cols, cols + 2);
    for (int64_t row = 0; row < 6; ++row)
      for (int64_t col = 0; col < cols; ++col)
        expected.at(row, col) =
            multiplier(kKey, static_cast<uint64_t>(samples[static_cast<size_t>(row / 2)]),
                       static_cast<uint64_t>(row % 2 * cols + col), 0.3f);
    for_each_target([&] {
      ThreadPool pool(2);
      Matrix y(6, cols, cols + 2);
      cpu::dropout(pool, x.view(), {0.3f, kKey, samples.data()}, 2, {}, y.view());
      EXPECT_EQ(y.bits(), expected.bits());
    });
  }
}

TEST(Dropout, RatesAtTheEdgeOfTheWordsAreExact) {
  // A rate that is exactly some word's uniform keeps that word: the comparison is >=.
  const int64_t sample = 0;
  const PhiloxWords words = philox(kKey, {0, 0, 0, 0});
  const float exact = philox_uniform(words[0]);
  for (const float rate : {exact, std::nextafter(exact, 1.0f), std::nextafter(exact, 0.0f),
                           0x1p-24f, 0x1p-30f, 1 - 0x1p-24f}) {
    for_each_target([&] {
      ThreadPool pool(1);
      Matrix x(1, 997), y(1, 997);
      x.fill(1);
      cpu::dropout(pool, x.view(), {rate, kKey, &sample}, 1, {}, y.view());
      for (int64_t col = 0; col < 997; ++col)
        ASSERT_EQ(y.at(0, col), multiplier(kKey, 0, static_cast<uint64_t>(col), rate)) << rate;
    });
  }
}

TEST(Dropout, AddsTheResidual) {
  const std::vector<int64_t> samples = {11};
  const float rate = 0.25f;
  Matrix x = random_matrix(3, 37, 1, 40), residual = random_matrix(3, 37, 2, 41);
  Doubles expected;
  for (int64_t row = 0; row < 3; ++row)
    for (int64_t col = 0; col < 37; ++col)
      expected.push_back(residual.at(row, col) +
                         static_cast<double>(x.at(row, col)) *
                             multiplier(kKey, 11, static_cast<uint64_t>(row * 37 + col), rate));
  for_each_target([&] {
    ThreadPool pool(2);
    Matrix y(3, 37, 38);
    cpu::dropout(pool, x.view(), {rate, kKey, samples.data()}, 3, residual.view(), y.view());
    expect_close(y, expected, 2 * 8 * kUnit);  // a product and a sum of values up to 8
    Matrix in_place = residual;
    cpu::dropout(pool, x.view(), {rate, kKey, samples.data()}, 3, in_place.view(), in_place.view());
    EXPECT_EQ(in_place.doubles(), y.doubles());
  });
}

TEST(Dropout, RateZeroCopiesOrAdds) {
  ThreadPool pool(2);
  Matrix x = random_matrix(3, 5, 1), residual = random_matrix(3, 5, 2), y(3, 5), sum(3, 5);
  cpu::dropout(pool, x.view(), {}, 3, {}, y.view());
  EXPECT_EQ(y.bits(), x.bits());
  cpu::dropout(pool, x.view(), {}, 3, residual.view(), sum.view());
  for (int64_t i = 0; i < 15; ++i) EXPECT_EQ(sum.bits()[i], x.bits()[i] + residual.bits()[i]);
}

TEST(Dropout, KeepsTheShareItShould) {
  ThreadPool pool(2);
  const int64_t sample = 5;
  constexpr int64_t kCount = 1 << 20;
  Matrix x(1, kCount), y(1, kCount);
  x.fill(1);
  cpu::dropout(pool, x.view(), {0.1f, kKey, &sample}, 1, {}, y.view());
  int64_t kept = 0;
  for (const float v : y.bits()) kept += v != 0;
  // Five standard deviations of a binomial.
  EXPECT_NEAR(static_cast<double>(kept), 0.9 * kCount, 5 * std::sqrt(0.09 * kCount));
}

TEST(Dropout, BitsDoNotDependOnTheThreads) {
  expect_same_bits_for_any_threads([](ThreadPool& pool) {
    const std::vector<int64_t> samples = {1, 2, 3};
    Matrix x = random_matrix(9, 40009, 1), y(9, 40009);
    cpu::dropout(pool, x.view(), {0.5f, kKey, samples.data()}, 3, {}, y.view());
    return y.bits();
  });
}

TEST(Dropout, RefusesRatesOutsideZeroToOne) {
  ThreadPool pool(1);
  const int64_t sample = 0;
  Matrix x(1, 4);
  EXPECT_THROW(cpu::dropout(pool, x.view(), {1.0f, kKey, &sample}, 1, {}, x.view()), InternalError);
  EXPECT_THROW(cpu::dropout(pool, x.view(), {-0.1f, kKey, &sample}, 1, {}, x.view()),
               InternalError);
}

}  // namespace
}  // namespace onefold::test
