#include "device/cuda_library.h"

#include <dlfcn.h>

#include "base/error.h"
#include "base/plugin.h"
#include "device/cuda_api.h"
#include "interface_hash.h"

namespace onefold {
namespace {

constexpr const char* kPlugin = "libonefold_cuda.so";

// Never unloaded: devices of it may still be open.
const CudaApi& load() {
  const std::string file = find_plugin(kPlugin, ONEFOLD_LIBDIR);
  if (file.empty())
    user_error(
        "this build has no device cuda: there is no {} beside the program. Install the CUDA "
        "toolkit (13 or later) and build again, or use the device cpu",
        kPlugin);
  void* plugin = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (plugin == nullptr) {
    // What it needs may be in Python's wheels: what is loaded already is not looked for.
    for (const char* needed : {"libcudart.so.13", "libcublasLt.so.13"})
      open_library(needed, RTLD_NOW | RTLD_GLOBAL);
    plugin = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (plugin == nullptr)
    user_error(
        "{} does not load: {}. Install the CUDA libraries that Onefold was built with (cudart and "
        "cuBLAS; the system's, or the wheels nvidia-cuda-runtime and nvidia-cublas), or use the "
        "device cpu",
        file, dlerror());
  using Entry = const CudaApi* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(plugin, "onefold_cuda_api"));
  if (entry == nullptr || std::string_view(entry()->interface_hash) != ONEFOLD_INTERFACE_HASH)
    user_error("{} belongs to another build of Onefold; install both together", file);
  return *entry();
}

const CudaApi& cuda() {
  static const CudaApi& api = load();
  return api;
}

}  // namespace

std::vector<CudaCard> cuda_cards() { return cuda().cards(); }

std::unique_ptr<Device> open_cuda_device(int card, int threads) {
  return std::unique_ptr<Device>(cuda().open(card, threads));
}

int64_t free_cuda_bytes(int card) { return cuda().free_bytes(card); }

}  // namespace onefold
