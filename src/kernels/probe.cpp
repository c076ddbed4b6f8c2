#include "kernels/probe.h"

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/sgemm.h"
#include "tensor/ledger.h"

namespace onefold {
namespace {

struct Orientation {
  bool a_transposed, b_transposed;
};

// Forward, gradient of the input, gradient of the weight.
constexpr Orientation kOrientations[] = {{false, true}, {false, false}, {true, false}};

// Of the product that is measured. Under a sanitizer rates mean nothing, and every run would wait
// seconds for them.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kColumns = 192;
#else
constexpr int64_t kColumns = 3072;
#endif

}  // namespace

double measure_gemm_gflops(ThreadPool& pool, int repeats) {
  // GPT-2's up projection of 512 tokens for each thread, so that nothing is lost to cutting or
  // sharing out.
  constexpr int64_t m = 512, n = kColumns, k = 768;
  const int64_t threads = pool.threads();
  std::vector<float> a(static_cast<size_t>(threads * m * k), 0.5f), b(n * k, 0.25f);
  std::vector<float> c(static_cast<size_t>(threads * m * n));
  double best = 0;
  for (const Orientation o : kOrientations) {
    std::vector<double> rates;
    for (int repeat = 0; repeat <= std::max(1, repeats); ++repeat) {
      const double begin = now_seconds();
      pool.run(threads, [&](int64_t chunk, int) {
        cpu::sgemm(o.a_transposed, o.b_transposed, m, n, k, 1, a.data() + chunk * m * k,
                   o.a_transposed ? m : k, b.data(), o.b_transposed ? k : n, 0,
                   c.data() + chunk * m * n, n);
      });
      const double flops = 2.0 * static_cast<double>(threads) * m * n * k;
      if (repeat > 0)
        rates.push_back(flops / (now_seconds() - begin) / 1e9);  // the first one warms up
    }
    best = std::max(best, median(rates));
  }
  return best;
}

double measure_memory_gb_per_s(ThreadPool& pool, int repeats) {
  constexpr int64_t elems = int64_t{32} << 20;  // 128 MiB each: beyond any cache
  const std::unique_ptr<MemorySource> memory = make_host_memory();
  Ledger ledger(*memory);  // as the training state is: on huge pages where the system grants them
  std::vector<Buffer> buffers;
  std::vector<Tensor> x;
  for (int i = 0; i < 3; ++i) {
    buffers.push_back(
        ledger.allocate(Kind::workspace, elems * dtype_bytes(DType::f32), "memory probe"));
    x.push_back(buffers.back().as(1, elems));
    cpu::fill(pool, x.back(), 1.0f);
  }
  double best = 0;
  for (const Tensor& dst : {x[2], x[0]}) {
    std::vector<double> rates;
    for (int repeat = 0; repeat <= std::max(1, repeats); ++repeat) {
      const double begin = now_seconds();
      cpu::add(pool, x[0], x[1], dst);
      if (repeat > 0) rates.push_back(3.0 * sizeof(float) * elems / (now_seconds() - begin) / 1e9);
    }
    best = std::max(best, median(rates));
  }
  return best;
}

}  // namespace onefold
