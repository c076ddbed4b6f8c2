#include "comm/mpi_library.h"

#include <dlfcn.h>

#include "base/error.h"
#include "base/plugin.h"

namespace onefold {
namespace {

constexpr const char* kPlugin = "libonefold_mpi.so";

MpiLibrary load(const std::string& file) {
  // Global: the MPI library loads components of its own, which need its symbols.
  void* plugin = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (plugin == nullptr)
    return {nullptr, fmt::format("{} does not load: {}. Install the MPI library that Onefold was "
                                 "built with (Debian: apt-get install openmpi-bin)",
                                 file, dlerror())};
  using Entry = const MpiApi* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(plugin, "onefold_mpi_api"));
  if (entry == nullptr || entry()->version != kMpiApiVersion)
    return {nullptr,
            fmt::format("{} belongs to another build of Onefold; install both together", file)};
  return {entry(), ""};
}

MpiLibrary find() {
  const std::string file = find_plugin(kPlugin, ONEFOLD_LIBDIR);
  if (!file.empty()) return load(file);
  return {nullptr, fmt::format("this build has no MPI: there is no {} beside the program. Install "
                               "libopenmpi-dev and openmpi-bin and build again",
                               kPlugin)};
}

}  // namespace

const MpiLibrary& mpi_library() {
  static const MpiLibrary library = find();  // never unloaded: MPI does not support that
  return library;
}

}  // namespace onefold
