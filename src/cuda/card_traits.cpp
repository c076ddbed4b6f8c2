#include "cuda/card_traits.h"

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "cuda/check.h"

namespace onefold::cuda {
namespace {

int64_t attribute(cudaDeviceAttr which, int card) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, card), "ask what the card can do");
  return value;
}

}  // namespace

const CardTraits& card_traits() {
  thread_local int known = -1;
  thread_local CardTraits traits;
  int card = 0;
  check(cudaGetDevice(&card), "ask for the thread's card");
  if (card != known) {
    traits = {attribute(cudaDevAttrComputeCapabilityMajor, card) >= 9,
              attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, card)};
    known = card;
  }
  return traits;
}

void require_shared_memory(int64_t bytes) {
  const int64_t most = card_traits().shared_bytes;
  if (bytes > most)
    user_error(
        "a kernel needs {} KiB of a block's shared memory, and this card has {}; with cuDNN, and "
        "without dropout inside attention, heads of more than 64 elements need less",
        bytes / 1024, most / 1024);
}

}  // namespace onefold::cuda
