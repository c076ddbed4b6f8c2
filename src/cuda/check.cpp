#include "cuda/check.h"

#include "base/error.h"

namespace onefold::cuda {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess)
    internal_error("CUDA could not {}: {} ({})", what, cudaGetErrorString(status),
                   cudaGetErrorName(status));
}

}  // namespace onefold::cuda
