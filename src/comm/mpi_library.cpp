#include "comm/mpi_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <vector>

#include "base/error.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlugin = "libonefold_mpi.so";

// Beside the program, or the library that this code is in; in the folder above (tests lie one below
// the program); in the library folder of an installation.
std::vector<fs::path> candidates() {
  std::vector<fs::path> homes;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  if (!program.empty()) homes.push_back(program.parent_path());
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&mpi_library), &here) != 0 && here.dli_fname != nullptr)
    homes.push_back(fs::absolute(here.dli_fname, ignored).parent_path());
  std::vector<fs::path> files;
  for (const fs::path& home : homes)
    for (const char* folder : {".", "..", "../" ONEFOLD_LIBDIR})
      files.push_back((home / folder / kPlugin).lexically_normal());
  return files;
}

MpiLibrary load(const fs::path& file) {
  // Global: the MPI library opens components of its own, which look for its symbols.
  void* plugin = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (plugin == nullptr)
    return {nullptr, fmt::format("{} does not load: {}. Install the MPI library that Onefold was "
                                 "built with (Debian: apt-get install openmpi-bin)",
                                 file.string(), dlerror())};
  using Entry = const MpiApi* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(plugin, "onefold_mpi_api"));
  if (entry == nullptr || entry()->version != kMpiApiVersion)
    return {nullptr, fmt::format("{} belongs to another build of Onefold; install both together",
                                 file.string())};
  return {entry(), ""};
}

MpiLibrary find() {
  for (const fs::path& file : candidates()) {
    std::error_code ignored;
    if (fs::exists(file, ignored)) return load(file);
  }
  return {nullptr, fmt::format("this build has no MPI: there is no {} beside the program. Install "
                               "libopenmpi-dev and openmpi-bin and build again",
                               kPlugin)};
}

}  // namespace

const MpiLibrary& mpi_library() {
  static const MpiLibrary library = find();  // never unloaded: MPI does not survive that
  return library;
}

}  // namespace onefold
