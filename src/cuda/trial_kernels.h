// What trials of products need on the card.
#pragma once

#include "cuda/ops.h"

namespace onefold::cuda {

// Numbers in [-1, 1) that follow from the seed and their place, all bits of their fraction in use.
void fill_random(Vector dst, int64_t elems, uint32_t seed, cudaStream_t stream);
// *digest += a number that follows from all words and their places; the order of additions does
// not matter to it.
void add_digest(const uint32_t* words, int64_t count, unsigned long long* digest,
                cudaStream_t stream);

}  // namespace onefold::cuda
