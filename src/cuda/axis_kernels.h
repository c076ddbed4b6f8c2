// The kernels of divided units and sequences: checks of what they are given, in front of the free
// functions of ops.h.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/kernels.h"

namespace onefold::cuda {

void share_softmax(Tensor logits, Tensor targets, Tensor stats, cudaStream_t stream);
void share_cross_entropy(Tensor logits, Tensor targets, Tensor stats, Tensor gradient_scale,
                         Tensor losses, cudaStream_t stream);
void merge_attention(Tensor out, Tensor lse, Tensor more, Tensor more_lse, cudaStream_t stream);

// That the places of rows, if there are any, are as many.
void require_places(const Tensor& places, int64_t rows);

}  // namespace onefold::cuda
