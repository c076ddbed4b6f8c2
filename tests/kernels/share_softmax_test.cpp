// Cross-entropy over shares of the columns: that of the whole, whatever the shares hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/philox.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"

namespace onefold {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Result {
  std::vector<float> losses, gradient;
};

// Logits [rows][cols], cut before each column of `cuts`; an empty `cuts` is the whole kernel.
Result run(std::vector<float> logits, const std::vector<int32_t>& targets,
           std::vector<int64_t> cuts, float scale) {
  ThreadPool pool(2);
  const std::unique_ptr<Kernels> kernels = make_cpu_kernels(pool);
  const auto rows = static_cast<int64_t>(targets.size());
  const auto cols = static_cast<int64_t>(logits.size()) / rows;
  Result result{std::vector<float>(static_cast<size_t>(rows)), {}};
  const Tensor whole = matrix(logits.data(), rows, cols);
  const Tensor factor = matrix(&scale, 1, 1), losses = matrix(result.losses.data(), 1, rows);
  if (cuts.empty()) {
    std::vector<int32_t> copy = targets;
    kernels->cross_entropy(whole, matrix(copy.data(), 1, rows, DType::i32), factor, losses);
  } else {
    cuts.insert(cuts.begin(), 0);
    cuts.push_back(cols);
    const auto shares = static_cast<int64_t>(cuts.size()) - 1;
    std::vector<float> stats(static_cast<size_t>(kShareStats * shares * rows));
    const Tensor all = matrix(stats.data(), kShareStats * shares, rows);
    std::vector<std::vector<int32_t>> places(static_cast<size_t>(shares));
    const auto share_of = [&](int64_t s) {
      return whole.col_range(cuts[static_cast<size_t>(s)],
                             cuts[static_cast<size_t>(s) + 1] - cuts[static_cast<size_t>(s)]);
    };
    for (int64_t s = 0; s < shares; ++s) {
      const int64_t first = cuts[static_cast<size_t>(s)], size = share_of(s).cols;
      auto& own = places[static_cast<size_t>(s)];
      for (const int32_t target : targets) {
        const int64_t place = target - first;
        own.push_back(target < 0 ? target
                                 : static_cast<int32_t>(place >= 0 && place < size ? place : size));
      }
      kernels->share_softmax(share_of(s), matrix(own.data(), 1, rows, DType::i32),
                             all.row_range(kShareStats * s, kShareStats));
    }
    for (int64_t s = 0; s < shares; ++s)
      kernels->share_cross_entropy(
          share_of(s), matrix(places[static_cast<size_t>(s)].data(), 1, rows, DType::i32), all,
          factor, losses);
  }
  result.gradient = std::move(logits);
  return result;
}

std::vector<float> normals(int64_t count, float spread) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(spread * philox_normal(philox_key(7, Draw::test), static_cast<uint64_t>(i)));
  return values;
}

// Against softmax in double.
void expect_oracle(const Result& result, const std::vector<float>& logits,
                   const std::vector<int32_t>& targets, float scale) {
  const auto rows = targets.size(), cols = logits.size() / rows;
  for (size_t row = 0; row < rows; ++row) {
    const float* x = logits.data() + row * cols;
    const double max = *std::max_element(x, x + cols);
    double sum = 0;
    for (size_t i = 0; i < cols; ++i) sum += std::exp(x[i] - max);
    const int32_t target = targets[row];
    const double loss = target < 0 ? 0 : std::log(sum) + max - x[static_cast<size_t>(target)];
    // As of the whole kernel (kernel_cases/cross_entropy.cpp), and one rounding of each sum.
    EXPECT_NEAR(result.losses[row], loss, 4e-6 + 2e-7 * std::abs(loss)) << row;
    for (size_t i = 0; i < cols; ++i) {
      const double p =
          target < 0 ? 0 : std::exp(x[i] - max) / sum - (target == static_cast<int32_t>(i));
      EXPECT_NEAR(result.gradient[row * cols + i], scale * p, 4e-6 * scale) << row << ", " << i;
    }
  }
}

TEST(ShareSoftmax, AgreesWithTheOracleHoweverColumnsAreCut) {
  const std::vector<int32_t> targets = {0, 36, 17, -1, 18, 5};
  for (const float spread : {0.1f, 3.0f, 40.0f}) {
    const std::vector<float> logits = normals(6 * 37, spread);
    for (const std::vector<int64_t>& cuts :
         {std::vector<int64_t>{18}, {1}, {36}, {12, 24}, {5, 17, 18, 30}})
      expect_oracle(run(logits, targets, cuts, 0.25f), logits, targets, 0.25f);
  }
}

// Spikes, a share without any probability, and magnitudes at the ends of the type.
TEST(ShareSoftmax, HostileLogitsHaveTheResultsOfTheWhole) {
  const std::vector<float> logits = {3e38f, -3e38f, 1,     0,  //
                                     -kInf, -kInf,  7,     6,  //
                                     -kInf, -kInf,  -kInf, 5,  //
                                     1e30f, 1e30f,  0,     0,  //
                                     0,     0,      0,     0,  //
                                     -1e4f, -1e4f,  1e4f,  -1e4f};
  const std::vector<int32_t> targets = {0, 2, 3, 1, 3, 2};
  const Result whole = run(logits, targets, {}, 1);
  for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{2}, {1, 2, 3}}) {
    const Result shares = run(logits, targets, cuts, 1);
    for (size_t i = 0; i < whole.losses.size(); ++i)
      EXPECT_NEAR(shares.losses[i], whole.losses[i], 1e-6) << i;
    for (size_t i = 0; i < whole.gradient.size(); ++i)
      EXPECT_NEAR(shares.gradient[i], whole.gradient[i], 1e-6) << i;
  }
}

TEST(ShareSoftmax, WhatIsNotFiniteInAnyShareMakesTheLossSo) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInf})
    for (const size_t at : {0, 3, 5}) {
      std::vector<float> logits = {1, 2, -kInf, -kInf, 5, 6};
      logits[at] = bad;
      EXPECT_FALSE(std::isfinite(run(logits, {1}, {2, 4}, 1).losses[0])) << bad << " at " << at;
    }
}

}  // namespace
}  // namespace onefold
