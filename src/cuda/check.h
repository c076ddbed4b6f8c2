// What a call of CUDA returned, as an error with a sentence.
#pragma once

#include <cuda_runtime_api.h>

namespace onefold::cuda {

// Throws InternalError unless the call succeeded. `what` says what was being done ("launch a
// kernel"). A kernel's own fault is reported by whichever call comes after it.
void check(cudaError_t status, const char* what);

}  // namespace onefold::cuda
