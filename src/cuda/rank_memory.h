// The card's memory as ranks exchange it: copies and sums on a lane's stream.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "cuda/card.h"
#include "kernels/rank_memory.h"

namespace onefold::cuda {

std::unique_ptr<RankMemory> make_rank_memory(const Card& card, cudaStream_t stream);

}  // namespace onefold::cuda
