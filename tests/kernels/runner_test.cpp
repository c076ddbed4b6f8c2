// That the runner of cases notices what it is there for: kernels that break a promise.
#include "kernel_cases/runner.h"

#include <cstring>
#include <limits>

#include "kernel_cases/oracle.h"
#include "kernels/support.h"

namespace onefold::test {
namespace {

using cases::Case;
using cases::CaseResult;
using cases::HostTensor;

// A case whose "kernel" writes to host memory what a test tells it to.
struct Broken {
  Case test;
  int src, dst;

  explicit Broken(const std::function<void(float* src, float* dst)>& write)
      : src(test.input("src", cases::normals(2, 3, 1, 1))),
        dst(test.output("dst", HostTensor(2, 3, 2).clear())) {
    test.run = [=, src = src, dst = dst](cases::Call& call) {
      write(call[src].f32(), call[dst].f32());
    };
  }

  std::vector<std::string> failures(const std::vector<cases::Expected>& expected) const {
    TestDevice cpu("cpu", 1);
    const CaseResult result = cases::run_case(cpu.device(), cpu.ledger(), test);
    std::vector<std::string> all = result.failures;
    for (const std::string& difference : cases::differences(test, result, expected))
      all.push_back(difference);
    return all;
  }
};

constexpr int64_t kStride = 5;  // of dst

void write_ones(float* dst) {
  for (int64_t row = 0; row < 2; ++row)
    for (int64_t col = 0; col < 3; ++col) dst[row * kStride + col] = 1;
}

void expect_one_failure(const std::function<void(float*, float*)>& write, const std::string& text,
                        double bound = 0) {
  const Broken broken([&](float* src, float* dst) {
    write_ones(dst);
    write(src, dst);
  });
  const std::vector<std::string> failures =
      broken.failures({cases::close(broken.dst, cases::Doubles(6, 1.0), bound)});
  ASSERT_EQ(failures.size(), 1u) << text;
  EXPECT_NE(failures[0].find(text), std::string::npos) << failures[0];
}

TEST(CaseRunner, FindsNothingWhereAllIsWell) {
  const Broken good([](float*, float* dst) { write_ones(dst); });
  EXPECT_TRUE(good.failures({cases::exactly(good.dst, cases::Doubles(6, 1.0))}).empty());
}

TEST(CaseRunner, FindsWhatIsWritten) {
  expect_one_failure([](float*, float* dst) { dst[3] = 0; }, "dst: a gap between rows");
  expect_one_failure([](float* src, float*) { src[0] += 1; }, "src: an input was changed");
#if !defined(ONEFOLD_ASAN)  // which stops at once
  expect_one_failure([](float*, float* dst) { dst[kStride + 3] = 0; }, "dst: memory behind it");
#endif
}

TEST(CaseRunner, FindsWhatIsWrong) {
  expect_one_failure([](float*, float* dst) { dst[kStride + 2] = 1.5f; },
                     "1.5 instead of 1 at row 1 column 2", 0.4);
  expect_one_failure([](float*, float* dst) { dst[1] = std::numeric_limits<float>::quiet_NaN(); },
                     "nan instead of 1", 1e30);
  expect_one_failure([](float*, float* dst) { dst[1] = std::numeric_limits<float>::infinity(); },
                     "inf instead of 1", 1e30);
}

TEST(CaseRunner, FindsWhatIsFiniteAndShouldNotBe) {
  const double inf = std::numeric_limits<double>::infinity(),
               nan = std::numeric_limits<double>::quiet_NaN();
  const Broken ones([](float*, float* dst) { write_ones(dst); });
  for (const double expected : {inf, nan})
    EXPECT_EQ(ones.failures({cases::close(ones.dst, cases::Doubles(6, expected), 1)}).size(), 1u);
  EXPECT_EQ(ones.failures({{ones.dst, {}, {}, true}}).size(), 1u);
}

TEST(CaseRunner, FindsWhatWasNotWrittenAtAll) {
  const Broken lazy([](float*, float*) {});
  EXPECT_EQ(lazy.failures({cases::exactly(lazy.dst, cases::Doubles(6, 0.0))}).size(), 1u);
}

TEST(CaseRunner, FindsBitsThatDiffer) {
  Case test;
  const int dst = test.output("dst", cases::normals(3, 4, 1, 1));
  test.run = [](cases::Call&) {};
  TestDevice cpu("cpu", 1);
  const CaseResult a = cases::run_case(cpu.device(), cpu.ledger(), test);
  CaseResult b = a;
  EXPECT_TRUE(bit_differences(test, a, b).empty());
  HostTensor& other = b.tensors[static_cast<size_t>(dst)];
  other.set(1, 2, std::nextafter(other.at(1, 2), 10.0f));
  EXPECT_EQ(bit_differences(test, a, b).size(), 1u);
  EXPECT_EQ(bit_differences(test, a, test, b, {{"dst", 0, 1}}).size(), 0u);
  EXPECT_EQ(bit_differences(test, a, test, b, {{"dst", 1, 2, 3}}).size(), 0u);
  EXPECT_EQ(bit_differences(test, a, test, b, {{"dst", 1, 2, 2, 3}}).size(), 1u);
}

TEST(Dropout, TheContractKeepsTheShareItShould) {
  constexpr uint64_t kCount = 1 << 20;
  double kept = 0;
  for (uint64_t i = 0; i < kCount; ++i)
    kept += cases::dropout_multiplier({0x12345678u, 0x9abcdef0u}, 5, i, 0.1f) != 0;
  // Five standard deviations of a binomial.
  EXPECT_NEAR(kept, 0.9 * kCount, 5 * std::sqrt(0.09 * kCount));
}

TEST(Documents, OfGivenLengthsCoverEachSequence) {
  EXPECT_EQ(cases::document_starts(2, 5, {2, 4}),
            (std::vector<int32_t>{0, 0, 2, 2, 2, 0, 0, 2, 2, 2}));
  const auto documents = cases::documents_of({0, 0, 2, 0, 1, 1}, 3);
  ASSERT_EQ(documents.size(), 4u);
  const int64_t ends[] = {2, 3, 4, 6};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(documents[i].begin, i == 0 ? 0 : ends[i - 1]);
    EXPECT_EQ(documents[i].end, ends[i]);
  }
}

}  // namespace
}  // namespace onefold::test
