#include "kernels/probe.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
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
#if defined(ONEFOLD_SANITIZED)
constexpr int64_t kColumns = 192;
#else
constexpr int64_t kColumns = 3072;
#endif
// GPT-2's up projection of 512 tokens for each thread.
constexpr int64_t kRows = 512, kTerms = 768;

// A product for each thread, so that nothing is lost to cutting or sharing out.
std::function<void()> f32_products(ThreadPool& pool, Orientation o) {
  const auto floats = [](int64_t elems, float value) {
    return std::vector<float>(static_cast<size_t>(elems), value);
  };
  return [&pool, o, a = floats(pool.threads() * kRows * kTerms, 0.5f),
          b = floats(kColumns * kTerms, 0.25f),
          c = floats(pool.threads() * kRows * kColumns, 0)]() mutable {
    pool.run(pool.threads(), [&](int64_t chunk, int) {
      cpu::sgemm(o.a_transposed, o.b_transposed, kRows, kColumns, kTerms, 1,
                 a.data() + chunk * kRows * kTerms, o.a_transposed ? kRows : kTerms, b.data(),
                 o.b_transposed ? kTerms : kColumns, 0, c.data() + chunk * kRows * kColumns,
                 kColumns);
    });
  };
}

// One product on all threads, of operands of 16 bits to floats.
std::function<void()> half_product(ThreadPool& pool, Orientation o, DType type) {
  const std::shared_ptr<MemorySource> memory = make_host_memory();
  const auto ledger = std::make_shared<Ledger>(*memory);
  const auto buffers = std::make_shared<std::vector<Buffer>>();
  const auto take = [&](int64_t rows, int64_t cols, DType dtype) {
    buffers->push_back(
        ledger->allocate(Kind::workspace, rows * cols * dtype_bytes(dtype), "product probe"));
    const Tensor tensor = buffers->back().as(rows, cols, dtype);
    if (dtype != DType::u8) cpu::fill(pool, tensor, 0.5f);
    return tensor;
  };
  const int64_t rows = pool.threads() * kRows;
  Gemm gemm{.a = o.a_transposed ? take(kTerms, rows, type) : take(rows, kTerms, type),
            .b = o.b_transposed ? take(kColumns, kTerms, type) : take(kTerms, kColumns, type),
            .dst = take(rows, kColumns, DType::f32),
            .a_transposed = o.a_transposed,
            .b_transposed = o.b_transposed};
  gemm.scratch =
      take(1, cpu::gemm_scratch_bytes(gemm, pool.threads(), cpu_multiplies_bf16()), DType::u8);
  return [&pool, memory, ledger, buffers, gemm] { cpu::gemm(pool, gemm); };
}

}  // namespace

double measure_gemm_gflops(ThreadPool& pool, int repeats, DType type) {
  double best = 0;
  for (const Orientation o : kOrientations) {
    const std::function<void()> product =
        type == DType::f32 ? f32_products(pool, o) : half_product(pool, o, type);
    std::vector<double> rates;
    for (int repeat = 0; repeat <= std::max(1, repeats); ++repeat) {
      const double begin = now_seconds();
      product();
      const double flops = 2.0 * pool.threads() * kRows * kColumns * kTerms;
      if (repeat > 0)
        rates.push_back(flops / (now_seconds() - begin) / 1e9);  // the first one warms up
    }
    best = std::max(best, median(rates));
  }
  return best;
}

double measure_memory_gb_per_s(ThreadPool& pool, int repeats) {
  // Beyond the caches: 128 MiB each, or as much as the last of them has.
  const int64_t elems = std::max<int64_t>(128 << 20, sysconf(_SC_LEVEL3_CACHE_SIZE)) / 4;
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
      if (repeat > 0)
        rates.push_back(3.0 * sizeof(float) * static_cast<double>(elems) / (now_seconds() - begin) /
                        1e9);
    }
    best = std::max(best, median(rates));
  }
  return best;
}

}  // namespace onefold
