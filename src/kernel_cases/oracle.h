// Arithmetic of the oracles: in double, with what bounds the error of a kernel in float.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/philox.h"
#include "kernel_cases/host_tensor.h"

namespace onefold::cases {

// Half the distance from 1 to the next float: the relative error of one rounding.
inline constexpr double kUnit = 0x1p-24;

// Bounds the relative error of the kernels' vector sums of n terms against the sum of magnitudes:
// at least 4 lanes in each of 4 accumulators, and then a tree of 16, make chains of n / 16 + 4
// additions; 4 more for the arithmetic of a term.
inline double sum_error(int64_t n) { return (static_cast<double>(n) / 16 + 8) * kUnit; }

// Central differences of a function of doubles: the oracle of every backward. With step h the error
// is about h² f''' / 6 + 1e-16 f / h: below 1e-8 for the functions here, whose values are of order
// 1 to 100.
inline constexpr double kDifferenceError = 1e-8;
Doubles gradient_of(const std::function<double(const Doubles&)>& f, Doubles x);

double dot(const Doubles& a, const Doubles& b);
Doubles plus(Doubles a, const Doubles& b);
Doubles magnitudes(Doubles x);
double largest(const Doubles& x);  // 0 of none

// Dropout's contract (kernels/cpu/dropout-inl.h), word for word.
float dropout_multiplier(PhiloxKey key, uint64_t sample, uint64_t element, float rate);

// For each row of a micro-batch, where in its sequence its document begins: documents of these
// lengths in turn, cut at the end of a sequence, and begun anew with each.
std::vector<int32_t> document_starts(int64_t batch, int64_t length,
                                     const std::vector<int64_t>& documents);
// The rows [begin, end) of each document of those starts.
struct DocumentRows {
  int64_t begin, end;
};
std::vector<DocumentRows> documents_of(const std::vector<int32_t>& starts, int64_t length);

}  // namespace onefold::cases
