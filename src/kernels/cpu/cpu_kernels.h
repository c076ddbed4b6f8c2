// The CPU's kernels as free functions over views and a thread pool, one file for each family
// (norm.cpp, activation.cpp, ...). cpu_kernels.cpp binds them to the Kernels interface. Each file
// compiles once for each SIMD target (Highway's foreach_target) and chooses at run time. Threading
// rule: chunks are cut by shape alone (see chunk.h).
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "kernels/kernels.h"

namespace onefold::cpu {

void gemm(ThreadPool& pool, const Gemm& args);
// `on_unit`: of a processor that multiplies bf16 itself (bf16_unit.h).
int64_t gemm_scratch_bytes(const Gemm& args, int threads, bool on_unit);
int64_t gemm_row_unit(int64_t rows, int64_t cols);

void norm_forward(ThreadPool& pool, Norm norm, Tensor x, int64_t groups, Tensor weight, Tensor bias,
                  float eps, Tensor dst);
void norm_backward(ThreadPool& pool, Norm norm, Tensor x, int64_t groups, Tensor weight, float eps,
                   Tensor dy, Tensor dx, bool accumulate_dx, Tensor dweight, Tensor dbias,
                   bool accumulate_weights, Tensor scratch);
int64_t norm_backward_scratch_bytes(int64_t rows, int64_t cols, int64_t groups);

void activation_forward(ThreadPool& pool, Activation act, bool gated, Tensor x, Tensor dst);
void activation_backward(ThreadPool& pool, Activation act, bool gated, Tensor x, Tensor dy,
                         Tensor dx, Tensor y);

void merge_attention(ThreadPool& pool, Tensor out, Tensor lse, Tensor more, Tensor more_lse);
void rope(ThreadPool& pool, Tensor x, int64_t heads, Tensor table, const RowPositions& positions,
          bool inverse);

void attention_forward(ThreadPool& pool, const AttentionShape& shape, Tensor q, Tensor k, Tensor v,
                       Tensor out, Tensor lse, const Dropout& dropout, Tensor scratch);
void attention_backward(ThreadPool& pool, const AttentionShape& shape, Tensor q, Tensor k, Tensor v,
                        Tensor out, Tensor dout, Tensor lse, Tensor dq, Tensor dk, Tensor dv,
                        const Dropout& dropout, Tensor scratch);
int64_t attention_forward_scratch_bytes(const AttentionShape& shape, int threads, bool on_unit);
int64_t attention_backward_scratch_bytes(const AttentionShape& shape, int threads, bool on_unit);

void dropout(ThreadPool& pool, Tensor x, const Dropout& dropout, int64_t length, Tensor residual,
             Tensor dst);

void embedding_forward(ThreadPool& pool, Tensor tokens, Tensor table, Tensor position_table,
                       const RowPositions& positions, Tensor dst);
void embedding_backward(ThreadPool& pool, Tensor tokens, Tensor dx, const RowPositions& positions,
                        Tensor dtable, bool accumulate_table, Tensor dpositions,
                        bool accumulate_positions, Tensor scratch);
int64_t embedding_backward_scratch_bytes(int64_t rows, int64_t vocabulary);

void share_softmax(ThreadPool& pool, Tensor logits, Tensor targets, Tensor stats);
void share_cross_entropy(ThreadPool& pool, Tensor logits, Tensor targets, Tensor stats,
                         Tensor gradient_scale, Tensor losses);
void cross_entropy(ThreadPool& pool, Tensor logits, Tensor targets, Tensor gradient_scale,
                   Tensor losses);

void route(ThreadPool& pool, const Route& args);
void route_backward(ThreadPool& pool, const RouteBackward& args);
int64_t route_backward_scratch_bytes(int64_t tokens, int64_t experts);
void gather_rows(ThreadPool& pool, Tensor x, const Routing& routing, Tensor dst);
void combine_rows(ThreadPool& pool, Tensor rows, const Routing& routing, bool weighted, Tensor base,
                  Tensor dst);
void weigh_rows(ThreadPool& pool, const Routing& routing, Tensor dy, Tensor x, Tensor dweights);
void spread_rows(const SpreadRows& args);
void sort_rows(Tensor numbers, const Routing& routing);
void grouped_gemm(ThreadPool& pool, const GroupedGemm& args);
int64_t grouped_gemm_scratch_bytes(const GroupedGemm& args, int threads);
void jitter(ThreadPool& pool, Tensor x, const Dropout& noise, int64_t length, Tensor dst);
void soft_cap(ThreadPool& pool, Tensor x, float cap, Tensor dst);
void soft_cap_backward(ThreadPool& pool, Tensor y, float cap, Tensor dy, Tensor dx);

void column_sum(ThreadPool& pool, Tensor x, Tensor dst, bool accumulate, Tensor scratch);
int64_t column_sum_scratch_bytes(int64_t rows, int64_t cols);
void copy(ThreadPool& pool, Tensor src, Tensor dst);
void fill(ThreadPool& pool, Tensor dst, float value);
void add(ThreadPool& pool, Tensor a, Tensor b, Tensor dst);
void scale(ThreadPool& pool, Tensor x, float factor, Tensor dst);
void sum(Tensor x, Tensor dst);
void sum_squares(ThreadPool& pool, Tensor x, Tensor dst, Tensor scratch);
int64_t sum_squares_scratch_bytes(int64_t elems);

void clip(const Clip& args);
void adamw(ThreadPool& pool, const AdamW& hyper, const StepControl& control, const Stepped& stepped,
           const Moment& moment1, const Moment& moment2);
void sgd(ThreadPool& pool, const Sgd& hyper, const StepControl& control, const Stepped& stepped,
         Tensor momentum);
void clip_each(const ClipEach& args);
void clamp(ThreadPool& pool, const Clamp& one, float limit);
void normalise(ThreadPool& pool, Tensor x, Tensor squares, float eps, Tensor dst);
void lion(ThreadPool& pool, const StepControl& control, const LionStep& step);
void direction(ThreadPool& pool, const StepControl& control, const DirectionStep& step);
void frozen_lamb(ThreadPool& pool, const StepControl& control, const FrozenLambStep& step);
void tensor_trust(const StepControl& control, const TensorTrust& one);
void move(ThreadPool& pool, const StepControl& control, const MoveStep& step);
void factored(ThreadPool& pool, const StepControl& control, const Factored& one);
void factor_squares(ThreadPool& pool, const FactorSquares& one);
void blend(const StepControl& control, const Blend& one);

}  // namespace onefold::cpu
