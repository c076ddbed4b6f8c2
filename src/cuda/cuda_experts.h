// The card's kernels of mixtures of experts behind the Kernels interface: shapes are checked here.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/kernels.h"

namespace onefold::cuda {

void run_route(const Route& args, cudaStream_t stream);
void run_route_backward(const RouteBackward& args, int64_t scratch_bytes, cudaStream_t stream);
void run_gather_rows(Tensor x, const Routing& routing, Tensor dst, cudaStream_t stream);
void run_combine_rows(Tensor rows, const Routing& routing, bool weighted, Tensor base, Tensor dst,
                      cudaStream_t stream);
void run_weigh_rows(const Routing& routing, Tensor dy, Tensor x, Tensor dweights,
                    cudaStream_t stream);
void run_spread_rows(const SpreadRows& args, cudaStream_t stream);
void run_sort_rows(Tensor numbers, const Routing& routing, cudaStream_t stream);
void run_grouped_gemm(const GroupedGemm& args, cudaStream_t stream);
void run_jitter(Tensor x, const Dropout& noise, int64_t length, Tensor dst, cudaStream_t stream);

}  // namespace onefold::cuda
