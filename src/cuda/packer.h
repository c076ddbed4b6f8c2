// Packets of the card's memory, on a lane's stream.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "cuda/card.h"
#include "kernels/packer.h"

namespace onefold::cuda {

std::unique_ptr<Packer> make_packer(const Card& card, cudaStream_t stream);

}  // namespace onefold::cuda
