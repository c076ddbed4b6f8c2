// Kernels whose arithmetic is in double, on the host. What they store is rounded to the type of its
// tensor: none for f64, so that a model run with them is a reference; once for bf16 and f16, which
// is what rounding alone makes of the same graph.
#pragma once

#include <memory>

#include "kernels/kernels.h"

namespace onefold::test {

// Of what a model's units call without dropout and adapters; anything else throws.
std::unique_ptr<Kernels> make_double_kernels();

// An element of a tensor of any floating-point type.
double number_at(const Tensor& x, int64_t row, int64_t col);
void set_number(const Tensor& x, int64_t row, int64_t col, double value);

}  // namespace onefold::test
