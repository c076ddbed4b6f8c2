// What the CUDA plugin (src/cuda, libonefold_cuda.so) gives the rest of Onefold: a way to open the
// device. Everything that knows CUDA is behind it, so the program starts where CUDA is missing.
#pragma once

#include <cstdint>

namespace onefold {

class Device;

struct CudaApi {
  // ONEFOLD_INTERFACE_HASH (cmake/OnefoldInterface.cmake) as the plugin was built with. It is the
  // first member for good: a plugin of another build is refused by it.
  const char* interface_hash;
  // The caller owns the device. Throws UserError where there is no driver or no card, or one that
  // the plugin has no code for.
  Device* (*open)(int threads);
  // What a run may take of the card's memory now. Throws as open does.
  int64_t (*free_bytes)();
};

}  // namespace onefold

// The plugin's only symbol.
extern "C" const onefold::CudaApi* onefold_cuda_api();
