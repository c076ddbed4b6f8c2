#include "cuda/gemm.h"

#include <algorithm>

#include "base/error.h"
#include "cuda/product.h"
#include "cuda/product_trial.h"
#include "cuda/tensor_view.h"
#include "device/cuda_scratch.h"

namespace onefold::cuda {
namespace {

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    internal_error("cuBLASLt could not {}: {}", what, cublasLtGetStatusString(status));
}

constexpr int64_t kVectorBytes = 16;
constexpr int kAlgorithms = 16;  // that the library is asked for
// From so many on, the time that a trial saves in a run is more than it takes. Another order of
// sums shows in one of thousands of 16-bit results: a trial needs many.
constexpr double kTriedOperations = 1e9;
constexpr int64_t kTriedElems = 1 << 18;

double operations(const Gemm& g) {
  return 2.0 * static_cast<double>(g.dst.elems()) *
         static_cast<double>(g.a_transposed ? g.a.rows : g.a.cols);
}

// Of everything that is vectorised: 16 bytes, or else those of an element.
int64_t alignment_of(const Gemm& g) {
  const auto fits = [](const Tensor& t) {
    return t.empty() || (reinterpret_cast<uintptr_t>(t.data) % kVectorBytes == 0 &&
                         t.stride * dtype_bytes(t.dtype) % kVectorBytes == 0);
  };
  const bool all = fits(g.a) && fits(g.b) && fits(g.dst) && fits(g.residual) && fits(g.bias);
  return all ? kVectorBytes : std::min(dtype_bytes(g.a.dtype), dtype_bytes(g.dst.dtype));
}

cudaDataType_t library_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

// A residual can be what dst is added to, unless that is dst itself.
bool residual_in_product(const Gemm& g) { return !g.residual.empty() && !g.accumulate; }

// The library's matrices have columns where ours have rows: a tensor is, to it, the transpose.
struct Layout {
  cublasLtMatrixLayout_t handle = nullptr;
  explicit Layout(const Tensor& t) {
    check(cublasLtMatrixLayoutCreate(&handle, library_type(t.dtype), static_cast<uint64_t>(t.cols),
                                     static_cast<uint64_t>(t.rows), std::max(t.stride, t.cols)),
          "describe a matrix");
  }
  ~Layout() { (void)cublasLtMatrixLayoutDestroy(handle); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
};

struct Preference {
  cublasLtMatmulPreference_t handle = nullptr;
  Preference() { check(cublasLtMatmulPreferenceCreate(&handle), "describe a preference"); }
  ~Preference() { (void)cublasLtMatmulPreferenceDestroy(handle); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;

  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    check(cublasLtMatmulPreferenceSetAttribute(handle, attribute, &value, sizeof(value)),
          "set a preference");
  }
};

}  // namespace

struct Products::Plan {
  cublasLtMatmulDesc_t product = nullptr;
  Layout left, right, added, dst;
  cublasLtMatmulAlgo_t algorithm{};
  bool found = false;
  size_t workspace_bytes = 0;

  // dst' = op(b)' · op(a)'
  Plan(const Gemm& g, bool with_bias)
      : left(g.b), right(g.a), added(residual_in_product(g) ? g.residual : g.dst), dst(g.dst) {
    check(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describe a product");
    set(CUBLASLT_MATMUL_DESC_TRANSA, g.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, g.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (!with_bias) return;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(g.bias.data));
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, library_type(g.bias.dtype));
  }
  ~Plan() { (void)cublasLtMatmulDescDestroy(product); }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) const {
    check(cublasLtMatmulDescSetAttribute(product, attribute, &value, sizeof(value)),
          "describe a product");
  }
};

Products::Products() { check(cublasLtCreate(&handle_), "start"); }

Products::~Products() {
  plans_.clear();
  (void)cublasLtDestroy(handle_);
}

Products::Key Products::key_of(const Gemm& g, bool with_bias) const {
  return {g.dst.rows,
          g.dst.cols,
          g.a_transposed ? g.a.rows : g.a.cols,
          g.a.stride,
          g.b.stride,
          g.dst.stride,
          residual_in_product(g) ? g.residual.stride : 0,
          g.a_transposed,
          g.b_transposed,
          g.accumulate,
          residual_in_product(g),
          with_bias,
          alignment_of(g),
          static_cast<int64_t>(g.a.dtype),
          static_cast<int64_t>(g.dst.dtype)};
}

// Algorithms whose sums have a fixed order: terms that are divided over blocks meet in the
// workspace, and one block adds them up. The library's own first choice decides on the bits; a
// large product has the fastest algorithm with these bits.
std::unique_ptr<Products::Plan> Products::make_plan(const Gemm& g, bool with_bias,
                                                    int64_t alignment, cudaStream_t stream) const {
  auto plan = std::make_unique<Plan>(g, with_bias);
  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                 static_cast<uint64_t>(kProductWorkspaceBytes));
  preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                 static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    preference.set(attribute, static_cast<uint32_t>(alignment));
  cublasLtMatmulHeuristicResult_t found[2 * kAlgorithms] = {};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_, plan->product, plan->left.handle, plan->right.handle, plan->added.handle,
      plan->dst.handle, preference.handle, kAlgorithms, found, &count);
  plan->found = status == CUBLAS_STATUS_SUCCESS && count > 0;
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "choose an algorithm");
  if (!plan->found) return plan;
  const bool tried = operations(g) >= kTriedOperations && g.dst.elems() >= kTriedElems;
  if (tried) count = with_other_orders(*plan, found, count);
  const auto take = [&](int i) {
    plan->algorithm = found[i].algo;
    plan->workspace_bytes = found[i].workspaceSize;
  };
  take(0);
  if (count == 1 || !tried) return plan;
  const bool reads_added = g.accumulate || residual_in_product(g);
  take(fastest_with_the_first_ones_bits(
      count, g, reads_added,
      [&](int i, const TrialOperands& operands) {
        take(i);
        return enqueue(*plan, with_bias, reads_added, operands, g.scratch, stream) ==
               CUBLAS_STATUS_SUCCESS;
      },
      stream));
  return plan;
}

// The same algorithms with their blocks in another order, behind those found: what neighbours read
// meets in the cache, or does not. Returns how many there are.
int Products::with_other_orders(const Plan& plan, cublasLtMatmulHeuristicResult_t* found,
                                int count) const {
  int all = count;
  for (int i = 0; i < count; ++i) {
    cublasLtMatmulAlgo_t other = found[i].algo;
    uint32_t swizzled = 0;
    size_t written = 0;
    if (cublasLtMatmulAlgoConfigGetAttribute(&other, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &swizzled,
                                             sizeof(swizzled), &written) != CUBLAS_STATUS_SUCCESS)
      continue;
    swizzled = swizzled == 0 ? 1 : 0;
    if (cublasLtMatmulAlgoConfigSetAttribute(&other, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &swizzled,
                                             sizeof(swizzled)) != CUBLAS_STATUS_SUCCESS)
      continue;
    cublasLtMatmulHeuristicResult_t checked{};
    if (cublasLtMatmulAlgoCheck(handle_, plan.product, plan.left.handle, plan.right.handle,
                                plan.added.handle, plan.dst.handle, &other,
                                &checked) != CUBLAS_STATUS_SUCCESS ||
        checked.workspaceSize > static_cast<size_t>(kProductWorkspaceBytes))
      continue;
    checked.algo = other;
    found[all++] = checked;
  }
  return all;
}

cublasStatus_t Products::enqueue(const Plan& plan, bool with_bias, bool reads_added,
                                 const TrialOperands& operands, const Tensor& scratch,
                                 cudaStream_t stream) const {
  if (with_bias) plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  const float one = 1, beta = reads_added ? 1.0f : 0.0f;
  const auto begin = reinterpret_cast<uintptr_t>(scratch.data);
  const uintptr_t workspace =
      (begin + kProductWorkspaceAlign - 1) / kProductWorkspaceAlign * kProductWorkspaceAlign;
  return cublasLtMatmul(handle_, plan.product, &one, operands.b, plan.left.handle, operands.a,
                        plan.right.handle, &beta, operands.added, plan.added.handle, operands.dst,
                        plan.dst.handle, &plan.algorithm, reinterpret_cast<void*>(workspace),
                        plan.workspace_bytes, stream);
}

const Products::Plan& Products::plan_for(const Gemm& g, bool with_bias, cudaStream_t stream) {
  std::unique_ptr<Plan>& plan = plans_[key_of(g, with_bias)];
  if (!plan) plan = make_plan(g, with_bias, alignment_of(g), stream);
  return *plan;
}

void Products::multiply(const Gemm& g, bool with_bias, cudaStream_t stream) {
  const Plan& plan = plan_for(g, with_bias, stream);
  require(plan.found, "cuBLASLt has no algorithm for a product of {}x{} and {}x{}", g.a.rows,
          g.a.cols, g.b.rows, g.b.cols);
  const void* added = residual_in_product(g) ? g.residual.data : g.dst.data;
  check(enqueue(plan, with_bias, g.accumulate || residual_in_product(g),
                {g.a.data, g.b.data, added, g.bias.data, g.dst.data}, g.scratch, stream),
        "multiply");
}

void Products::run(const Gemm& g, cudaStream_t stream) {
  if (g.dst.empty()) return;
  const Matrix dst = view(g.dst);
  const bool terms = !g.a.empty();  // a product without any is zero, and the library refuses it
  // It may have no algorithm that adds a bias to this product; the plan remembers that. Of 16-bit
  // rows that are not aligned it rounds the product before it adds the bias.
  const bool rounds_once = g.dst.dtype == DType::f32 || alignment_of(g) == kVectorBytes;
  const bool bias_in_product =
      terms && !g.bias.empty() && rounds_once && plan_for(g, true, stream).found;
  const bool add_bias_after = !g.bias.empty() && !bias_in_product;
  const bool add_residual_after = !g.residual.empty() && !(terms && residual_in_product(g));
  // What is added to a result of 16 bits would be a second rounding of it.
  if (g.dst.dtype != DType::f32 && (add_bias_after || add_residual_after))
    return product({view(g.a), view(g.b), dst, g.a_transposed, g.b_transposed, g.accumulate,
                    vector(g.bias), view_or_null(g.residual)},
                   stream);
  if (terms)
    multiply(g, bias_in_product, stream);
  else if (!g.accumulate)
    fill(dst, 0, stream);
  if (add_bias_after) add_bias(vector(g.bias), dst, stream);
  if (add_residual_after) add(dst, view(g.residual), dst, stream);
}

}  // namespace onefold::cuda
