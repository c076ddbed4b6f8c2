// The card's kernels as free functions over pointers, sizes, strides and a stream: one file (.cu)
// for each family, compiled by nvcc. cuda_kernels.cpp checks shapes and types and binds them to the
// Kernels interface, whose contracts they keep.
//
// Kernels are templates over the type of elements. They compute in fp32 and round once, to the
// nearest even, where they store. The compiler does not fuse multiplications and additions on its
// own (--fmad=false): where a kernel fuses, it says so (fmaf). All sums have an order that depends
// on shapes and types alone; nothing is added atomically, except counts. Values that the CPU would
// refuse with an error (a token that the table lacks) become NaN here, which the step's check of
// finite values finds.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "base/philox.h"

namespace onefold::cuda {

// Of elements.
enum class Type : uint8_t { f32, bf16, f16 };

// Rows a stride apart.
struct Matrix {
  void* data;
  int64_t rows, cols, stride;
  Type type;
};

// Consecutive elements, such as a bias; data may be null.
struct Vector {
  void* data;
  Type type;
};

// Dropout's mask, as kernels/cpu/dropout-inl.h defines it: an element is kept where the upper 24
// bits of its word reach the threshold.
struct Mask {
  PhiloxKey key;
  const int64_t* samples;
  int32_t threshold;  // 0: dropout is off
  float scale;
};

// As RowPositions; starts and places may be null. Of a table of `end` rows.
struct Positions {
  int64_t first, length;
  const int32_t *starts, *places;
  int64_t end;
};

// parts.cu: rows that are a part of their sequences, or columns of their rows, and attention over
// parts of their keys.
struct Parts {
  const int32_t* places;  // of rows; may be null
  int64_t first_col, all_cols;
};
void dropout_at(const Parts& parts, Matrix x, const Mask& mask, int64_t length,
                const Matrix* residual, Matrix dst, cudaStream_t stream);
// lse: [heads, rows], rows a stride apart.
struct Lse {
  float* data;
  int64_t heads, stride;
};
void merge_attention(Matrix out, const Lse& lse, Matrix more, const Lse& more_lse,
                     cudaStream_t stream);

// elementwise.cu
void fill(Matrix dst, float value, cudaStream_t stream);
void add(Matrix a, Matrix b, Matrix dst, cudaStream_t stream);
void scale(Matrix x, float factor, Matrix dst, cudaStream_t stream);
void soft_cap(Matrix x, float cap, Matrix dst, cudaStream_t stream);
void soft_cap_backward(Matrix y, float cap, Matrix dy, Matrix dx, cudaStream_t stream);
void add_bias(Vector bias, Matrix dst, cudaStream_t stream);  // to each row
void dropout(Matrix x, const Mask& mask, int64_t length, const Matrix* residual, Matrix dst,
             cudaStream_t stream);
void rope(Matrix x, int64_t heads, Matrix table, const Positions& positions, bool inverse,
          cudaStream_t stream);

// activation.cu
enum class Curve : uint8_t { relu, gelu, gelu_tanh, silu, sigmoid, identity };
void activation_forward(Curve curve, bool gated, Matrix x, Matrix dst, cudaStream_t stream);
// y.data may be null.
void activation_backward(Curve curve, bool gated, Matrix x, Matrix dy, Matrix dx, Matrix y,
                         cudaStream_t stream);
// The same with dbias (+)= the sums of dx over rows.
struct BiasSums {
  Vector dst;
  bool accumulate;
  float* scratch;
};
void activation_backward(Curve curve, bool gated, Matrix x, Matrix dy, Matrix dx, Matrix y,
                         const BiasSums& dbias, cudaStream_t stream);

// norm.cu, norm_backward.cu. `centered`: LayerNorm; else RMSNorm. `plus_one`: weights are stored
// less one. bias, dweight, dbias and dbefore may be null.
void norm_forward(bool centered, bool plus_one, Matrix x, int64_t groups, Vector weight,
                  Vector bias, float eps, Matrix dst, cudaStream_t stream);
struct NormBackward {
  bool centered, plus_one;
  Matrix x;
  int64_t groups;
  Vector weight;
  float eps;
  Matrix dy, dx;
  bool accumulate_dx;
  Vector dweight, dbias, dbefore;
  bool accumulate_weights;
  float* scratch;
};
void norm_backward(const NormBackward& args, cudaStream_t stream);

// attention_forward.cu, attention_backward.cu: the tiled kernels, which take every shape.
struct AttentionArgs {
  int64_t batch, query_length, key_length, heads, kv_heads, head_dim;
  const int32_t* starts;  // may be null
  Mask mask;
  Matrix q, k, v, out;
  float* lse;
  int64_t lse_stride;
  int64_t window;  // as AttentionShape's
  float scale;     // of scores, never 0
  float soft_cap;
  float alibi;  // these as AttentionShape's
  int64_t alibi_heads, first_head;
  bool causal;
};
struct AttentionGradients {
  Matrix dout, dq, dk, dv;
  float* scratch;
};
inline constexpr int64_t kMostHeadDim = 256;
void attention_forward(const AttentionArgs& args, cudaStream_t stream);
void attention_backward(const AttentionArgs& args, const AttentionGradients& gradients,
                        cudaStream_t stream);

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

// cross_entropy.cu. gradient_scale: null where no gradient is wanted.
void cross_entropy(Matrix logits, const int32_t* targets, const float* gradient_scale,
                   float* losses, cudaStream_t stream);

// share_softmax.cu. stats: [3, rows], or of all shares.
void share_softmax(Matrix logits, const int32_t* targets, float* stats, cudaStream_t stream);
void share_cross_entropy(Matrix logits, const int32_t* targets, const float* stats, int64_t shares,
                         const float* gradient_scale, float* losses, cudaStream_t stream);

// sums.cu
void column_sum(Matrix x, Vector dst, bool accumulate, float* scratch, cudaStream_t stream);
inline constexpr int kSumLanes = 256;  // as kernels/kernels.h has it
void sum(const float* x, int64_t elems, double* dst, cudaStream_t stream);
void sum(const double* x, int64_t elems, double* dst, cudaStream_t stream);
struct SquaresArgs {
  Vector x;
  int64_t elems;
  double* dst;
};
// And then total = sum() of `count` doubles, `all`. scratch: a double for each chunk of each
// tensor.
void sum_squares(std::span<const SquaresArgs> list, const double* all, int64_t count, double* total,
                 double* scratch, cudaStream_t stream);

// optimizer.cu, optimizer8.cu: operation by operation what kernels/cpu/optimizer.cpp does on a
// processor with fused multiply-add, so that host and card have the same bits.
struct ControlFlags {
  const float* factor;
  const int32_t* finite;
};
struct ClipArgs {
  const double* sums;
  int64_t count, squares;
  double limit, eps, scale;
  double* norm;
  float* factor;
  int32_t* finite;
};
void clip(const ClipArgs& args, cudaStream_t stream);
struct ClipEachArgs {
  const double *squares, *weights;  // weights: or null
  int64_t count;
  double limit, least, eps, scale;
  float* factors;
};
void clip_each(const ClipEachArgs& args, cudaStream_t stream);
// What is stepped: `master`, or `params` where that is null.
struct SteppedArgs {
  int64_t elems;
  Vector params, grads;
  float* master;
  bool stochastic;  // rounding, of params without a master and of moments: element i draws number
                    // first + i
  PhiloxKey key;
  int64_t first;
  const float* factor;  // in the place of control's; or null
};
struct AdamWFactors {
  float beta1, rest1, beta2, rest2, keep, step, inv_bc2, eps;
  float l2;  // times the parameter is added to the gradient; 0: nothing is
};
struct AdamWArgs {
  AdamWFactors factors;
  SteppedArgs stepped;
  Vector moment1, moment2;
};
void adamw(const ControlFlags& control, std::span<const AdamWArgs> list, cudaStream_t stream);
// Codes of 8 bits with a scale for each 256.
struct Codes8 {
  uint8_t* values;
  float* scales;
};
struct AdamW8Args {
  AdamWFactors factors;
  SteppedArgs stepped;
  Codes8 moment1, moment2;
};
void adamw8(const ControlFlags& control, std::span<const AdamW8Args> list, cudaStream_t stream);
struct SgdFactors {
  float rate, decay, momentum;
  bool nesterov, first;
};
struct SgdArgs {
  SgdFactors factors;
  SteppedArgs stepped;
  Vector momentum;  // its data is null if there is none
};
void sgd(const ControlFlags& control, std::span<const SgdArgs> list, cudaStream_t stream);

// optimizer_rules.cu: the same of kernels/cpu/optimizer_rules.cpp.
struct ClampArgs {
  Vector x;
  int64_t elems;
  double* dst;
};
void clamp(std::span<const ClampArgs> list, float limit, cudaStream_t stream);
void normalise(const float* x, const double* squares, float eps, int64_t elems, float* dst,
               cudaStream_t stream);
struct LionFactors {
  float rate, keep, beta1, rest1, beta2, rest2;
};
struct LionArgs {
  LionFactors factors;
  SteppedArgs stepped;
  Vector momentum;
};
void lion(const ControlFlags& control, std::span<const LionArgs> list, cudaStream_t stream);
enum class DirectionRule : uint8_t { lamb, lars, muon, adafactor };
struct DirectionFactors {
  DirectionRule rule;
  float beta1, rest1, beta2, rest2, eps, decay;
  bool eps_inside, nesterov;
  float rate, trust;
};
struct DirectionArgs {
  DirectionFactors factors;
  SteppedArgs stepped;
  float* dst;
  Vector moment1, moment2;  // the second's data is null if there is none
  const double* squares;    // of the parameter and its gradient; null where they are not wanted
};
void direction(const ControlFlags& control, std::span<const DirectionArgs> list,
               cudaStream_t stream);
struct MoveFactors {
  float keep, rate, least, most;
  int64_t elems;
};
struct MoveArgs {
  MoveFactors factors;
  SteppedArgs stepped;    // gradients: the direction
  const double* squares;  // of the parameter and the direction, or null
  const double* ratio;    // in the place of what follows from squares; or null
};
void move(const ControlFlags& control, std::span<const MoveArgs> list, cudaStream_t stream);

// frozen_lamb.cu
struct FrozenLambFactors {
  float beta1, rest1, beta2, rest2, eps, decay;
  bool eps_inside, arrives;
};
struct FrozenLambArgs {
  FrozenLambFactors factors;
  SteppedArgs stepped;
  float *dst, *plain;  // plain may be null
  Vector moment1, moment2, fresh;
  const float* ratios;  // the last factor: as kernels/kernels.h has it
  double* largest;
};
void frozen_lamb(const ControlFlags& control, std::span<const FrozenLambArgs> list,
                 cudaStream_t stream);
struct TensorTrustArgs {
  const double *squares, *largest;  // largest: null before the second moment stays
  int64_t ranks;
  float* ratios;
  double* dst;
  double least, most, beta, least_factor, most_factor, threshold;
};
void tensor_trust(const ControlFlags& control, const TensorTrustArgs& args, cudaStream_t stream);

// adafactor.cu
struct FactoredArgs {
  Vector grads;
  int64_t elems, first, cols;
  const float *rows, *columns;
  int64_t row_count;
  const double* sum;
  float eps;
  const float* factor;  // in the place of control's; or null
  float* dst;
};
void factored(const ControlFlags& control, const FactoredArgs& args, cudaStream_t stream);
struct FactorSquaresArgs {
  Vector x;
  int64_t elems, first, cols;
  double *rows, *columns;
};
void factor_squares(const FactorSquaresArgs& args, cudaStream_t stream);
struct BlendArgs {
  const double* x;
  int64_t elems;
  double times, share;
  const float* factor;  // in the place of control's; or null
  float* dst;
};
void blend(const ControlFlags& control, const BlendArgs& args, cudaStream_t stream);

}  // namespace onefold::cuda
