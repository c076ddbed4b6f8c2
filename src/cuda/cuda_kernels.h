// The card's kernels behind the Kernels interface: shapes are checked here, and the work is
// enqueued on one stream.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "kernels/kernels.h"

namespace onefold::cuda {

std::unique_ptr<Kernels> make_kernels(cudaStream_t stream);

}  // namespace onefold::cuda
