#include "kernels/cpu/sgemm.h"

#include <oneapi/dnnl/dnnl.h>

#include <new>

#include "base/error.h"

extern "C" void omp_set_num_threads(int threads);  // of oneDNN's own OpenMP, GCC's

namespace onefold::cpu {

void sgemm(bool a_transposed, bool b_transposed, int64_t m, int64_t n, int64_t k, float alpha,
           const float* a, int64_t a_stride, const float* b, int64_t b_stride, float beta, float* c,
           int64_t c_stride) {
  // oneDNN would start an OpenMP team; the setting is the calling thread's own, so each pool thread
  // says it once.
  thread_local const bool single = (omp_set_num_threads(1), true);
  (void)single;
  const dnnl_status_t status = dnnl_sgemm(a_transposed ? 'T' : 'N', b_transposed ? 'T' : 'N', m, n,
                                          k, alpha, a, a_stride, b, b_stride, beta, c, c_stride);
  if (status == dnnl_out_of_memory) throw std::bad_alloc();
  require(status == dnnl_success, "oneDNN sgemm {}x{}x{} failed with status {}", m, n, k,
          static_cast<int>(status));
}

namespace {

bool library_has(dnnl_cpu_isa_t instructions) {
  return (dnnl_get_effective_cpu_isa() & instructions) == instructions;
}

}  // namespace

bool library_has_amx() {
  static const bool has = library_has(dnnl_cpu_isa_avx512_core_amx);
  return has;
}

bool library_has_bf16_dots() {
  static const bool has = library_has(dnnl_cpu_isa_avx512_core_bf16);
  return has;
}

}  // namespace onefold::cpu
