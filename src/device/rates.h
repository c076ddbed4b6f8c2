// A device's ceilings, measured: what matrix products and memory reach on it here and now. Rates
// elsewhere are printed as shares of these, not of a data sheet.
#pragma once

#include <functional>

#include "device/device.h"

namespace onefold {

// GFLOP/s of one large product of this type; median of `repeats`. A multiplication and an addition
// are two operations.
double measure_product_gflops(Device& device, DType type, int repeats = 7);

// Seconds that a device with memory of its own takes for what `call` posts to compute() and waits
// for, when the host is ahead of it: behind products that take `ahead` seconds. Where a call by
// itself takes longer, the device waits for the host.
double measure_behind_products(Device& device, DType type, double ahead, int repeats,
                               const std::function<void()>& call);

// GB/s read and written by a sum of long vectors; median of `repeats`.
double measure_memory_gb_per_s(Device& device, int repeats = 7);

// Numbers between -1 and 1: a card computes faster with all the same.
void fill_with_random(Device& device, Tensor tensor);

}  // namespace onefold
