// Attention of bf16 on a matrix unit (bf16_unit.h): the same tiles and orders of sums as attention
// of floats, with tensors as operands as they are. What the softmax makes is split into three bf16
// whose sum it is: products stay those of fp32.
#pragma once

#include "base/thread_pool.h"
#include "kernels/cpu/attention_heads.h"

namespace onefold::cpu {

// Floats of scratch, for each thread and for all.
int64_t unit_attention_forward_elems(const AttentionShape& shape);
int64_t unit_attention_backward_elems(const AttentionShape& shape, int threads);

void unit_attention_forward(ThreadPool& pool, const AttentionShape& shape, const ForwardTensors& t,
                            const Dropout& dropout, float* scratch);
void unit_attention_backward(ThreadPool& pool, const AttentionShape& shape,
                             const BackwardTensors& t, const Dropout& dropout, float* scratch);

}  // namespace onefold::cpu
