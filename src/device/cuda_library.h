// Finds the CUDA plugin, loads it once and opens its device.
#pragma once

#include <memory>

#include "device/device.h"

namespace onefold {

// Throws a UserError that says what is missing: the plugin, CUDA's libraries, the driver or a card.
std::unique_ptr<Device> open_cuda_device(int threads);
// What a run may take of the card's memory now; throws likewise.
int64_t free_cuda_bytes();

}  // namespace onefold
