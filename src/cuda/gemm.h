// Matrix products through cuBLASLt: operands of fp32 (no TF32), bf16 or fp16, sums in fp32.
#pragma once

#include <cublasLt.h>

#include <array>
#include <map>
#include <memory>

#include "kernels/kernels.h"

namespace onefold::cuda {

struct TrialOperands;

class Products {
 public:
  Products();
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Shapes have been checked.
  void run(const Gemm& args, cudaStream_t stream);

 private:
  struct Plan;
  // What the choice of an algorithm follows from.
  using Key = std::array<int64_t, 15>;
  Key key_of(const Gemm& args, bool with_bias) const;
  const Plan& plan_for(const Gemm& args, bool with_bias, cudaStream_t stream);
  void multiply(const Gemm& args, bool with_bias, cudaStream_t stream);
  std::unique_ptr<Plan> make_plan(const Gemm& args, bool with_bias, int64_t alignment,
                                  cudaStream_t stream) const;
  int with_other_orders(const Plan& plan, cublasLtMatmulHeuristicResult_t* found, int count) const;
  cublasStatus_t enqueue(const Plan& plan, bool with_bias, bool reads_added,
                         const TrialOperands& operands, const Tensor& scratch,
                         cudaStream_t stream) const;

  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace onefold::cuda
