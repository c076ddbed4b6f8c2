// What kernels.h passes to a kernel, checked and made into what the card's kernels take (ops.h).
// require_*: InternalError where tensors do not fit each other.
#pragma once

#include <initializer_list>

#include "cuda/ops.h"
#include "kernels/kernels.h"

namespace onefold::cuda {

Positions positions_of(const RowPositions& p, int64_t table_rows);
// Contiguous tensors as one row: nothing then depends on how wide they are.
Tensor joined(const Tensor& t, bool contiguous);
Mask mask_of(const Dropout& dropout);
Curve curve_of(Activation act);
// With its slack, if that makes an odd vocabulary one that the fast kernels take.
Gemm padded(Gemm g);

AttentionArgs attention_args(const AttentionShape& s, const Tensor& q, const Tensor& k,
                             const Tensor& v, const Tensor& out, const Tensor& lse,
                             const Dropout& dropout);

SteppedArgs stepped_args(const char* what, const Stepped& s);
AdamWFactors factors_of(const AdamW& hyper);
DirectionFactors factors_of(const Direction& hyper);
Codes8 codes_of(const Moment& moment);

void require_shape(const char* what, const Tensor& t, int64_t rows, int64_t cols);
void require_elems(const char* what, const Tensor& t, int64_t elems);
void require_scratch(const char* what, const Tensor& scratch, int64_t bytes);
// That tensors, where there are any, are of the type of the first.
void require_type(const char* what, const Tensor& first, std::initializer_list<Tensor> others);
// That gradients of parameters, where there are any, are of the activations' type, or f32; all of
// one.
void require_gradients(const char* what, const Tensor& x, std::initializer_list<Tensor> gradients);
// That a table of `table_rows` has every position that there can be.
void require_positions(const RowPositions& positions, int64_t rows, int64_t table_rows);
void require_groups(const Tensor& x, int64_t groups);
void require_moment(const char* what, const Stepped& s, const Moment& moment);
void require_wide_moment(const char* what, const Stepped& s, Tensor moment);

}  // namespace onefold::cuda
