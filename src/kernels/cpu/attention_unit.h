// Attention of bf16 on a matrix unit (bf16_unit.h): the same tiles and orders of sums as attention
// of floats, with tensors as operands as they are. What the softmax makes is split into several
// bf16, which are multiplied in its place: into three whose sum it is forward, into two backward.
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
