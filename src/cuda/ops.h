// The card's kernels as free functions over pointers, sizes, strides and a stream: one file (.cu)
// for each family, compiled by nvcc. cuda_kernels.cpp checks shapes and binds them to the Kernels
// interface, whose contracts they keep.
//
// The compiler does not fuse multiplications and additions on its own (--fmad=false): where a
// kernel fuses, it says so (fmaf). All sums have an order that depends on shapes alone; nothing is
// added atomically, except counts. Values that the CPU would refuse with an error (a token that the
// table lacks) become NaN here, which the step's check of finite values finds.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/philox.h"

namespace onefold::cuda {

// Rows a stride apart.
struct Matrix {
  float* data;
  int64_t rows, cols, stride;
  constexpr float* row(int64_t index) const { return data + index * stride; }
};

// Dropout's mask, as kernels/cpu/dropout-inl.h defines it: an element is kept where the upper 24
// bits of its word reach the threshold.
struct Mask {
  PhiloxKey key;
  const int64_t* samples;
  int32_t threshold;  // 0: dropout is off
  float scale;
};

// As RowPositions; starts may be null.
struct Positions {
  int64_t first, length;
  const int32_t* starts;
};

// elementwise.cu
void fill(Matrix dst, float value, cudaStream_t stream);
void add(Matrix a, Matrix b, Matrix dst, cudaStream_t stream);
void add_bias(const float* bias, Matrix dst, cudaStream_t stream);  // to each row
void dropout(Matrix x, const Mask& mask, int64_t length, const Matrix* residual, Matrix dst,
             cudaStream_t stream);
void rope(Matrix x, int64_t heads, Matrix table, const Positions& positions, bool inverse,
          cudaStream_t stream);

// activation.cu
enum class Curve : uint8_t { relu, gelu, gelu_tanh, silu };
void activation_forward(Curve curve, bool gated, Matrix x, Matrix dst, cudaStream_t stream);
// y.data may be null.
void activation_backward(Curve curve, bool gated, Matrix x, Matrix dy, Matrix dx, Matrix y,
                         cudaStream_t stream);

// norm.cu. `centered`: LayerNorm; else RMSNorm. bias, dweight and dbias may be null.
void norm_forward(bool centered, Matrix x, int64_t groups, const float* weight, const float* bias,
                  float eps, Matrix dst, cudaStream_t stream);
struct NormBackward {
  bool centered;
  Matrix x;
  int64_t groups;
  const float* weight;
  float eps;
  Matrix dy, dx;
  bool accumulate_dx;
  float* dweight;
  float* dbias;
  bool accumulate_weights;
  float* scratch;
};
void norm_backward(const NormBackward& args, cudaStream_t stream);
int64_t norm_backward_scratch_bytes(int64_t rows, int64_t cols, int64_t groups);

// attention_forward.cu, attention_backward.cu
struct AttentionArgs {
  int64_t batch, query_length, key_length, heads, kv_heads, head_dim;
  const int32_t* starts;  // may be null
  Mask mask;
  Matrix q, k, v, out, lse;
};
struct AttentionGradients {
  Matrix dout, dq, dk, dv;
  float* scratch;
};
inline constexpr int64_t kMostHeadDim = 256;
void attention_forward(const AttentionArgs& args, cudaStream_t stream);
void attention_backward(const AttentionArgs& args, const AttentionGradients& gradients,
                        cudaStream_t stream);
int64_t attention_backward_scratch_bytes(int64_t batch, int64_t heads, int64_t query_length);

// embedding.cu. positions.data, dpositions.data: may be null.
void embedding_forward(const int32_t* tokens, Matrix table, Matrix position_table,
                       const Positions& positions, Matrix dst, cudaStream_t stream);
struct EmbeddingBackward {
  const int32_t* tokens;
  Matrix dx;
  Positions positions;
  Matrix dtable;
  bool accumulate_table;
  Matrix dpositions;
  bool accumulate_positions;
  int32_t* scratch;
};
void embedding_backward(const EmbeddingBackward& args, cudaStream_t stream);
int64_t embedding_backward_scratch_bytes(int64_t rows, int64_t vocabulary);

// cross_entropy.cu. gradient_scale: null where no gradient is wanted.
void cross_entropy(Matrix logits, const int32_t* targets, const float* gradient_scale,
                   float* losses, cudaStream_t stream);

// sums.cu
void column_sum(Matrix x, float* dst, bool accumulate, float* scratch, cudaStream_t stream);
int64_t column_sum_scratch_bytes(int64_t rows, int64_t cols);
void sum(const float* x, int64_t elems, double* dst, cudaStream_t stream);
void sum(const double* x, int64_t elems, double* dst, cudaStream_t stream);
void sum_squares(const float* x, int64_t elems, double* dst, double* scratch, cudaStream_t stream);
int64_t sum_squares_scratch_bytes(int64_t elems);

// optimizer.cu: operation by operation what kernels/cpu/optimizer.cpp does on a processor with
// fused multiply-add, so that host and card have the same bits.
struct ControlFlags {
  const float* factor;
  const int32_t* finite;
};
struct ClipArgs {
  const double* sums;
  int64_t count, squares;
  double limit, eps;
  double* norm;
  float* factor;
  int32_t* finite;
};
void clip(const ClipArgs& args, cudaStream_t stream);
struct AdamWFactors {
  float beta1, rest1, beta2, rest2, keep, step, inv_bc2, eps;
  float l2;  // times the parameter is added to the gradient; 0: nothing is
};
void adamw(const AdamWFactors& factors, const ControlFlags& control, int64_t elems, float* params,
           const float* grads, float* moment1, float* moment2, cudaStream_t stream);
struct SgdFactors {
  float rate, decay, momentum;
  bool nesterov, first;
};
// momentum: null if there is none.
void sgd(const SgdFactors& factors, const ControlFlags& control, int64_t elems, float* params,
         const float* grads, float* momentum, cudaStream_t stream);

}  // namespace onefold::cuda
