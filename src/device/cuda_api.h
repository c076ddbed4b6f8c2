// What the CUDA plugin (src/cuda, libonefold_cuda.so) gives the rest of Onefold: the cards, and a
// way to open a device on one. Everything that knows CUDA is behind it, so the program starts where
// CUDA is missing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace onefold {

class Device;

// As the driver describes it; numbers count the cards that this process sees.
struct CudaCard {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int64_t bytes = 0;
  std::string problem;  // why it cannot be used; empty: it can
};

struct CudaApi {
  // ONEFOLD_INTERFACE_HASH (cmake/OnefoldInterface.cmake) as the plugin was built with. It is the
  // first member for good: a plugin of another build is refused by it.
  const char* interface_hash;
  // Throws UserError where there is no driver or no card.
  std::vector<CudaCard> (*cards)();
  // The caller owns the device. Throws as cards() does, and for a card that is not there or that
  // the plugin has no code for.
  Device* (*open)(int card, int threads);
  // What runs may take of a card's memory now. Throws as open does.
  int64_t (*free_bytes)(int card);
};

}  // namespace onefold

// The plugin's only symbol.
extern "C" const onefold::CudaApi* onefold_cuda_api();
