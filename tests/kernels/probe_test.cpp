#include "kernels/probe.h"

#include <cmath>

#include "kernels/support.h"

namespace onefold::test {
namespace {

// What the rates should be is the machine's business; that they can be divided by is ours.
void expect_a_rate(double rate) {
  EXPECT_TRUE(std::isfinite(rate)) << rate;
  EXPECT_GT(rate, 0);
}

TEST(Probe, GemmRateIsPositiveAndFinite) {
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads);
    expect_a_rate(measure_gemm_gflops(pool, 1));
  }
}

TEST(Probe, MemoryRateIsPositiveAndFinite) {
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads);
    expect_a_rate(measure_memory_gb_per_s(pool, 1));
  }
}

}  // namespace
}  // namespace onefold::test
