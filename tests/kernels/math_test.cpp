// The vector functions of math-inl.h against the C library in double, over a grid of their
// arguments.
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/math_test.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/math-inl.h"
#include "kernels/support.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

bool HasFma() { return HWY_NATIVE_FMA != 0; }

void ExpAll(const float* x, size_t n, float* y) {
  const DF d;
  Sweep(n, [&](size_t i, auto io) HWY_ATTR { io.Store(Exp(d, io.Load(d, x + i)), d, y + i); });
}

void SigmoidAll(const float* x, size_t n, float* y) {
  const DF d;
  Sweep(n, [&](size_t i, auto io) HWY_ATTR { io.Store(Sigmoid(d, io.Load(d, x + i)), d, y + i); });
}

void TanhAll(const float* x, size_t n, float* y) {
  const DF d;
  Sweep(n, [&](size_t i, auto io) HWY_ATTR { io.Store(Tanh(d, io.Load(d, x + i)), d, y + i); });
}

void NormalAll(const float* x, size_t n, float* cdf, float* pdf) {
  const DF d;
  Sweep(n, [&](size_t i, auto io) HWY_ATTR {
    VF density;
    io.Store(NormalCdf(d, io.Load(d, x + i), density), d, cdf + i);
    io.Store(density, d, pdf + i);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onefold::cpu {
namespace {

HWY_EXPORT(HasFma);
HWY_EXPORT(ExpAll);
HWY_EXPORT(SigmoidAll);
HWY_EXPORT(TanhAll);
HWY_EXPORT(NormalAll);

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> grid(float from, float to, size_t count) {
  std::vector<float> x(count);
  for (size_t i = 0; i < count; ++i)
    x[i] = from + (to - from) * static_cast<float>(i) / static_cast<float>(count - 1);
  return x;
}

// The largest |y - f(x)| in units of the last place of f(x).
template <typename F>
double worst_ulp(const std::vector<float>& x, const std::vector<float>& y, F f) {
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = f(static_cast<double>(x[i]));
    const auto rounded = static_cast<float>(exact);
    const double ulp = std::nextafter(rounded, kInf) - rounded;
    worst = std::max(worst, std::abs(y[i] - exact) / ulp);
  }
  return worst;
}

TEST(Math, ExpIsWithinTwoUlp) {
  test::for_each_target([] {
    const std::vector<float> x = grid(-86.9f, 88.72f, 1000003);
    std::vector<float> y(x.size());
    HWY_DYNAMIC_DISPATCH(ExpAll)(x.data(), x.size(), y.data());
    EXPECT_LE(worst_ulp(x, y, [](double v) { return std::exp(v); }), 2.0);
  });
}

TEST(Math, ExpHasTheRightLimits) {
  test::for_each_target([] {
    const std::vector<float> x = {0.0f, -0.0f, -87.0f, -1000.0f, -kInf, 88.8f, 1e30f, kInf, kNan};
    std::vector<float> y(x.size());
    HWY_DYNAMIC_DISPATCH(ExpAll)(x.data(), x.size(), y.data());
    EXPECT_EQ(y[0], 1.0f);
    EXPECT_EQ(y[1], 1.0f);
    for (const size_t i : {2, 3, 4}) EXPECT_EQ(y[i], 0.0f) << x[i];
    for (const size_t i : {5, 6, 7}) EXPECT_EQ(y[i], kInf) << x[i];
    EXPECT_TRUE(std::isnan(y[8]));
  });
}

TEST(Math, SigmoidIsWithinThreeUlp) {
  test::for_each_target([] {
    const std::vector<float> x = grid(-86.0f, 40.0f, 500009);
    std::vector<float> y(x.size());
    HWY_DYNAMIC_DISPATCH(SigmoidAll)(x.data(), x.size(), y.data());
    EXPECT_LE(worst_ulp(x, y, [](double v) { return 1 / (1 + std::exp(-v)); }), 3.0);
  });
}

TEST(Math, TanhIsWithinFiveUlpAndHasTheRightLimits) {
  test::for_each_target([] {
    for (const float most : {0.01f, 1.0f, 12.0f}) {
      const std::vector<float> x = grid(-most, most, 300007);
      std::vector<float> y(x.size());
      HWY_DYNAMIC_DISPATCH(TanhAll)(x.data(), x.size(), y.data());
      EXPECT_LE(worst_ulp(x, y, [](double v) { return std::tanh(v); }), 5.0) << most;
    }
    const std::vector<float> x = {0.0f, -0.0f, kInf, -kInf, 3e38f, 1e-30f, kNan};
    std::vector<float> y(x.size());
    HWY_DYNAMIC_DISPATCH(TanhAll)(x.data(), x.size(), y.data());
    EXPECT_EQ(y[0], 0.0f);
    EXPECT_TRUE(y[1] == 0.0f && std::signbit(y[1]));
    EXPECT_EQ(y[2], 1.0f);
    EXPECT_EQ(y[3], -1.0f);
    EXPECT_EQ(y[4], 1.0f);
    EXPECT_EQ(y[5], 1e-30f);
    EXPECT_TRUE(std::isnan(y[6]));
  });
}

TEST(Math, NormalDistributionKeepsRelativeAccuracyInTheTail) {
  test::for_each_target([] {
    // Without FMA the rounding of x² shows in the exponential: x²/2 u relative, 84 at most.
    const bool fma = HWY_DYNAMIC_DISPATCH(HasFma)();
    const std::vector<float> x = grid(-12.9f, 10.0f, 500009);
    std::vector<float> cdf(x.size());
    std::vector<float> pdf(x.size());
    HWY_DYNAMIC_DISPATCH(NormalAll)(x.data(), x.size(), cdf.data(), pdf.data());
    const auto exact = [](double v) { return 0.5 * std::erfc(-v / std::sqrt(2.0)); };
    const auto density = [](double v) { return std::exp(-v * v / 2) * 0.39894228040143268; };
    EXPECT_LE(worst_ulp(x, cdf, exact), fma ? 6.0 : 90.0);
    EXPECT_LE(worst_ulp(x, pdf, density), fma ? 4.0 : 90.0);
  });
}

TEST(Math, NormalDistributionHasTheRightLimits) {
  test::for_each_target([] {
    const std::vector<float> x = {0.0f, -20.0f, -kInf, 20.0f, kInf, kNan, 3e38f};
    std::vector<float> cdf(x.size());
    std::vector<float> pdf(x.size());
    HWY_DYNAMIC_DISPATCH(NormalAll)(x.data(), x.size(), cdf.data(), pdf.data());
    EXPECT_NEAR(cdf[0], 0.5, 0x1p-24);
    EXPECT_EQ(cdf[1], 0.0f);
    EXPECT_EQ(cdf[2], 0.0f);
    EXPECT_EQ(cdf[3], 1.0f);
    EXPECT_EQ(cdf[4], 1.0f);
    EXPECT_TRUE(std::isnan(cdf[5]));
    EXPECT_EQ(cdf[6], 1.0f);
    EXPECT_EQ(pdf[6], 0.0f);
  });
}

}  // namespace
}  // namespace onefold::cpu
#endif
