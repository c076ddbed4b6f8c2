// What a card can do that kernels are chosen and launched by.
#pragma once

#include <cstdint>

namespace onefold::cuda {

struct CardTraits {
  bool clusters = false;     // of blocks; and kernels that are launched early (Hopper, and later)
  int64_t shared_bytes = 0;  // that a block may ask for
};

// Of the calling thread's card.
const CardTraits& card_traits();

// Says so where a block cannot have as much.
void require_shared_memory(int64_t bytes);

}  // namespace onefold::cuda
