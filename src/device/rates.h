// A device's ceilings, measured: what matrix products and memory reach on it here and now. Rates
// elsewhere are printed as shares of these, not of a data sheet.
#pragma once

#include "device/device.h"

namespace onefold {

// GFLOP/s of one large product of this type; median of `repeats`. A multiplication and an addition
// are two operations.
double measure_product_gflops(Device& device, DType type, int repeats = 7);

// GB/s read and written by a sum of long vectors; median of `repeats`.
double measure_memory_gb_per_s(Device& device, int repeats = 7);

// Numbers between -1 and 1: a card computes faster with all the same.
void fill_with_random(Device& device, Tensor tensor);

}  // namespace onefold
