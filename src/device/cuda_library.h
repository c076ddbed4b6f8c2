// Finds the CUDA plugin, loads it once and opens its devices.
#pragma once

#include <memory>
#include <vector>

#include "device/cuda_api.h"
#include "device/device.h"

namespace onefold {

// Each throws a UserError that says what is missing: the plugin, CUDA's libraries, the driver or
// the card.
std::vector<CudaCard> cuda_cards();
std::unique_ptr<Device> open_cuda_device(int card, int threads);
// What runs may take of a card's memory now.
int64_t free_cuda_bytes(int card);

}  // namespace onefold
