// Matrix products by a kernel of our own, for what the library cannot do.
#pragma once

#include "cuda/ops.h"

namespace onefold::cuda {

// As Gemm, of 16-bit types. bias.data and residual.data may be null.
struct ProductArgs {
  Matrix a, b, dst;
  bool a_transposed, b_transposed, accumulate;
  Vector bias;
  Matrix residual;
};
void product(const ProductArgs& args, cudaStream_t stream);

}  // namespace onefold::cuda
