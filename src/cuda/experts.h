// The card's kernels of mixtures of experts, as ops.h has the others. cuda_experts.cpp checks
// shapes and types. Counts of rows are in the card's memory: grids are sized by what may come, and
// blocks that find nothing to do end.
#pragma once

#include "cuda/ops.h"

namespace onefold::cuda {

// As Routing; what a kernel does not use may be null.
struct RoutingArgs {
  int64_t tokens, choices, experts;
  int64_t rows;  // of sources
  int32_t* chosen;
  float* weights;
  int32_t *places, *sources, *offsets, *counts;
};

// router.cu
struct RouteArgs {
  const float* logits;
  int64_t stride;
  bool sigmoid, normalised;
  int32_t capacity;
  RoutingArgs routing;
};
void route(const RouteArgs& args, cudaStream_t stream);
// numbers: a stride apart.
void sort_rows(const int32_t* numbers, int64_t stride, const RoutingArgs& routing,
               cudaStream_t stream);
struct SpreadArgs {
  RoutingArgs from;
  int64_t blocks, rows;  // of a block
  int32_t *places, *sources, *numbers;
  int64_t numbers_stride;
  int32_t* needed;  // or null
};
void spread_rows(const SpreadArgs& args, cudaStream_t stream);

// router_backward.cu
struct RouteBackwardArgs {
  RouteArgs forward;
  const float* dweights;
  int64_t dweights_stride;
  float balance, z;
  const int32_t* of_parts;  // choices of each expert in each part, or null
  int64_t parts;            // 1 without
  const float* scale;       // may be null where both are 0
  Matrix dlogits;
  double *load, *scratch;  // load: or null
};
void route_backward(const RouteBackwardArgs& args, cudaStream_t stream);

// expert_rows.cu
void gather_rows(Matrix x, const RoutingArgs& routing, Matrix dst, cudaStream_t stream);
// base.data may be null.
void combine_rows(Matrix rows, const RoutingArgs& routing, bool weighted, Matrix base, Matrix dst,
                  cudaStream_t stream);
// dy.data and dweights: both or none.
void weigh_rows(const RoutingArgs& routing, Matrix dy, Matrix x, float* dweights,
                cudaStream_t stream);
// Of a matrix, those from a number on that is in the card's memory.
void clear_rows(Matrix dst, const int32_t* rows_used, cudaStream_t stream);
// Of `noise`, the key and the samples. `places`: of each row in its sample; null: row % length.
void jitter(Matrix x, const Mask& noise, const int32_t* places, float rate, int64_t length,
            Matrix dst, cudaStream_t stream);

// grouped_gemm.cu: plain tiles, which take every type and shape.
struct GroupedArgs {
  Matrix a, b, dst;
  const int32_t* offsets;
  int64_t groups;
  bool a_transposed, b_transposed, accumulate;
};
void grouped_gemm(const GroupedArgs& args, cudaStream_t stream);

}  // namespace onefold::cuda
