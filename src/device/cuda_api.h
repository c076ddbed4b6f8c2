// What the CUDA plugin (src/cuda, libonefold_cuda.so) gives the rest of Onefold: a way to open the
// device. Everything that knows CUDA is behind it, so the program starts where CUDA is missing.
#pragma once

namespace onefold {

class Device;

// Changes with every change of the interfaces that a plugin implements (Device, Kernels, LaneQueue,
// MemorySource): a plugin of another build is refused.
inline constexpr int kCudaApiVersion = 1;

struct CudaApi {
  int version;
  // The caller owns the device. Throws UserError where there is no driver or no card, or one that
  // the plugin has no code for.
  Device* (*open)(int threads);
};

}  // namespace onefold

// The plugin's only symbol.
extern "C" const onefold::CudaApi* onefold_cuda_api();
