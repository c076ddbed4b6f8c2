// What a processor can do is asked once. In a virtual machine each question (CPUID) leaves it,
// which takes tens of microseconds: more than a small product.
#include <algorithm>
#include <chrono>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "kernels/support.h"

namespace onefold::test {
namespace {

#if defined(__x86_64__)

// The least of many: without what else the machine did meanwhile.
template <class Work>
double least_seconds(const Work& work) {
  using Clock = std::chrono::steady_clock;
  double least = 1;
  for (int i = 0; i < 1000; ++i) {
    const auto begin = Clock::now();
    work();
    least = std::min(least, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return least;
}

TEST(Cpuid, IsNotAskedAtEveryProduct) {
  if (kSanitized) GTEST_SKIP() << "a product takes longer than the question";
  const double question = least_seconds([] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    __get_cpuid_count(7, 0, &a, &b, &c, &d);
  });
  if (question < 5e-6) GTEST_SKIP() << "a question takes " << question << " s: it would not show";
  ThreadPool pool(1);
  ExactMemory memory;
  Ledger ledger(memory);
  const std::unique_ptr<Kernels> kernels = make_cpu_kernels(pool);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    alignas(64) double values[64] = {};
    Gemm product{.a = matrix(values, 1, 2, dtype),
                 .b = matrix(values + 16, 2, 2, dtype),
                 .dst = matrix(values + 32, 1, 2, dtype)};
    const int64_t bytes = kernels->gemm_scratch_bytes(product);
    const Buffer scratch = ledger.allocate(Kind::workspace, bytes + 1, "cpuid");
    product.scratch = scratch.as(1, bytes, DType::u8);
    EXPECT_LT(least_seconds([&] { kernels->gemm(product); }), question) << dtype_name(dtype);
  }
}

#endif

}  // namespace
}  // namespace onefold::test
